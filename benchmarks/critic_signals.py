"""Which numbers put the chains of a policy in order: critics of several kinds, judged exactly.

In each world, for each seed, a tiny actor is cloned and a critic trained on its episodes by the
preset `tiny`. Each kind of critic then learns those same episodes, and `judge` compares all with
exact V^π and Q^π, each under its own discount. Beside them stand V of MC and ILQL on the same
episodes, numbers for which nothing is trained (`other_signals.py`; after `lactchain prepare_weights
--config smollm2`), V* of the world, which knows nothing of the policy, and numbers that were drawn.
Prints means over seeds with 95 % intervals; where there are too many chains for exact values, those
of states alone, by replays.

    python benchmarks/critic_signals.py                     # some nine CPU minutes a seed
    python benchmarks/critic_signals.py --worlds slippery_lake taxi words --seeds 0 1 2

Each step is a run in the folder: the same command goes on where it was.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import other_signals
from measuring import ROOT, command_line, environment, markdown, shown, summary, words
from worlds import BUILT_IN, begun

from lactchain.config.settings import EnvironmentConfig
from lactchain.config.yaml_files import load, to_yaml
from lactchain.data.sources import open_trajectories
from lactchain.environments.exact import optimal_values
from lactchain.environments.language import make_language_env
from lactchain.environments.views import tabular_model
from lactchain.models.critic import EmbeddingCritic
from lactchain_extras.token_values.guidance import MAX_COMPLETIONS

SMOLLM2, MINILM = (str(ROOT / "weights" / name) for name in ("smollm2", "minilm"))
KINDS: dict[str, dict[str, object]] = {
    "V": {},
    "V: head solved on the encoder as it was": {"critic.frozen": True},
    "V: λ 1": {"critic.trace": 1.0},
    "V: λ 0": {"critic.trace": 0.0},
    "V: γ .95": {"critic.gamma": 0.95},
    "V: MiniLM, head solved": {"critic.model": MINILM, "critic.frozen": True},
    "V: MiniLM, λ 1": {"critic.model": MINILM, "critic.frozen": True, "critic.trace": 1.0},
    "Q of chains": {"critic.mode": "action_value"},
}
FIGURES = ("r2", "rho", "rho_within", "pairs_right", "slope")


def run(script: str, config: Path, run_dir: Path, settings: dict[str, object]) -> Path:
    """A run of a script, unless it is finished."""
    if not (run_dir / "summary.json").exists():
        command = [sys.executable, str(ROOT / f"scripts/{script}.py")]
        command += words({"config": config, **settings, "run.run_dir": run_dir})
        subprocess.run(command, env=environment(), check=True, stdout=subprocess.DEVNULL)
    return run_dir


def judged(world: str, folder: Path, seed: int) -> dict[str, dict[str, float]]:
    """Figures of all kinds on one seed, by name."""
    begun(world, folder / "pipeline", seed)
    preset = folder / "pipeline/round_1/critic"
    given: dict[str, object] = {"trajectories": preset / "trajectories"}
    given |= {"compare_with_exact": False}
    critics = {
        name: run("train_critic", preset / "config.yaml", folder / name, given | changes)
        for name, changes in KINDS.items()
    }
    names = {str(path / "critic"): name for name, path in critics.items()}
    asked = load(preset / "config.yaml")
    gamma = asked["critic"]["gamma"]
    critic = EmbeddingCritic.load(critics[next(iter(KINDS))] / "critic")
    names |= {str(path): path.stem for path in others(folder, seed, asked, critic)}
    judgement = {key: asked[key] for key in ("environment", "actor")}
    (folder / "judge.yaml").write_text(to_yaml(judgement | {"gamma": gamma}))
    run("judge", folder / "judge.yaml", folder / "judge", {"critics": [*names]})
    found = json.loads((folder / "judge/judgement.json").read_text())
    return {name: found[path] for path, name in names.items()}


def others(folder: Path, seed: int, asked: dict[str, Any], critic: EmbeddingCritic) -> list[Path]:
    """Files of numbers for the states by other means, by the name of their row.

    Models of others read the world's own words, for which the tiny ones have abbreviations.
    """
    world = asked["environment"] | {"held_back": None}
    env = make_language_env(EnvironmentConfig(**world))
    own = make_language_env(EnvironmentConfig(**(world | {"template": None})))
    path, gamma = folder / "pipeline/round_1/critic/trajectories", asked["critic"]["gamma"]
    episodes, read = open_trajectories(path), other_signals.plain(own)
    best = optimal_values(tabular_model(env.env, env.view), gamma)
    nearest = np.flatnonzero(best >= np.quantile(best, 0.99)).tolist()
    known: dict[str, Callable[[], list[float]]] = {
        f"HL-Gauss, {bins} bins": partial(
            other_signals.hl_gauss, critic, episodes, other_signals.plain(env), bins
        )
        for bins in (51, 101)
    }
    known |= {
        "likeness by MiniLM": partial(other_signals.likeness, MINILM, read, nearest),
        "SmolLM2, asked": partial(other_signals.prompted, SMOLLM2, read),
        "V* of the world": best.tolist,
        "drawn numbers": np.random.default_rng(seed).random(len(best)).tolist,
    }
    for method in ("mc", "ilql") if env.grammar.num_completions <= MAX_COMPLETIONS else ():
        preset = load(ROOT / f"configs/train_{method}/gridworld_tiny.yaml")
        preset |= {key: asked[key] for key in ("environment", "actor")}
        preset[method]["gamma"] = gamma**0.5  # of a token; an action has two
        (file := folder / f"{method}.yaml").write_text(to_yaml(preset))
        values = run(f"train_{method}", file, folder / method, {"trajectories": path}) / "values"
        of_tokens = partial(other_signals.of_tokens, values, asked["actor"], env)
        known[f"V of {method.upper()}"] = of_tokens
    files = {folder / f"{name}.json": numbers for name, numbers in known.items()}
    for file, numbers in files.items():
        if not file.exists():
            file.write_text(json.dumps({"values": numbers()}))
    return [*files]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--worlds", nargs="+", choices=BUILT_IN, default=["gridworld_4x4"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmarks/critic_signals"))
    given = parser.parse_args()
    heads = ("signal", *FIGURES, "wider half")
    for world in given.worlds:
        rows: dict[str, list[dict[str, float]]] = {}
        success = []
        for seed in given.seeds:
            folder = given.folder.resolve() / f"{world}_{seed}"
            for name, figures in judged(world, folder, seed).items():
                rows.setdefault(name, []).append(figures)
            success.append(summary(folder / "pipeline/round_0/evaluation")["success_rate"])
        lines = [
            [n, *(_cell(seeds, f) for f in FIGURES), _wide(seeds)] for n, seeds in rows.items()
        ]
        print(f"\n### {world}, actors of success {shown(success)}\n")
        print("\n".join(markdown(heads, lines)), flush=True)


def _cell(seeds: list[dict[str, Any]], figure: str) -> str:
    """Over the seeds that have the figure, which replays may not give."""
    values = [found[figure] for found in seeds if found.get(figure) is not None]
    return shown(values) if values else ""


def _wide(seeds: list[dict[str, Any]]) -> str:
    """Share of pairs in order in the two parts with the widest margins."""
    parts = [part["pairs_right"] for found in seeds for part in found.get("by_margin", ())[2:]]
    return f"{np.mean(parts):.3f}" if parts else ""


if __name__ == "__main__":
    main()
