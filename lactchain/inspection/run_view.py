"""A run folder as it lies on disk, read when asked for; of what is not there yet, nothing.

| file | |
|---|---|
| config.yaml, environment.json | what was run, and where |
| metrics.jsonl, summary.json | curves, and the final numbers |
| trajectories/*.parquet, pairs/*.parquet | episodes and preference pairs |
| values.json | the critic's values beside the exact ones (`lactchain.data.evaluations`) |
| answer_values.json | what each answer to each state is worth to a value model |
| episodes.json, episodes_before.json | evaluation after and before training |

Folders inside with a config.yaml of their own are runs too: the stages of a pipeline.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lactchain.config import load
from lactchain.data.evaluations import (
    AnswerValues,
    EpisodeResult,
    StateValues,
    read_answer_values,
    read_episodes,
    read_values,
)
from lactchain.data.preferences import chain_advantages, read_pairs
from lactchain.data.trajectories import read_trajectories
from lactchain.environments.language import language_env
from lactchain.environments.pictures import Picture
from lactchain.errors import ConfigError, DataError
from lactchain.files import read_json
from lactchain.inspection.markup import Markup, escape, parts
from lactchain.run import read_metrics
from lactchain.types import PreferencePair, Trajectory


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
        return self._json("environment.json") or {}

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """The final numbers; None while the run is unfinished."""
        return self._json("summary.json")

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The records of `metrics.jsonl`, in the order they were written."""
        return read_metrics(self.directory)

    @cached_property
    def trajectories(self) -> list[Trajectory]:
        """The episodes in `trajectories/`."""
        folder = self.directory / "trajectories"
        return read_trajectories(folder) if any(folder.glob("*.parquet")) else []

    @cached_property
    def pairs(self) -> list[PreferencePair]:
        """The preference pairs in `pairs/`."""
        folder = self.directory / "pairs"
        return read_pairs(folder) if any(folder.glob("*.parquet")) else []

    @cached_property
    def values(self) -> StateValues | None:
        """The critic's values beside the exact ones."""
        path = self.directory / "values.json"
        return read_values(path) if path.exists() else None

    @cached_property
    def answer_values(self) -> AnswerValues | None:
        """What each answer to each state is worth to a value model."""
        path = self.directory / "answer_values.json"
        return read_answer_values(path) if path.exists() else None

    @cached_property
    def episodes(self) -> dict[str, list[EpisodeResult]]:
        """Evaluations by name: "before" and "after" training, those that there are."""
        names = {"before": "episodes_before.json", "after": "episodes.json"}
        paths = {name: self.directory / file for name, file in names.items()}
        return {name: read_episodes(path) for name, path in paths.items() if path.exists()}

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
        """What this run holds, else what the last stage with any holds, and that stage's name.

        Args:
            attribute: "values", "answer_values", "trajectories", "pairs" or "episodes".
        """
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

    def _json(self, name: str) -> dict[str, Any] | None:
        path = self.directory / name
        return read_json(path) if path.exists() else None

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
        text: the answer.
        reward: undiscounted reward of the chain.
        value: the critic's value of the state before; None where it is unknown.
        advantage: reward and what followed, or what the answer promised, less that value; None
            where it is unknown.
        note: what went wrong (bumps, why the answer was rejected), or empty.
    """

    text: str
    reward: float
    value: float | None
    advantage: float | None
    note: str

    @property
    def q(self) -> float | None:
        """What the answer is worth in the state before; None where it is unknown."""
        return None if self.advantage is None else self.value + self.advantage


def open_run(path: str | Path) -> RunView:
    """A run folder to look into.

    Raises:
        ConfigError: when it is not one.
    """
    directory = Path(path)
    if not (directory / "config.yaml").is_file():
        raise ConfigError(f"{directory}: expected a run folder, found no config.yaml in it")
    return RunView(directory)


def chain_records(
    trajectory: Trajectory,
    values: StateValues | None = None,
    answer_values: AnswerValues | None = None,
) -> list[ChainRecord]:
    """The chains of an episode, and what each is worth where the state is known.

    By a value model, that is by the answer alone, or else by a critic, that is by what followed.
    """
    known = _state_values(values, answer_values)
    promised = _promised(answer_values)
    states = [info.get("state") for info in trajectory.infos]
    state_values = [known.get(_key(state)) for state in states]
    records = []
    for t, (action, reward) in enumerate(zip(trajectory.actions, trajectory.rewards, strict=True)):
        info = trajectory.infos[t + 1]
        advantage = promised.get((_key(states[t]), action.text.rstrip("\n")))
        if answer_values is None:
            advantage = _advantage(trajectory, t, state_values, values)
        records.append(
            ChainRecord(
                text=action.text,
                reward=reward,
                value=state_values[t],
                advantage=advantage,
                note=_note(info),
            )
        )
    return records


def _state_values(
    values: StateValues | None, answer_values: AnswerValues | None
) -> dict[str, float]:
    if answer_values is not None:
        return dict(zip(map(_key, answer_values.states), answer_values.values, strict=True))
    return {} if values is None else dict(zip(map(_key, values.states), values.critic, strict=True))


def _promised(values: AnswerValues | None) -> dict[tuple[str, str], float]:
    """The advantage of each answer to each state."""
    if values is None:
        return {}
    return {
        (_key(state), answer.rstrip("\n")): advantage
        for state, row in zip(values.states, values.advantages, strict=True)
        for answer, advantage in zip(values.answers, row, strict=True)
    }


def _advantage(
    trajectory: Trajectory, t: int, state_values: list[float | None], values: StateValues | None
) -> float | None:
    terminated = trajectory.terminated and t == len(trajectory) - 1
    value, next_value = state_values[t], 0.0 if terminated else state_values[t + 1]
    if values is None or value is None or next_value is None:
        return None
    reward = trajectory.chain_rewards(values.gamma, values.discount_per)[t]
    num_actions = trajectory.num_actions[t]
    advantage = chain_advantages(
        reward, num_actions, value, next_value, terminated, values.gamma, values.discount_per
    )
    return float(advantage)


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
