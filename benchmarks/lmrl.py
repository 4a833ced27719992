"""LMRL-Gym's table with tiny models: text worlds learnt offline, beside the published figures.

    python benchmarks/lmrl.py
    python benchmarks/lmrl.py --worlds maze --methods bc ilql --seeds 0
    python benchmarks/lmrl.py --worlds wordle --word-list words.txt

For each world and seed: offline data, an untrained base model, cloning of all episodes (BC) or of
the best (%BC), Monte-Carlo values and ILQL to act beside BC (in Wordle beside a clone of the
completions that won, with which they begin); and the recipe of run_pipeline.py (critic, pairs,
SimPO), which plays for itself. All by the scripts and configurations of the repository. Every stage
is a run folder under --folder; what is finished there is not made again, and what was interrupted
goes on.

Evaluated are free completions at temperature 1, for MC and ILQL over several beta, and the best of
all legal completions: ranked by values where there are any (in Wordle with the policy's log
probabilities beside), greedy under constrained decoding elsewhere. In the maze from each of the 25
cells, 32 times where dice are thrown and once where none are.

- interval: Student's, over seeds, at 95 %; `se`: standard error of the mean of one seed's games;
- move accuracy: share of moves that shorten the way to the goal, mean over the cells visited;
- bump, revisit, loop: see `lactchain.data.figures`; unparseable: completions that name no action;
- train s, evaluate s: wall seconds of a method's own training (and of processors, since the wall
  also sees what else runs), and of this evaluation; of the time spent in playing, the share in the
  model or in the scripted policy.

With --write the tables are appended to benchmarks/RESULTS_ARCHIVE.md.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml

from lactchain.data.trajectories import read_trajectories
from lactchain.environments.exact import shortest_paths
from lactchain.types import Trajectory
from lactchain.worlds.maze import MazeTables

ROOT = Path(__file__).parent.parent
NAMES = {
    "bc": "BC",
    "filtered_bc": "%BC",
    "policy": "BC of final completions",
    "mc": "MC",
    "ilql": "ILQL",
    "simpo": "critic, SimPO",
}
T_95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's quantiles for 1 to 9 degrees of freedom; the last one serves for more."""
FIGURES = {
    "se": "{:.3f}",
    "success": "{:.3f}",
    "move accuracy": "{:.3f}",
    "bump": "{:.3f}",
    "revisit": "{:.3f}",
    "loop": "{:.3f}",
    "unparseable": "{:.4f}",
    "train s": "{:.0f}",
    "train CPU s": "{:.0f}",
    "evaluate s": "{:.0f}",
    "model share": "{:.2f}",
}
"""Columns that are means over seeds, and how they are written."""


@dataclass(frozen=True)
class World:
    """What the configurations do not say.

    Attributes:
        base: name of the configuration of the untrained models.
        data: name of the configuration of the behaviour data, of which the floors are as well.
        floors: scripted policies to play, and what the table calls them.
        num_floor_games: episodes of each.
        filtered: settings that make %BC of cloning.
        betas: factors on the advantages of MC and ILQL.
        num_games: episodes from each start, with dice and without.
        published: LMRL-Gym's raw returns.
        note: what else is known.
        policy: settings of the cloning that MC and ILQL begin with and act beside; None: they begin
            with the untrained model, and act beside BC.
    """

    base: str
    data: str
    floors: Mapping[str, str]
    num_floor_games: int
    filtered: Mapping[str, object]
    betas: Sequence[int]
    num_games: tuple[int, int]
    published: Mapping[str, float]
    note: str
    policy: Mapping[str, object] | None = None


MAZE = World(
    "maze_tiny",
    "maze",
    {"random": "uniform random", "legal": "legal random", "optimal": "shortest paths"},
    num_floor_games=800,
    filtered={"only_successes": True},
    betas=(4, 16, 64),
    num_games=(32, 1),
    published={"BC": -72.1, "%BC": -56.4, "MC": -48.1, "ILQL": -6.97, "shortest paths": -6.84},
    note="Exact: uniform random -85.89, legal random -76.95, best possible -6.84.",
)
WORLDS = {
    "maze": MAZE,
    "maze_partial": replace(
        MAZE,
        base="maze_partial_tiny",
        data="maze_partial",
        betas=(2, 4, 16),
        published={"BC": -79.5, "%BC": -82.9, "MC": -80.3, "ILQL": -52.9},
        note="The floors see where they are, the others do not; best in LMRL-Gym's data -25.75.",
    ),
    "wordle": World(
        "wordle_tiny",
        "wordle_clues",
        {
            "consistent": "consistent random",
            "informed": "greedy information gain",
            "lookahead": "best play",
        },
        num_floor_games=4096,
        filtered={"best_fraction": 0.3},
        betas=(4, 8, 16),
        num_games=(2048, 2048),
        published={"BC": -2.81, "%BC": -2.85, "MC": -2.16, "ILQL": -2.04},
        note="With LMRL-Gym's 431 words, exact: best play -1.900, consistent random -2.375. Its "
        "own: greedy information gain -1.957, consistent random -2.36, behaviour data -4.12.",
        policy={
            "only_successes": True,
            "only_final_completions": True,
            "training.num_epochs": 3,
            "training.max_steps": -1,
            "training.batch_size": 64,
            "training.learning_rate": 0.003,
            "training.extra": {"adam_beta2": 0.99},
        },
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS), choices=WORLDS)
    parser.add_argument("--methods", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--word-list", help="file of Wordle's words; by default the shipped one")
    parser.add_argument("--folder", default="runs/lmrl", help="where the runs go")
    parser.add_argument("--write", action="store_true", help="append to RESULTS_ARCHIVE.md")
    options = parser.parse_args()
    for name in options.worlds:
        words = options.word_list if name == "wordle" else None
        runs = [Runs(name, Path(options.folder), seed, words) for seed in options.seeds]
        lines = markdown([list(rows(run, options.methods)) for run in runs], WORLDS[name])
        if "ilql" in options.methods:
            lines.append(ilql_cost(runs))
        sys.stdout.write("\n".join(["", f"# {name}", "", *lines, ""]))
        if options.write:
            append(name, options, lines)


class Runs:
    """The run folders of one world and seed, each made when it is asked for."""

    def __init__(self, name: str, folder: Path, seed: int, words: str | None) -> None:
        self.name, self.world, self.seed = name, WORLDS[name], seed
        folder_name = (
            f"{name}_{Path(words).stem}" if words else name
        )  # each list has runs of its own
        self.folder = folder.absolute() / folder_name / str(seed)
        self._words = {"environment.kwargs.words": Path(words).absolute()} if words else {}

    def data(self) -> Path:
        """The behaviour data."""
        return self._stage("make_offline_data", "data", {}, config=self.world.data)

    def floor(self, policy: str) -> Path:
        """A scripted policy that plays by itself, everywhere and to the end."""
        settings = {
            "behavior.policies": {policy: 1.0},
            "behavior.regions": [],
            "environment.max_chains": None,
            "collect.num_episodes": self.world.num_floor_games,
        }
        return self._stage("make_offline_data", f"floor_{policy}", settings, config=self.world.data)

    def base(self) -> Path:
        """The untrained model."""
        folder = self.folder / "base"
        if not (folder / "tiny-encoder" / "manifest.json").exists():
            settings = {"folder": folder, "seed": self.seed}
            self._launch("prepare_weights", folder, self.world.base, settings)
        return folder / "tiny-base"

    def cloned(self, method: str) -> Path:
        """BC, %BC, or the policy that values begin with."""
        chosen = {"bc": {}, "filtered_bc": self.world.filtered, "policy": self.world.policy}
        return self._stage("train_bc", method, self._learning(self.base()) | chosen[method])

    @property
    def beside(self) -> str:
        """What MC and ILQL act beside."""
        return "bc" if self.world.policy is None else "policy"

    def values(self, method: str) -> Path:
        """MC or ILQL."""
        # Not with BC: a random policy is cloned best by not looking where one is.
        start = self.base() if self.world.policy is None else self.cloned("policy") / "actor"
        return self._stage(f"train_{method}", method, self._learning(start))

    def pipeline(self) -> Path:
        """Critic, pairs and SimPO, in rounds."""
        return self._stage("run_pipeline", "simpo", {})

    def evaluation(
        self, name: str, free: bool, actor: Mapping[str, object], template: str | None = None
    ) -> Path:
        """An actor of these settings, with dice or without.

        Args:
            template: of the texts that it was trained on; None: the one of the other methods.
        """
        with_dice, without = self.world.num_games
        settings = {f"actor.{key}": value for key, value in actor.items()} | {
            "actor.temperature": 1.0 if free else 0.0,
            "evaluation.num_episodes_per_start": with_dice if free else without,
        }
        if template is not None:
            settings["environment.template"] = template
        return self._stage("evaluate", f"evaluate_{name}", settings)

    def _learning(self, actor: Path) -> dict[str, object]:
        return {"actor.model": actor, "trajectories": self.data() / "trajectories"}

    def _stage(
        self, script: str, name: str, settings: Mapping[str, object], config: str = ""
    ) -> Path:
        """The run folder of a stage, which is made or continued if need be."""
        run_dir = self.folder / name
        if not (run_dir / "summary.json").exists():
            own = {"run.run_dir": run_dir, "run.seed": self.seed}
            self._launch(script, run_dir, config or f"{self.name}_tiny", own | settings)
        return run_dir

    def _launch(
        self, script: str, run_dir: Path, config: str, settings: Mapping[str, object]
    ) -> None:
        """Runs a script, and notes beside its folder how long it took."""
        command = [sys.executable, f"scripts/{script}.py"]
        command += ["--config", f"configs/{script}/{config}.yaml"]
        for key, value in (self._words | settings).items():
            text = str(value) if isinstance(value, str | Path) else json.dumps(value)
            command += [f"--{key}", text]
        start = clock()
        try:
            subprocess.run(command, cwd=ROOT, check=True)
        finally:
            taken = seconds(run_dir) + clock() - start
            self.folder.mkdir(parents=True, exist_ok=True)
            run_dir.with_suffix(".seconds").write_text(json.dumps(taken.tolist()))


def clock() -> np.ndarray:
    """Seconds on the wall, and of processors in the scripts that are over."""
    times = os.times()
    return np.array([times.elapsed, times.children_user + times.children_system])


def seconds(run_dir: Path) -> np.ndarray:
    """What a stage took of both, interrupted tries included."""
    file = run_dir.with_suffix(".seconds")
    return np.array(json.loads(file.read_text())) if file.exists() else np.zeros(2)


def ilql_cost(runs: Sequence[Runs]) -> str:
    """What it takes from nothing to evaluated ILQL, for each seed."""
    stages = ("data", "base", runs[0].beside, "ilql", "evaluate_ilql*")
    files = [[f for stage in stages for f in r.folder.glob(f"{stage}.seconds")] for r in runs]
    totals = [sum(map(seconds, some)) / 60 for some in files]
    costs = ", ".join(f"{wall:.1f} ({processors:.1f})" for wall, processors in totals)
    return f"\nOne ILQL run, data and evaluations included, in minutes (of CPU): {costs}."


def rows(runs: Runs, methods: Sequence[str]) -> Iterator[dict]:
    """The rows of one seed: floors and data, then each method under each decoding."""
    for policy, name in runs.world.floors.items():
        yield row(name, "scripted", runs.floor(policy))
    yield row("behaviour data", "scripted", runs.data())
    for method in methods:
        if method == "policy" and runs.world.policy is None:
            continue
        if method in ("mc", "ilql"):
            yield from value_rows(runs, method)
        else:
            yield from actor_rows(runs, method)


def actor_rows(runs: Runs, method: str) -> Iterator[dict]:
    """The rows of a policy without values."""
    trained = runs.pipeline() if method == "simpo" else runs.cloned(method)
    actor, template = {"model": trained / "actor", "adapter": None}, None
    if method == "simpo":
        actor = json.loads((trained / "summary.json").read_text())["actor"]
        template = yaml.safe_load((trained / "config.yaml").read_text())["environment"]["template"]
    for decoding, free in (("free", True), ("constrained", False)):
        settings = actor | {"values": None, "decoding": decoding}
        folder = runs.evaluation(f"{method}_{decoding}", free, settings, template)
        yield row(NAMES[method], "free" if free else "greedy", folder, trained)


def value_rows(runs: Runs, method: str) -> Iterator[dict]:
    """The rows of values beside the cloned policy, over beta, and of ranked completions."""
    trained = runs.values(method)
    actor = {"model": runs.cloned(runs.beside) / "actor", "values": trained / "values"}
    for beta in runs.world.betas:
        settings = actor | {"decoding": "free", "value_weight": beta}
        folder = runs.evaluation(f"{method}_free_{beta}", True, settings)
        yield row(NAMES[method], f"free, β {beta}", folder, trained)
    folder = runs.evaluation(f"{method}_scored", False, actor | {"decoding": "scored"})
    yield row(NAMES[method], "scored", folder, trained)


def row(name: str, decoding: str, folder: Path, trained: Path | None = None) -> dict:
    """One line of the table for one seed, from the run folder of the episodes."""
    summary = json.loads((folder / "summary.json").read_text())
    summary = {key.removeprefix("rollout/"): value for key, value in summary.items()}
    trajectories = read_trajectories(folder / "trajectories")
    returns = np.array([trajectory.episode_return for trajectory in trajectories])
    cells = trajectories[0].env_id == "lactchain/Maze-v0"
    model = summary["time/generate_seconds"]
    return {
        "name": name,
        "decoding": decoding,
        "return": returns.mean(),
        "se": returns.std() / len(returns) ** 0.5,
        "success": summary["success_rate"],
        "move accuracy": move_accuracy(trajectories) if cells else None,
        "bump": summary["bump_rate"],
        "revisit": summary["revisit_rate"],
        "loop": summary["loop_rate"],
        "unparseable": summary["invalid_rate"],
        "train s": None if trained is None else seconds(trained)[0],
        "train CPU s": None if trained is None else seconds(trained)[1],
        "evaluate s": seconds(folder)[0],
        "model share": model / (model + summary["time/environment_seconds"]),
    }


def move_accuracy(trajectories: Sequence[Trajectory]) -> float:
    """Share of moves that shorten the way to the goal, mean over the cells they are made in."""
    tables = MazeTables()
    distances = np.append(shortest_paths(tables.model), 0)[tables.model.row_of_state]
    shortened: dict[int, list[bool]] = {}
    for trajectory in trajectories:
        cells = [tables.state_number(info["state"]) for info in trajectory.infos]
        for before, after in zip(cells, cells[1:], strict=False):
            shortened.setdefault(before, []).append(distances[after] < distances[before])
    return float(np.mean([np.mean(some) for some in shortened.values()]))


def interval(values: Sequence[float]) -> str:
    """Mean of one value for each seed, and half the width of its interval."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    quantile = T_95[min(len(values) - 1, len(T_95)) - 1]
    half = quantile * np.std(values, ddof=1) / len(values) ** 0.5
    return f"{np.mean(values):.2f} ± {half:.2f}"


def markdown(seeds: Sequence[Sequence[dict]], world: World) -> list[str]:
    """The table of the rows of all seeds."""
    heads = ["", "decoding", "return", "published", *FIGURES]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for same in zip(*seeds, strict=True):
        name, decoding = same[0]["name"], same[0]["decoding"]
        cells = [name, decoding, interval([entry["return"] for entry in same])]
        cells.append(str(world.published.get(name, "")))
        for column, form in FIGURES.items():
            known = [entry[column] for entry in same if entry[column] is not None]
            cells.append(form.format(np.mean(known)) if known else "")
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", world.note]


def append(name: str, options: argparse.Namespace, lines: Sequence[str]) -> None:
    """Adds a table to RESULTS_ARCHIVE.md, with what it takes to make it again."""
    revision = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(revision, cwd=ROOT, capture_output=True, text=True, check=True)
    command = f"python benchmarks/lmrl.py --worlds {name}"
    command += f" --seeds {' '.join(map(str, options.seeds))}"
    if options.methods != list(NAMES):
        command += f" --methods {' '.join(options.methods)}"
    if name == "wordle" and options.word_list:
        command += f" --word-list {Path(options.word_list).name}"
    heading = f"## LMRL-Gym, {name.replace('_', ', ')}, {datetime.date.today()}"
    about = f"Commit {commit.stdout.strip()}, `{command}`, one process."
    with open(ROOT / "benchmarks" / "RESULTS_ARCHIVE.md", "a", encoding="utf-8") as file:
        file.write("\n".join(["", heading, "", about, "", *lines, ""]))


if __name__ == "__main__":
    main()
