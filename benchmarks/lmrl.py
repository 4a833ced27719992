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
- bump, revisit, loop: see `lactchain.data.movement`; unparseable: completions that name no action.

With --write the tables are appended to benchmarks/RESULTS_ARCHIVE.md.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml
from measuring import ROOT, append_section, command_line, markdown, shown, summary, words

from lactchain.data.sources import read_trajectories
from lactchain.environments.exact import shortest_paths
from lactchain.types import Trajectory
from lactchain_extras.maze import MazeTables

NAMES = {
    "bc": "BC", "filtered_bc": "%BC", "policy": "BC of final completions", "mc": "MC",
    "ilql": "ILQL", "simpo": "critic, SimPO",
}  # fmt: skip
SHARES = ("se", "success", "move accuracy", "bump", "revisit", "loop")
FIGURES = dict.fromkeys(SHARES, "{:.3f}") | {"unparseable": "{:.4f}"}
"""Columns that are means over seeds, and how they are written."""


@dataclass(frozen=True)
class World:
    """What the configurations do not say.

    Attributes:
        base: name of the configuration of the untrained models.
        data: name of the configuration of the behaviour data.
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
    filtered: Mapping[str, object]
    betas: Sequence[int]
    num_games: tuple[int, int]
    published: Mapping[str, float]
    note: str
    policy: Mapping[str, object] | None = None


MAZE = World(
    "maze_tiny",
    "maze",
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
        note="Best in LMRL-Gym's data -25.75.",
    ),
    "wordle": World(
        "wordle_tiny",
        "wordle_clues",
        filtered={"best_fraction": 0.3},
        betas=(4, 8, 16),
        num_games=(2048, 2048),
        published={"BC": -2.81, "%BC": -2.85, "MC": -2.16, "ILQL": -2.04},
        note="With LMRL-Gym's 431 words, exact: best play -1.900, consistent random -2.375. Its "
        "own: greedy information gain -1.957, consistent random -2.36, behaviour data -4.12.",
        policy={
            "only_successes": True, "only_final_completions": True, "training.num_epochs": 3,
            "training.max_steps": -1, "training.batch_size": 64, "training.learning_rate": 0.003,
            "training.extra": {"adam_beta2": 0.99},
        },
    ),
}  # fmt: skip


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS), choices=WORLDS)
    parser.add_argument("--methods", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--word-list", help="file of Wordle's words; by default the shipped one")
    parser.add_argument("--folder", default="runs/lmrl", help="where the runs go")
    parser.add_argument("--write", action="store_true", help="append to RESULTS_ARCHIVE.md")
    options = parser.parse_args()
    for name in options.worlds:
        word_list = options.word_list if name == "wordle" else None
        runs = [Runs(name, Path(options.folder), seed, word_list) for seed in options.seeds]
        lines = table([list(rows(run, options.methods)) for run in runs], WORLDS[name])
        sys.stdout.write("\n".join(["", f"# {name}", "", *lines, ""]))
        if options.write:
            append_section(f"LMRL-Gym, {name.replace('_', ', ')}", lines)


class Runs:
    """The run folders of one world and seed, each made when it is asked for."""

    def __init__(self, name: str, folder: Path, seed: int, word_list: str | None) -> None:
        self.name, self.world, self.seed = name, WORLDS[name], seed
        own = f"_{Path(word_list).stem}" if word_list else ""  # each list has runs of its own
        self.folder = folder.absolute() / f"{name}{own}" / str(seed)
        self._words = {"environment.kwargs.words": Path(word_list).absolute()} if word_list else {}

    def data(self) -> Path:
        """The behaviour data."""
        return self._stage("make_offline_data", "data", {}, config=self.world.data)

    def base(self) -> Path:
        """The untrained model."""
        folder = self.folder / "base"
        if not (folder / "tiny-encoder" / "manifest.json").exists():
            settings = {"folder": folder, "seed": self.seed}
            self._launch("prepare_weights", self.world.base, settings)
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
            self._launch(script, config or f"{self.name}_tiny", own | settings)
        return run_dir

    def _launch(self, script: str, config: str, settings: Mapping[str, object]) -> None:
        command = [sys.executable, f"scripts/{script}.py"]
        command += ["--config", f"configs/{script}/{config}.yaml"]
        subprocess.run([*command, *words(self._words | settings)], cwd=ROOT, check=True)


def rows(runs: Runs, methods: Sequence[str]) -> Iterator[dict]:
    """The rows of one seed: the data, then each method under each decoding."""
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
        actor = summary(trained)["actor"]
        template = yaml.safe_load((trained / "config.yaml").read_text())["environment"]["template"]
    for decoding, free in (("free", True), ("constrained", False)):
        settings = actor | {"values": None, "decoding": decoding}
        folder = runs.evaluation(f"{method}_{decoding}", free, settings, template)
        yield row(NAMES[method], "free" if free else "greedy", folder)


def value_rows(runs: Runs, method: str) -> Iterator[dict]:
    """The rows of values beside the cloned policy, over beta, and of ranked completions."""
    trained = runs.values(method)
    actor = {"model": runs.cloned(runs.beside) / "actor", "values": trained / "values"}
    for beta in runs.world.betas:
        settings = actor | {"decoding": "free", "value_weight": beta}
        folder = runs.evaluation(f"{method}_free_{beta}", True, settings)
        yield row(NAMES[method], f"free, β {beta}", folder)
    folder = runs.evaluation(f"{method}_scored", False, actor | {"decoding": "scored"})
    yield row(NAMES[method], "scored", folder)


def row(name: str, decoding: str, folder: Path) -> dict:
    """One line of the table for one seed, from the run folder of the episodes."""
    told = {key.removeprefix("rollout/"): value for key, value in summary(folder).items()}
    trajectories = read_trajectories(folder / "trajectories")
    returns = np.array([trajectory.episode_return for trajectory in trajectories])
    cells = trajectories[0].env_id == "lactchain/Maze-v0"
    return {
        "name": name,
        "decoding": decoding,
        "return": returns.mean(),
        "se": returns.std() / len(returns) ** 0.5,
        "success": told["success_rate"],
        "move accuracy": move_accuracy(trajectories) if cells else None,
        "bump": told["bump_rate"],
        "revisit": told["revisit_rate"],
        "loop": told["loop_rate"],
        "unparseable": told["invalid_rate"],
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


def table(seeds: Sequence[Sequence[dict]], world: World) -> list[str]:
    """The table of the rows of all seeds."""
    lines = []
    for same in zip(*seeds, strict=True):
        name = same[0]["name"]
        returns = shown([entry["return"] for entry in same], "{:.2f}")
        cells = [name, same[0]["decoding"], returns, world.published.get(name, "")]
        for column, form in FIGURES.items():
            known = [entry[column] for entry in same if entry[column] is not None]
            cells.append(form.format(np.mean(known)) if known else "")
        lines.append(cells)
    return [*markdown(["", "decoding", "return", "published", *FIGURES], lines), "", world.note]


if __name__ == "__main__":
    main()
