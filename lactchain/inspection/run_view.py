"""A run folder as it lies on disk, read when asked for; of what is not there yet, nothing.

Folders inside with a config.yaml of their own are runs too: the stages of a pipeline.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from lactchain.config import load
from lactchain.data.evaluations import (
    CompletionValues,
    EpisodeResult,
    StateValues,
    read_episodes,
    read_values,
)
from lactchain.data.inspections import Inspection, is_inspection, read_inspection
from lactchain.data.preferences import read_pairs
from lactchain.data.trajectories import read_trajectories
from lactchain.data.valued_tokens import FOLDER, ValuedTokens, read_valued_tokens
from lactchain.environments.language import LanguageEnv, make_language_env
from lactchain.environments.registry import module_of, not_imported
from lactchain.errors import ConfigError, DataError
from lactchain.files import read_json_lines
from lactchain.inspection.pictures import Picture
from lactchain.manifests import RUN_FILE, describe, read_run_file
from lactchain.run import read_metrics, read_summary
from lactchain.settings import EnvironmentConfig, known_fields
from lactchain.types import PreferencePair, Trajectory

log = logging.getLogger(__name__)

Result = TypeVar("Result")
FIRST_ROUND = ("critic_r2", "critic_rmse", "critic_rho", "rollouts_per_second")
"""Figures in the summary of a pipeline that its first round has measured."""


@dataclass(frozen=True)
class RunView:
    """What one run folder holds. Everything is read once, at first use.

    Attributes:
        directory: the folder.
    """

    directory: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        file = self.directory / "config.yaml"
        described = self.environment.get("config")  # older versions of the project wrote none
        found = describe(file.read_bytes()) if file.is_file() else None
        if described is not None and found != described:
            raise DataError(
                f"{file}: changed since the run wrote it; put a copy back, or give the command of "
                "the run again, which writes it anew"
            )
        return load(file)

    @property
    def is_described(self) -> bool:
        """Whether `environment.json` vouches for the settings; older versions did not."""
        return "config" in self.environment

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Versions, device, commit; empty where there is no record."""
        return read_run_file(self.directory) if (self.directory / RUN_FILE).exists() else {}

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
        """The preference pairs in `pairs/`."""
        return self._read_rows("pairs", read_pairs)

    @cached_property
    def values(self) -> StateValues | None:
        """The critic's values beside the exact ones."""
        return self._read("values.json", read_values)

    @cached_property
    def completion_values(self) -> CompletionValues | None:
        """What each completion to each state is worth to a value model."""
        return self._read("completion_values.json", partial(read_values, kind=CompletionValues))

    @cached_property
    def token_values(self) -> ValuedTokens | None:
        """What a value model makes of a few episodes' tokens; of a damaged record, None."""
        folder = self.directory / FOLDER
        return read_valued_tokens(folder) if is_inspection(folder) else None

    @cached_property
    def episodes(self) -> dict[str, list[EpisodeResult]]:
        """Evaluations by name: "before" and "after" training, those that there are."""
        names = {"before": "episodes_before.json", "after": "episodes.json"}
        found = {name: self._read(file, read_episodes) for name, file in names.items()}
        return {name: results for name, results in found.items() if results is not None}

    @cached_property
    def stages(self) -> dict[str, RunView]:
        """The runs inside this one by relative path, in the order they were started."""
        names = ("config.yaml", RUN_FILE)  # one of which may have been lost
        folders = {path.parent for name in names for path in self.directory.rglob(name)}
        views = [RunView(folder) for folder in folders if folder != self.directory]
        views = [v for v in views if (v.directory / "config.yaml").is_file() or v.is_described]
        views.sort(key=lambda view: (view.started, _natural_order(str(view.directory))))
        return {view.directory.relative_to(self.directory).as_posix(): view for view in views}

    @cached_property
    def results(self) -> dict[int | None, list[EpisodeResult]]:
        """How each episode of the evaluations went, by round; of a run without rounds, under None.

        Where only the figures before and after training are there, these are rounds 0 and 1.
        """
        rounds = {
            round_of(name): stage.episodes["after"]
            for name, stage in self.stages.items()
            if "after" in stage.episodes and round_of(name) is not None
        }
        if rounds or "after" not in self.episodes:
            return rounds
        if "before" in self.episodes:
            return {0: self.episodes["before"], 1: self.episodes["after"]}
        return {None: self.episodes["after"]}

    @cached_property
    def lineage(self) -> list[dict[str, Any]]:
        """The members, or the trials, of a search; empty where it was none."""
        return self._read("lineage.jsonl", read_json_lines) or (
            self._read("trials.jsonl", read_json_lines) or []
        )

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.directory.resolve().name

    @property
    def state(self) -> str:
        """Whether the run is "finished" or "unfinished"."""
        return "unfinished" if self.summary is None else "finished"

    @property
    def minutes(self) -> float | None:
        """By its own clock, or else from the first record to the last; None of fewer than two."""
        seconds = (self.summary or {}).get("wall_seconds")
        times = [record["time"] for record in self.metrics if "time" in record]
        if seconds is None and len(times) > 1:
            seconds = times[-1] - times[0]
        return None if seconds is None else seconds / 60

    @property
    def started(self) -> float:
        """Time of the first record, in seconds since 1970; infinite before there is one."""
        return self.metrics[0].get("time", math.inf) if self.metrics else math.inf

    @cached_property
    def world(self) -> Mapping[str, Any]:
        """The settings of the environment that was played; empty where there was none.

        Those of a stage come first: a pipeline's own may leave numbers open.
        """
        configs = [*(stage.config for stage in self.stages.values()), self.config]
        found = next(filter(None, (_find(config, "environment") for config in configs)), {})
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
            return make_language_env(
                EnvironmentConfig(**known_fields(EnvironmentConfig, self.world))
            )
        except (ConfigError, DataError, TypeError, ValueError):
            return None

    @property
    def picture(self) -> Picture | None:
        """What that world shows of its states; None where it shows nothing."""
        return None if self.env is None else self.env.view.picture

    @cached_property
    def inspections(self) -> dict[int, Inspection]:
        """What each round has recorded of its answers, by its number; a damaged record is none."""
        folders = self.directory.glob("round_*/inspection")
        numbers = {round_of(folder.parent.name): folder for folder in folders}
        known = sorted(number for number in numbers if number is not None)
        whole = {n: numbers[n] for n in known if is_inspection(numbers[n])}
        return {number: read_inspection(folder) for number, folder in whole.items()}

    def newest(self, attribute: str) -> tuple[str, Any]:
        """What this run holds under a name, else the last stage that has any, and that stage."""
        for name, view in (("", self), *reversed(self.stages.items())):
            if getattr(view, attribute):
                return name, getattr(view, attribute)
        return "", getattr(self, attribute)

    @property
    def figures(self) -> dict[str, Any]:
        """The plain figures of the summary; of a pipeline those of its first round say so."""
        summary = self.summary or {}
        first = FIRST_ROUND if "rounds" in summary else ()
        return {
            f"{name}, round 1" if name in first else name: value
            for name, value in summary.items()
            if not isinstance(value, Mapping | list)
        }

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

    def _read(self, name: str, read: Callable[[Path], Result]) -> Result | None:
        """What is in a file; None where there is none."""
        path = self.directory / name
        return read(path) if path.exists() else None

    def _read_rows(self, name: str, read: Callable[[Path], list[Result]]) -> list[Result]:
        """What is in a folder of parquet files: of an unfinished run in those that are there."""
        path = self.directory / name
        files = sorted(path.glob("*.parquet"))
        if self.summary is not None and any(path.glob("*.manifest")):
            return read(path)
        return [row for file in files for row in read(file)]

    def _repr_html_(self) -> str:
        from lactchain.inspection.report import framed, render

        return framed(render(self))


def open_run(path: str | Path) -> RunView:
    """A run folder to look into; `ConfigError` where it is none."""
    directory = Path(path)
    if not (directory / "config.yaml").is_file():
        raise ConfigError(f"{directory}: expected a run folder, found no config.yaml in it")
    return RunView(directory)


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


def _natural_order(text: str) -> list[Any]:
    """So that round_10 comes after round_9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]
