"""A run folder as it lies on disk, read when asked for; of what is not there yet, nothing.

Folders inside with a config.yaml of their own are runs too: the stages of a pipeline.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import starmap
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
from lactchain.data.preferences import chain_advantages, read_pairs
from lactchain.data.trajectories import read_trajectories
from lactchain.environments.language import language_env
from lactchain.environments.views import State
from lactchain.errors import ConfigError, DataError
from lactchain.files import read_json
from lactchain.inspection.markup import Markup, escape, parts
from lactchain.inspection.pictures import Picture
from lactchain.run import read_metrics
from lactchain.types import PreferencePair, Trajectory

Result = TypeVar("Result")


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
        return load(self.directory / "config.yaml")

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Versions, device, commit; empty where there is no record."""
        return self._read("environment.json", read_json) or {}

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """The final numbers; None while the run is unfinished."""
        return self._read("summary.json", read_json)

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The records of `metrics.jsonl`, in the order they were written."""
        return read_metrics(self.directory)

    @cached_property
    def trajectories(self) -> list[Trajectory]:
        """The episodes in `trajectories/`."""
        return self._read("trajectories", read_trajectories) or []

    @cached_property
    def pairs(self) -> list[PreferencePair]:
        """The preference pairs in `pairs/`."""
        return self._read("pairs", read_pairs) or []

    @cached_property
    def values(self) -> StateValues | None:
        """The critic's values beside the exact ones."""
        return self._read("values.json", read_values)

    @cached_property
    def completion_values(self) -> CompletionValues | None:
        """What each completion to each state is worth to a value model."""
        return self._read("completion_values.json", partial(read_values, kind=CompletionValues))

    @cached_property
    def episodes(self) -> dict[str, list[EpisodeResult]]:
        """Evaluations by name: "before" and "after" training, those that there are."""
        names = {"before": "episodes_before.json", "after": "episodes.json"}
        found = {name: self._read(file, read_episodes) for name, file in names.items()}
        return {name: results for name, results in found.items() if results is not None}

    @cached_property
    def stages(self) -> dict[str, RunView]:
        """The runs inside this one by relative path, in the order they were started."""
        folders = (path.parent for path in self.directory.rglob("config.yaml"))
        views = [RunView(folder) for folder in folders if folder != self.directory]
        views.sort(key=lambda view: (view.started, _natural_order(str(view.directory))))
        return {view.directory.relative_to(self.directory).as_posix(): view for view in views}

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
        """From the first record to the last; None before there is one."""
        times = [record["time"] for record in self.metrics if "time" in record]
        return (times[-1] - times[0]) / 60 if times else None

    @property
    def started(self) -> float:
        """Time of the first record, in seconds since 1970; infinite before there is one."""
        return self.metrics[0].get("time", math.inf) if self.metrics else math.inf

    @cached_property
    def picture(self) -> Picture:
        """What the world that was played in draws of itself; of a world that is not here, nothing.

        A world of somebody else's is imported if its id names the module, `module:id`, as it was
        when the run was made.
        """
        settings = _find(self.config, "environment") or {}
        try:
            view = language_env(str(settings.get("id")), settings.get("kwargs")).view
        except (ConfigError, DataError):
            return Picture()
        return view.picture or Picture()

    def newest(self, attribute: str) -> tuple[str, Any]:
        """What this run holds under a name, else the last stage that has any, and that stage."""
        for name, view in (("", self), *reversed(self.stages.items())):
            if getattr(view, attribute):
                return name, getattr(view, attribute)
        return "", getattr(self, attribute)

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
        """What is in a file, or in a folder of parquet files; None where there is none."""
        path = self.directory / name
        found = any(path.glob("*.parquet")) if path.is_dir() else path.exists()
        return read(path) if found else None

    def _repr_html_(self) -> str:
        heading = Markup("<b>{} ({})</b>").format(escape(self.directory), self.state)
        facts = {
            "records": len(self.metrics),
            "episodes": len(self.trajectories),
            "pairs": len(self.pairs),
            "stages": ", ".join(self.stages) or None,
        }
        return str(parts.notebook(heading + parts.fields({**facts, **(self.summary or {})})))


@dataclass(frozen=True)
class ChainRecord:
    """One chain of an episode as people look at it.

    Attributes:
        text: the completion.
        reward: undiscounted reward of the chain.
        value: the critic's value of the state before; None where it is unknown.
        advantage: reward and what followed, or what the completion promised, less that value; None
            where it is unknown.
        note: what went wrong (bumps, why the completion was rejected), or empty.
    """

    text: str
    reward: float
    value: float | None
    advantage: float | None
    note: str

    @property
    def q(self) -> float | None:
        """What the completion is worth in the state before; None where it is unknown."""
        return None if self.advantage is None else self.value + self.advantage


def open_run(path: str | Path) -> RunView:
    """A run folder to look into; `ConfigError` where it is none."""
    directory = Path(path)
    if not (directory / "config.yaml").is_file():
        raise ConfigError(f"{directory}: expected a run folder, found no config.yaml in it")
    return RunView(directory)


def chain_records(
    trajectory: Trajectory,
    values: StateValues | None = None,
    completion_values: CompletionValues | None = None,
) -> list[ChainRecord]:
    """The chains of an episode, and what each is worth where the state is known.

    By a value model, that is by the completion alone, or else by a critic, that is by what
    followed.
    """
    keys = [_key(info.get("state")) for info in trajectory.infos]
    worth: list[float | None] = [None] * len(keys)
    advantages: list[float | None] = [None] * len(trajectory)
    if completion_values is not None:
        worth = _look_up(keys, completion_values.states, completion_values.values)
        advantages = _promised(trajectory, keys, completion_values)
    elif values is not None:
        worth = _look_up(keys, values.states, values.critic)
        advantages = _earned(trajectory, worth, values)
    notes = map(_note, trajectory.infos[1:])
    said = [action.text for action in trajectory.actions]
    columns = zip(said, trajectory.rewards, worth[:-1], advantages, notes, strict=True)
    return list(starmap(ChainRecord, columns))


def _look_up(keys: Sequence[str], states: Sequence[State], entries: Sequence[Any]) -> list[Any]:
    """The entry of each state by its key; None where it is none of the states."""
    known = dict(zip(map(_key, states), entries, strict=True))
    return [known.get(key) for key in keys]


def _promised(
    trajectory: Trajectory, keys: Sequence[str], values: CompletionValues
) -> list[float | None]:
    """The advantage of each completion of an episode, by the completion alone."""
    places = {completion.rstrip("\n"): place for place, completion in enumerate(values.completions)}
    said = (places.get(action.text.rstrip("\n")) for action in trajectory.actions)
    rows = _look_up(keys, values.states, values.advantages)
    return [
        None if row is None or place is None else row[place]
        for row, place in zip(rows, said, strict=False)
    ]


def _earned(
    trajectory: Trajectory, worth: Sequence[float | None], values: StateValues
) -> list[float | None]:
    """The advantage of each completion of an episode, by what followed."""
    rewards = trajectory.chain_rewards(values.gamma, values.discount_per)
    ended = [t == len(trajectory) and trajectory.terminated for t in range(len(worth))]
    after = [0.0 if end else value for end, value in zip(ended, worth, strict=True)][1:]
    return [
        None
        if None in (value, next_value)
        else float(
            chain_advantages(r, k, value, next_value, False, values.gamma, values.discount_per)
        )
        for r, k, value, next_value in zip(
            rewards, trajectory.num_actions, worth[:-1], after, strict=True
        )
    ]


def _note(info: Mapping[str, Any]) -> str:
    bumps = sum(info.get("bumped", ()))
    rejected = f"not a chain: {info.get('invalid_reason')}" if info.get("invalid_action") else ""
    return rejected or (f"{bumps} bump{'s' if bumps > 1 else ''}" if bumps else "")


def _key(state: Mapping[str, Any] | None) -> str:
    return json.dumps(state, sort_keys=True)


def _find(settings: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The first mapping of that name, at whatever depth: a pipeline holds its stages' settings."""
    if isinstance(settings.get(name), Mapping):
        return settings[name]
    nested = (_find(value, name) for value in settings.values() if isinstance(value, Mapping))
    return next((found for found in nested if found is not None), None)


def _natural_order(text: str) -> list[Any]:
    """So that round_10 comes after round_9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]
