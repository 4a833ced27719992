"""Which numbers put the chains of a policy in order: critics of several kinds, judged exactly.

For each seed the actor plays episodes, each kind of critic learns them, and `judge` compares all
with exact V^π and Q^π, each under its own discount. Beside them stand V* of the world, which knows
nothing of the policy, and numbers that were drawn. Prints means over seeds with 95 % intervals.

    python scripts/prepare_weights.py --config configs/prepare_weights/gridworld_tiny.yaml
    python benchmarks/critic_signals.py --seeds 0 1 2       # five CPU minutes a seed

Each step is a run in the folder: the same command goes on where it was.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from measuring import ROOT, command_line, environment, markdown, shown, words

from lactchain.config.settings import EnvironmentConfig
from lactchain.environments.exact import optimal_values
from lactchain.environments.language import make_language_env
from lactchain.environments.views import tabular_model

CONFIG = "gridworld_tiny"
KINDS: dict[str, dict[str, object]] = {
    "V: gradient steps, head solved": {},
    "V: head solved on the encoder as it was": {"critic.frozen": True},
    "V: λ .5": {"critic.trace": 0.5},
    "V: λ 0": {"critic.trace": 0.0},
    "V: γ .95": {"critic.gamma": 0.95},
    "Q of chains": {"critic.mode": "action_value"},
}
FIGURES = ("r2", "rho", "rho_within", "pairs_right", "slope")


def run(script: str, run_dir: Path, settings: dict[str, object]) -> Path:
    """A run of a script by its shipped configuration, unless it is finished."""
    if not (run_dir / "summary.json").exists():
        settings = {"config": ROOT / f"configs/{script}/{CONFIG}.yaml", **settings}
        command = [sys.executable, str(ROOT / f"scripts/{script}.py"), *words(settings)]
        command += words({"run.run_dir": run_dir})
        subprocess.run(command, env=environment(), check=True, stdout=subprocess.DEVNULL)
    return run_dir


def floors(folder: Path, seed: int, gamma: float) -> list[Path]:
    """Files of V* and of drawn numbers, by the name of their row."""
    env = make_language_env(EnvironmentConfig())
    best = optimal_values(tabular_model(env.env, env.view), gamma)
    drawn = np.random.default_rng(seed).random(len(best))
    files = [folder / "V* of the world.json", folder / "drawn numbers.json"]
    for file, values in zip(files, (best, drawn), strict=True):
        file.write_text(json.dumps({"values": values.tolist()}))
    return files


def judged(folder: Path, weights: Path, seed: int, gamma: float) -> dict[str, dict[str, float]]:
    """Figures of all kinds on one seed, by name."""
    given = {"actor.model": weights / "tiny-actor", "run.seed": seed}
    episodes = run("collect_rollouts", folder / "episodes", given) / "trajectories"
    given |= {"trajectories": episodes, "critic.model": weights / "tiny-encoder"}
    given |= {"compare_with_exact": False}
    critics = {
        name: run("train_critic", folder / f"critic_{number}", given | changes)
        for number, (name, changes) in enumerate(KINDS.items())
    }
    names = {str(path / "critic"): name for name, path in critics.items()}
    names |= {str(path): path.stem for path in floors(folder, seed, gamma)}
    settings = {"actor.model": weights / "tiny-actor", "critics": [*names], "gamma": gamma}
    found = json.loads((run("judge", folder / "judge", settings) / "judgement.json").read_text())
    return {name: found[path] for path, name in names.items()}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=Path("runs/critic_signals"))
    parser.add_argument("--weights", type=Path, default=Path("weights"))
    parser.add_argument("--gamma", type=float, default=0.8, help="of what brings none of its own")
    given = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {}
    for seed in given.seeds:
        folder = given.folder / f"seed_{seed}"
        for name, figures in judged(folder, given.weights, seed, given.gamma).items():
            rows.setdefault(name, []).append(figures)
    heads = ("signal", *FIGURES, "wider half")
    lines = [
        [name, *(_cell(seeds, f) for f in FIGURES), _wide(seeds)] for name, seeds in rows.items()
    ]
    print("\n".join(markdown(heads, lines)))


def _cell(seeds: list[dict[str, float]], figure: str) -> str:
    values = [np.nan if found[figure] is None else found[figure] for found in seeds]
    return shown(values) if len(values) > 1 else f"{values[0]:.3f}"


def _wide(seeds: list[dict[str, float]]) -> str:
    """Share of pairs in order in the two parts with the widest margins."""
    return f"{np.mean([part['pairs_right'] for f in seeds for part in f['by_margin'][2:]]):.3f}"


if __name__ == "__main__":
    main()
