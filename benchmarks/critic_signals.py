"""Which numbers put the chains of a policy in order: critics of several kinds, judged exactly.

In each world, for each seed, a tiny actor is cloned and a critic trained on its episodes by the
preset `tiny`. Each kind of critic then learns those same episodes, and `judge` compares all with
exact V^π and Q^π, each under its own discount. Beside them stand V of MC and ILQL on the same
episodes, numbers for which nothing is trained (`other_signals.py`; after `lactchain prepare_weights
--config smollm2`), V* of the world, which knows nothing of the policy, and numbers that were drawn.
Some then rank pairs, from which the actor learns for a round. The last rows are of the policy after
the preset's own round: its critic as it was, a new one, and the old one carried on. Prints means
over seeds with 95 % intervals; without exact values those of states alone, by replays.

    python benchmarks/critic_signals.py                     # some twenty CPU minutes a seed
    python benchmarks/critic_signals.py --worlds slippery_lake maze --seeds 0 1 2

Each step is a run in the folder: the same command goes on where it was.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

import numpy as np
import other_signals
from measuring import ROOT, command_line, environment, markdown, shown, summary, words
from worlds import BUILT_IN, GAMES, begun

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
TAUGHT = ("V", "V: λ 1", "V: λ 0", "V: MiniLM, head solved", "Q of chains")
"""Those whose pairs an actor learns from: the best that are critics, and one that ranks badly."""
REPLAYED = ("maze_partial", "wordle")
"""Worlds without exact values of what is read: texts of the critic's episodes are played on."""
LEARNT = ("success_rate", "success_within_2_chains", "of_optimum", "episode_return")
FIGURES = ("r2", "rho", "rho_within", "pairs_right", "slope", "wider half", "seconds", *LEARNT)
Row = dict[str, Any]


def run(script: str, config: Path, run_dir: Path, settings: dict[str, object]) -> Path:
    """A run of a script, unless it is finished."""
    if not (run_dir / "summary.json").exists():
        command = [sys.executable, str(ROOT / f"scripts/{script}.py")]
        command += words({"config": config, **settings, "run.run_dir": run_dir})
        began = getrusage(RUSAGE_CHILDREN)
        subprocess.run(command, env=environment(), check=True, stdout=subprocess.DEVNULL)
        ended = getrusage(RUSAGE_CHILDREN)
        spent = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
        _spent(run_dir).write_text(f"{spent:.1f}")
    return run_dir


def _spent(run_dir: Path) -> Path:
    """The file that says how many CPU seconds a run's last start took, some four to begin with."""
    return run_dir.with_name(f"{run_dir.name}.seconds")


def _seconds(place: Path) -> float:
    """What is in that file; NaN where a run was killed before it was written."""
    return float(_spent(place).read_text()) if _spent(place).exists() else np.nan


def judged(world: str, folder: Path, seed: int) -> dict[str, Row]:
    """Figures of all kinds on one seed, by name."""
    begun(world, folder / "pipeline", seed, num_critics=2)
    first, second = (folder / f"pipeline/round_{n}/critic" for n in (1, 2))
    asked, exact = load(first / "config.yaml"), world not in REPLAYED
    critics = {name: fit(first, folder / name, changes) for name, changes in KINDS.items()}
    names = {critics[name] / "critic": name for name in KINDS}
    if exact:
        files = others(folder, seed, asked, EmbeddingCritic.load(critics["V"] / "critic"))
        names |= {path: path.stem for path in files}
    found = by_policy(first, folder / "judge", names, exact)
    for name in TAUGHT:
        found[name] |= taught(folder, critics[name])
    for path, name in names.items():
        found[name]["seconds"] = _seconds(path if path.suffix == ".json" else path.parent)
    fresh = fit(second, folder / "round 2, anew", {"critic.checkpoint": None})
    carried = {
        first / "critic": "round 1, as it was",
        fresh / "critic": "round 2, anew",
        second / "critic": "round 2, carried on: the preset",
    }
    return found | by_policy(second, folder / "judge_2", carried, exact)


def fit(critic: Path, run_dir: Path, changes: dict[str, object]) -> Path:
    """A critic on the episodes of another one, with other settings."""
    given: dict[str, object] = {"trajectories": critic / "trajectories"}
    given |= {"compare_with_exact": False}
    return run("train_critic", critic / "config.yaml", run_dir, given | changes)


def by_policy(critic: Path, run_dir: Path, names: dict[Path, str], exact: bool) -> dict[str, Row]:
    """Figures by the values of the policy that played a critic's episodes, by name."""
    asked, settings = load(critic / "config.yaml"), run_dir.with_suffix(".yaml")
    judgement = {key: asked[key] for key in ("environment", "actor")}
    judgement |= {} if exact else {"trajectories": str(critic / "trajectories")}
    settings.write_text(to_yaml(judgement | {"gamma": asked["critic"]["gamma"]}))
    run("judge", settings, run_dir, {"critics": [*map(str, names)]})
    found = json.loads((run_dir / "judgement.json").read_text())
    for row in found.values():
        parts = [part["pairs_right"] for part in row.get("by_margin", ())[2:]]
        row["wider half"] = np.mean(parts) if parts else None
    return {name: found[str(path)] for path, name in names.items()}


def taught(folder: Path, critic: Path) -> Row:
    """What an actor does greedily after one round on pairs that a critic has ranked."""
    pipeline, place = folder / "pipeline", folder / "taught" / critic.name
    by = {"critic": critic / "critic"}
    actor = run("train_simpo", pipeline / "round_1/simpo/config.yaml", place, by) / "actor"
    greedy = pipeline / "round_0/evaluation/config.yaml"
    figures = summary(run("evaluate", greedy, place / "evaluation", {"actor.model": actor}))
    return {name: figures.get(name) for name in LEARNT}


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
    of_critic = critic, episodes, other_signals.plain(env)
    heads = partial(other_signals.of_halves, *of_critic)
    known: dict[str, Callable[[], list[float]]] = {
        "HL-Gauss, 51 bins": partial(other_signals.hl_gauss, *of_critic, 51),
        "HL-Gauss, 101 bins": partial(other_signals.hl_gauss, *of_critic, 101),
        "V: two heads on halves of the episodes, their mean": lambda: heads().mean(axis=0).tolist(),
        "V: two heads on halves of the episodes, the lower": lambda: heads().min(axis=0).tolist(),
        "likeness by MiniLM": partial(other_signals.likeness, MINILM, read, nearest),
        "SmolLM2, asked": partial(other_signals.prompted, SMOLLM2, read),
        "V* of the world": best.tolist,
        "drawn numbers": np.random.default_rng(seed).random(len(best)).tolist,
    }
    built_on = {name: folder / "V" for name in known if name.startswith(("HL-Gauss", "V:"))}
    said = [action for episode in episodes for action in episode.actions]
    actions = sum(len(env.extractor.parse(action.text).actions) for action in said)
    of_token = gamma ** (actions / sum(len(action.token_ids) for action in said))
    for method in ("mc", "ilql") if env.grammar.num_completions <= MAX_COMPLETIONS else ():
        preset = load(ROOT / f"configs/train_{method}/gridworld_tiny.yaml")
        preset |= {key: asked[key] for key in ("environment", "actor")}
        preset[method]["gamma"] = of_token
        (file := folder / f"{method}.yaml").write_text(to_yaml(preset))
        name, trained = f"V of {method.upper()}", folder / method
        built_on[name] = run(f"train_{method}", file, trained, {"trajectories": path})
        known[name] = partial(other_signals.of_tokens, trained / "values", asked["actor"], env)
    for name, numbers in known.items():
        if not (file := folder / f"{name}.json").exists():
            began, values = time.process_time(), numbers()
            spent = time.process_time() - began
            if name in built_on:
                spent += _seconds(built_on[name])
            _spent(file).write_text(f"{spent:.1f}")
            file.write_text(json.dumps({"values": values}))
    return [folder / f"{name}.json" for name in known]


def main() -> None:
    parser = command_line(__doc__)
    worlds = [*BUILT_IN, *GAMES]
    parser.add_argument("--worlds", nargs="+", choices=worlds, default=["gridworld_4x4"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmarks/critic_signals"))
    given = parser.parse_args()
    for world in given.worlds:
        rows: dict[str, list[Row]] = {}
        success = []
        for seed in given.seeds:
            folder = given.folder.resolve() / f"{world}_{seed}"
            for name, figures in judged(world, folder, seed).items():
                rows.setdefault(name, []).append(figures)
            before = summary(folder / "pipeline/round_0/evaluation")
            success.append([before[name] for name in LEARNT[:2]])
        rates, in_two = (shown(values) for values in zip(*success, strict=True))
        print(f"\n### {world}, actors of success {rates}, within two completions {in_two}\n")
        print("\n".join(table(rows)), flush=True)


def table(rows: Mapping[str, Sequence[Row]]) -> list[str]:
    """A row for each signal, of means over seeds; less the columns in which nothing stands."""
    columns = {name: [_cell(seeds, name) for seeds in rows.values()] for name in FIGURES}
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    heads = [f"after a round: {name}" if name in LEARNT else name for name in columns]
    return markdown(["signal", *heads], zip(rows, *columns.values(), strict=True))


def _cell(seeds: Sequence[Mapping[str, Any]], figure: str) -> str:
    """Over the seeds that have the figure, and how many where not all do."""
    known = [found[figure] for found in seeds if found.get(figure) is not None]
    values = [value for value in known if value == value]
    if not values:
        return ""
    text = shown(values, "{:.0f}" if figure == "seconds" else "{:.3f}")
    return text + (f" (of {len(values)})" if len(values) < len(seeds) else "")


if __name__ == "__main__":
    main()
