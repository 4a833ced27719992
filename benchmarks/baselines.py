"""Classic agents: returns, and speed against Stable-Baselines3 in the same process, in turns.

    python benchmarks/baselines.py --write
    python benchmarks/baselines.py --parts speed gridworld

Parts:
- returns: final weights (no selection by playing) after the budget of configs/, 100 greedy episodes
  each on Gymnasium's own environments, from the same seeds for everybody. The seeds of a row are
  the members of one population: weights, environments and random numbers of their own.
- sb3: the same for Stable-Baselines3 at rl-baselines3-zoo's settings.
- zoo: Acrobot and MountainCar, ten seeds beside the returns that rl-baselines3-zoo publishes of one
  run each, and beside --zoo_seeds runs of Stable-Baselines3 at the zoo's settings.
- speed: environment steps per CPU-second at the zoo's settings, same minibatches per step, ours and
  Stable-Baselines3's in turns: ours on CartPole and Pendulum as numpy batches, and on Gymnasium's
  own copies, as the other side plays them.
- cql: CQL on 20,000 steps of random CartPole play, final weights, 20 episodes.
- gridworld: PPO and DQN on the language policies' world.

One thread, CPU time of the process (`time.process_time`). Each measurement is kept in --folder and
not made again when it is there; --write appends the tables to benchmarks/RESULTS_ARCHIVE.md.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from baseline_measurements import (
    PUBLISHED,
    ZOO,
    ZOO_THEIRS,
    time_in_turns,
    train_cql,
    train_ours,
    train_sb3,
)
from measuring import (
    ROOT,
    append_section,
    bootstrap_interval,
    command_line,
    interquartile_mean,
    markdown,
)

# name: our configuration
RETURNS = {
    "PPO CartPole-v1": "train_ppo/cartpole",
    "DQN CartPole-v1": "train_dqn/cartpole",
    "PPO Pendulum-v1": "train_ppo/pendulum",
    "DDPG Pendulum-v1": "train_ddpg/pendulum",
    "PPO LunarLander-v3": "train_ppo/lunar_lander",
}
# Beside rl-baselines3-zoo's published returns.
PUBLISHED_RETURNS = {
    "PPO Acrobot-v1": "train_ppo/acrobot",
    "DQN Acrobot-v1": "train_dqn/acrobot",
    "PPO MountainCar-v0": "train_ppo/mountain_car",
    "DQN MountainCar-v0": "train_dqn/mountain_car",
}
GRIDWORLD = {"PPO": "train_ppo/gridworld", "DQN": "train_dqn/gridworld"}
ZOO_SEEDS = 10


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--num_seeds", type=int, default=5)
    parser.add_argument("--names", nargs="+", choices=RETURNS, default=[*RETURNS])
    parser.add_argument("--sb3_names", nargs="+", choices=ZOO_THEIRS, default=[*ZOO_THEIRS])
    parser.add_argument("--sb3_seeds", type=int, default=5)
    parser.add_argument("--zoo_names", nargs="+", choices=PUBLISHED, default=[*PUBLISHED])
    parser.add_argument("--zoo_seeds", type=int, default=1, help="of Stable-Baselines3")
    parser.add_argument("--repeats", type=int, default=5, help="timings of each side, in turns")
    parser.add_argument("--folder", default="runs/benchmarks/baselines")
    parser.add_argument("--write", action="store_true", help="append to RESULTS_ARCHIVE.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = ROOT / options.folder
    folder.mkdir(parents=True, exist_ok=True)
    lines = [line for part in options.parts for line in [*PARTS[part](options, folder), ""]]
    sys.stdout.write("\n".join([*lines, ""]))
    if options.write:
        append_section("Classic agents", lines)


def kept(folder: Path, name: str, measure: Callable[..., Any], *arguments: Any) -> Any:
    """A measurement, from its file when it has been made."""
    path = folder / f"{name.replace(' ', '_')}.json"
    if not path.exists():
        sys.stderr.write(f"{name} ...\n")
        path.write_text(json.dumps(measure(*arguments)))
    return json.loads(path.read_text())


def listed(values: Sequence[float], digits: int = 1) -> str:
    return ", ".join(f"{value:.{digits}f}" for value in values)


def interval(returns: Sequence[float], *statistic: Callable) -> str:
    return "{:.1f} to {:.1f}".format(*bootstrap_interval(returns, *statistic))


def returns_part(options: argparse.Namespace, folder: Path) -> list[str]:
    found = {}
    for name in options.names:
        key = f"returns_{name}_{options.num_seeds}"
        found[name] = kept(folder, key, train_ours, RETURNS[name], options.num_seeds)
    return returns_table("agent, environment", found)


def sb3_part(options: argparse.Namespace, folder: Path) -> list[str]:
    found = {}
    for name in options.sb3_names:
        runs = sb3_runs(folder, name, options.sb3_seeds)
        found[name] = {
            "steps": ZOO_THEIRS[name][2],
            "returns": [run["return"] for run in runs],
            "seconds": sum(run["seconds"] for run in runs),
        }
    return returns_table("Stable-Baselines3, zoo's settings", found)


def sb3_runs(folder: Path, name: str, num_seeds: int) -> list[dict[str, float]]:
    keys = {seed: f"sb3_{name}_{seed}" for seed in range(num_seeds)}
    return [kept(folder, key, train_sb3, name, seed) for seed, key in keys.items()]


def returns_table(head: str, found: dict[str, dict[str, Any]]) -> list[str]:
    heads = [head, "steps", "IQM", "95% interval", "every seed", "CPU-seconds"]
    rows = []
    for name, of in found.items():
        returns = of["returns"]
        cells = [name, f"{of['steps']:,}", f"{interquartile_mean(returns):.1f}", interval(returns)]
        rows.append([*cells, listed(returns), f"{of['seconds']:.0f}"])
    return markdown(heads, rows)


def zoo_part(options: argparse.Namespace, folder: Path) -> list[str]:
    heads = ["agent, environment", "steps", "zoo, one run", "ours, mean", "95% interval"]
    heads += ["every seed", "CPU-s", "Stable-Baselines3", "its CPU-s"]
    rows = []
    for name in options.zoo_names:
        ours = kept(folder, f"zoo_{name}", train_ours, PUBLISHED_RETURNS[name], ZOO_SEEDS)
        theirs = sb3_runs(folder, name, options.zoo_seeds)
        mean, spread = f"{np.mean(ours['returns']):.1f}", interval(ours["returns"], np.mean)
        cells = [name, f"{ours['steps']:,}", f"{PUBLISHED[name]:.1f}", mean, spread]
        cells += [listed(ours["returns"]), f"{ours['seconds']:.0f}"]
        cells += [listed([run["return"] for run in theirs])]
        rows.append([*cells, listed([run["seconds"] for run in theirs], 0)])
    return markdown(heads, rows)


def speed_part(options: argparse.Namespace, folder: Path) -> list[str]:
    rows = []
    for name in ZOO:
        for same in (False, True):
            key = f"speed_{name}_{options.repeats}{'_same' * same}"
            found = kept(folder, key, time_in_turns, name, options.repeats, same)
            ours, theirs = np.median(found["ours"]), np.median(found["sb3"])
            row = f"{name}, {'the same environments' if same else 'our environments'}"
            rows.append([row, f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}"])
    heads = ["zoo's settings", "ours, steps per CPU-second", "Stable-Baselines3", "ratio"]
    return markdown(heads, rows)


def cql_part(options: argparse.Namespace, folder: Path) -> list[str]:
    found = [kept(folder, f"cql_{seed}", train_cql, seed) for seed in range(options.num_seeds)]
    heads = ["CQL, 20,000 random steps of CartPole", "mean", "every seed"]
    row = ["final weights, 20 episodes each", f"{np.mean(found):.1f}", listed(found)]
    return markdown(heads, [row])


def gridworld_part(options: argparse.Namespace, folder: Path) -> list[str]:
    rows, count = [], options.num_seeds
    for agent, config in GRIDWORLD.items():
        key = f"gridworld_{config.replace('/', '_')}_{count}"
        found = kept(folder, key, train_ours, config, count)
        success = f"{np.mean(found['returns']):.3f} ({listed(found['returns'], 3)})"
        costs = [f"{found['steps']:,} each", f"{found['seconds'] / count:.1f} each"]
        rows.append([f"{agent}, {count} small networks", success, *costs])
    return markdown(["GridWorld 4x4", "success", "environment steps", "CPU-seconds"], rows)


PARTS: dict[str, Callable[[argparse.Namespace, Path], list[str]]] = {
    "returns": returns_part,
    "sb3": sb3_part,
    "zoo": zoo_part,
    "speed": speed_part,
    "cql": cql_part,
    "gridworld": gridworld_part,
}


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="stable_baselines3")
    main()
