"""A run folder as it lies on disk, read when asked for; of what is not there yet, nothing.

Folders inside with an environment.json of their own are runs too: the stages of a pipeline. What
runs have saved is opened by its folder alone: policies, critics, values, agents. `DataError` says
which folder has nothing of the kind, or what in it is damaged.
"""

import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lactchain import plugins
from lactchain.config.settings import EnvironmentConfig, known_fields
from lactchain.data import evaluations
from lactchain.data.preferences import read_pairs
from lactchain.data.sources import read_trajectories
from lactchain.environments.language import LanguageEnv, make_language_env
from lactchain.environments.registry import module_of, not_imported
from lactchain.errors import ConfigError, DataError, LactChainError
from lactchain.inspection.pictures import Picture
from lactchain.runs.folder import is_locked
from lactchain.runs.run import read_metrics, read_summary
from lactchain.storage.files import check_types, read_json, read_json_lines
from lactchain.storage.manifests import RUN_FILE, is_run, read_run_file, result_of
from lactchain.types import PreferencePair, Trajectory

if TYPE_CHECKING:
    from lactchain.models.actor import LanguageActor
    from lactchain.models.critic import EmbeddingCritic

log = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True)
class RunView:
    """What one run folder holds, and the models in it. Files are read once, at first use.

    The rounds of a pipeline are counted from 1; 0 is what stood before the first one.
    """

    directory: Path

    @cached_property
    def _facts(self) -> dict[str, Any]:
        return read_run_file(self.directory)

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        return self._facts.get("config", {})

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, device, commit, and what the run has read."""
        return {name: fact for name, fact in self._facts.items() if name != "config"}

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """The final numbers; None while the run is unfinished."""
        return read_summary(self.directory) if (self.directory / "summary.json").exists() else None

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The records of `metrics.jsonl`, in the order they were written."""
        return read_metrics(self.directory)

    @cached_property
    def trajectories(self) -> list[Trajectory]:
        """The episodes in `trajectories/`."""
        return self._read_rows("trajectories", read_trajectories)

    @cached_property
    def pairs(self) -> list[PreferencePair]:
        """The preference pairs in `pairs/`; of a pipeline those of all rounds, one by one."""
        of_rounds = [pair for stage in self.stages.values() for pair in stage.pairs]
        return of_rounds or self._read_rows("pairs", read_pairs)

    @cached_property
    def pairs_after(self) -> dict[int, tuple[float, float]]:
        """How probable the training has left the first pairs: log-probabilities by their place."""
        return self._read("pairs_after.json", evaluations.read_pairs_after) or {}

    @cached_property
    def values(self) -> evaluations.StateValues | None:
        """The critic's values beside the exact ones."""
        return self._read("values.json", evaluations.read_values)

    @cached_property
    def episodes(self) -> dict[str, list[evaluations.EpisodeResult]]:
        """Evaluations by name: "before" and "after" training, those that there are."""
        names = {"before": "episodes_before.json", "after": "episodes.json"}
        found = {name: self._read(file, evaluations.read_episodes) for name, file in names.items()}
        return {name: results for name, results in found.items() if results is not None}

    @cached_property
    def sizes(self) -> dict[str, Any]:
        """Of a pipeline, `settings` that followed from its world, and `why` each is this one."""
        found = self._read("sizes.json", read_json) or {"settings": {}, "why": {}}
        if any(not isinstance(found.get(name), dict) for name in ("settings", "why")):
            raise DataError(f"{self.directory / 'sizes.json'}: expected settings, and why")
        return found

    @cached_property
    def stages(self) -> "dict[str, RunView]":
        """The runs inside this one by relative path, in the order they were started."""
        inside = sorted({f.parent for f in self.directory.rglob(RUN_FILE)} - {self.directory})
        stages = {f.relative_to(self.directory).as_posix(): RunView(f) for f in inside}
        begun = {n: next(iter(v.metrics), {}).get("time", math.inf) for n, v in stages.items()}
        order = sorted(stages, key=lambda name: (begun[name], round_of(name) or 0, name))
        return {name: stages[name] for name in order}

    @property
    def parts(self) -> "dict[str, RunView]":
        """The run itself, under an empty name, and its stages."""
        return {"": self, **self.stages}

    @property
    def evaluated(self) -> "dict[int, RunView]":
        """The evaluation of each round; what is played to compare rounds (`selection`) is none."""
        named = {
            round_of(n): stage for n, stage in self.stages.items() if n.endswith("/evaluation")
        }
        return {number: stage for number, stage in named.items() if number is not None}

    @cached_property
    def results(self) -> dict[int | None, list[evaluations.EpisodeResult]]:
        """How each episode of the evaluations went, by round; of a run without rounds, under None.

        Where there are only those before and after training, these are rounds 0 and 1.
        """
        played = {number: stage.episodes for number, stage in self.evaluated.items()}
        rounds = {number: found["after"] for number, found in played.items() if "after" in found}
        if rounds or "after" not in self.episodes:
            return rounds
        names = {0: "before", 1: "after"} if "before" in self.episodes else {None: "after"}
        return {number: self.episodes[name] for number, name in names.items()}

    @cached_property
    def lineage(self) -> list[dict[str, Any]]:
        """The members of a search; empty where it was none."""
        return self._read("lineage.jsonl", read_json_lines) or []

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.directory.resolve().name

    @property
    def state(self) -> str:
        """Whether the run is "finished", "under way" or "stopped": nobody works in its folder."""
        if (self.directory / "summary.json").exists():  # now, whatever was read before
            return "finished"
        return "under way" if is_locked(self.directory) else "stopped"

    @property
    def minutes(self) -> float | None:
        """Of all its starts, by its own clock; of what no run of ours wrote, by its records."""
        times = [record["time"] for record in self.metrics if "time" in record]
        between = times[-1] - times[0] if len(times) > 1 else None
        seconds = self.environment.get("worked", {}).get("wall_seconds", between)
        return None if seconds is None else seconds / 60

    @cached_property
    def world(self) -> Mapping[str, Any]:
        """The settings of the environment that was played; empty where there was none."""
        # Those of a stage come first: a pipeline's own may leave numbers open.
        views = [*self.stages.values(), self]
        found = next(filter(None, (_find(view.config, "environment") for view in views)), {})
        return {name: value for name, value in found.items() if value is not None}

    @cached_property
    def env(self) -> LanguageEnv | None:
        """The world that was played in, in words; None of a world that is not here.

        A world of somebody else's is not imported: Python has its module, or the command names it.
        """
        module = module_of(str(self.world.get("id", "")))
        if missing := not_imported({*self.environment.get("imports", []), module} - {""}):
            names = ",".join(missing)
            log.warning("%s: shown without its world; add --import %s", self.directory, names)
            return None
        try:
            known = known_fields(EnvironmentConfig, self.world)
            known.pop("held_back", None)  # of practice alone: the world is the same
            check_types(EnvironmentConfig, known)
            return make_language_env(EnvironmentConfig(**known))
        except (LactChainError, MemoryError, TypeError, ValueError) as error:
            log.warning("%s: shown without its world (%s)", self.directory, error)
            return None

    @property
    def picture(self) -> Picture | None:
        """What that world shows of its states; None where it shows nothing."""
        return None if self.env is None else self.env.view.picture

    @cached_property
    def inspections(self) -> dict[int, Any]:
        """What each round has recorded of its answers, by its number; a damaged record is none."""
        return plugins.required("inspections", "inspections").of_rounds(self)

    @property
    def figures(self) -> dict[str, Any]:
        """The plain figures of the summary."""
        summary = self.summary or {}
        return {k: value for k, value in summary.items() if not isinstance(value, Mapping | list)}

    def curves(self) -> dict[str, tuple[list[float], list[float]]]:
        """Each metric that is a number, over its steps: key → (steps, values).

        A step that was logged twice, before and after a restart, counts as last logged.
        """
        points: dict[str, dict[float, float]] = {}
        for record in self.metrics:
            for key, value in record.items():
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                if key not in ("step", "time") and (is_number or value is None):
                    number = float(value) if is_number else math.nan
                    points.setdefault(key, {})[record["step"]] = number
        return {key: (list(curve), list(curve.values())) for key, curve in points.items()}

    def frames(self) -> dict[str, Any]:
        """The tables that the explorer shows, as pandas data frames by their names."""
        return plugins.required("frames", "frames")(self)

    def actor(self, number: int | None = None, **changes: Any) -> "LanguageActor":
        """The actor that the run made, or the one that stood after a round of it.

        Args:
            number: of the round; None: that of the result.
            changes: fields of `GuidedActorConfig` that shall differ, such as `temperature=0.0`.

        Raises:
            DataError: there is none, it is damaged, or it was given to the run.
        """
        stage = "warm_start" if number == 0 else f"round_{number}/simpo"
        return load_policy(self._folder(number, stage), **changes)

    def critic(self, number: int | None = None) -> "EmbeddingCritic":
        """The critic of the run, or that of a round; `DataError` as for the actor."""
        return load_critic(self._folder(number, f"round_{number}/critic"))

    def _folder(self, number: int | None, stage: str) -> Path:
        """The folder of the run, or that of a stage of a round."""
        folder = self.directory if number is None else self.directory / stage
        if number is not None and not folder.is_dir():
            raise DataError(
                f"round: expected one of {self.directory} that made such a model, got {number};"
                " what was given to a run lies where it was"
            )
        return folder

    def _read(self, name: str, read: Callable[[Path], Result]) -> Result | None:
        """What is in a file; None where there is none."""
        path = self.directory / name
        return read(path) if path.exists() else None

    def _read_rows(self, name: str, read: Callable[[Path], list[Result]]) -> list[Result]:
        """What is in a folder of parquet files: of an unfinished run in those that are there."""
        path = self.directory / name
        is_whole = self.summary is not None and any(path.glob("*.manifest"))
        files = [path] if is_whole else sorted(path.glob("*.parquet"))
        return [row for file in files for row in read(file)]

    def _repr_html_(self) -> str | None:
        explore = plugins.add_on("explore")
        return explore(self)._repr_html_() if explore else None


def open_run(path: str | Path | RunView) -> RunView:
    """A run folder to look into; `ConfigError` where it is none."""
    if isinstance(path, RunView):
        return path
    directory = Path(path)
    if not is_run(directory):
        found = f"found no {RUN_FILE} in it" if directory.is_dir() else "there is no such folder"
        raise ConfigError(f"{directory}: expected a run folder, {found}")
    return RunView(directory)


def load_policy(path: str | Path, **changes: Any) -> "LanguageActor":
    """The actor in a folder, or that of a run, asked and sampled as in its training.

    Args:
        path: such as runs/x/actor, or runs/x.
        changes: fields of `GuidedActorConfig` that shall differ, such as `decoding="constrained"`.

    Raises:
        DataError: there is none, it is damaged, or nothing says how it is asked.
    """
    from lactchain.models.actor import LanguageActor

    return LanguageActor.load(result_of(path, "actor"), **changes)


def load_critic(path: str | Path) -> "EmbeddingCritic":
    """The critic in a folder, or that of a run."""
    from lactchain.models.critic import EmbeddingCritic

    return EmbeddingCritic.load(result_of(path, "critic"))


def load_values(path: str | Path) -> Any:
    """The values of tokens in a folder, or those of a run."""
    return plugins.required("values", "load_values").ValueModel.load(result_of(path, "values"))


def load_agent(path: str | Path) -> Any:
    """The classic agent in a folder, or the best one of a run."""
    from lactchain.baselines import training

    return training.read_agent(result_of(path, "best"))


def round_of(stage: str) -> int | None:
    """The round that a stage belongs to, by its name; None where it belongs to none."""
    found = re.match(r"round_(\d+)(/|$)", stage)
    return int(found[1]) if found else None


def _find(settings: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The first mapping of that name, at whatever depth: a pipeline holds its stages' settings."""
    if isinstance(settings.get(name), Mapping):
        return settings[name]
    nested = (_find(value, name) for value in settings.values() if isinstance(value, Mapping))
    return next((found for found in nested if found is not None), None)
