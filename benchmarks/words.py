"""What words cost: steps a CPU-second of a level of MiniGrid, in words and bare, in turns.

    python benchmarks/words.py --levels BabyAI-GoToLocal-v0 BabyAI-Pickup-v0

The bare level draws the image of what the agent sees in every step. In words an answer of one
action is parsed and played, and what is seen is described; in chains, after each chain alone.
"""

import time
from contextlib import redirect_stdout
from io import StringIO
from statistics import median

import gymnasium as gym
import minigrid  # noqa: F401  - registers its levels
import numpy as np
from measuring import command_line

from lactchain.config.settings import EnvironmentConfig
from lactchain.environments.language import make_language_env

MOVES = 3
"""Turns and steps; of other actions random play makes little."""


def bare(level: str, actions: np.ndarray) -> float:
    """Steps a CPU-second of the level itself."""
    env = gym.make(level)
    env.reset(seed=0)
    start = time.process_time()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(int(action))
        if terminated or truncated:
            env.reset()
    return len(actions) / (time.process_time() - start)


def in_words(level: str, actions: np.ndarray, chain_length: int) -> float:
    """Steps a CPU-second of chains that are answered, parsed, played, and looked at."""
    config = EnvironmentConfig(
        f"minigrid:{level}", max_chain_length=chain_length, max_chains=len(actions)
    )
    env = make_language_env(config)
    env.reset(seed=0)
    start, steps = time.process_time(), 0
    for chain in actions.reshape(-1, chain_length):
        _, _, terminated, truncated, info = env.step(env.grammar.render(chain.tolist()))
        steps += len(info["executed"])
        if terminated or truncated:
            env.reset()
    return steps / (time.process_time() - start)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--levels", nargs="+", default=["BabyAI-GoToLocal-v0"])
    parser.add_argument("--steps", type=int, default=3_000, help="of each run")
    parser.add_argument("--runs", type=int, default=7, help="of each side, in turns")
    options = parser.parse_args()
    print("| level | bare steps a CPU-second | one action an answer | chains of five |")
    print("|---|---|---|---|")
    for level in options.levels:
        rows = []
        for run in range(options.runs):
            steps = options.steps - options.steps % 5
            actions = np.random.default_rng(run).integers(0, MOVES, steps)
            with redirect_stdout(StringIO()):  # levels say which draws they reject
                rows.append([bare(level, actions), *(in_words(level, actions, n) for n in (1, 5))])
        speed = median(row[0] for row in rows)
        ratios = [[row[n] / row[0] for row in rows] for n in (1, 2)]
        shown = [f"{median(r):.2f} ({min(r):.2f} to {max(r):.2f})" for r in ratios]
        print(f"| {level} | {speed:,.0f} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
