"""Data to learn from, ours or somebody else's: preference pairs and episodes, whatever the file.

What our runs wrote is read here, trajectories one row per episode: its fields, with a column per
field of `Action`. All else is read by the add-on `data_sets` (`lactchain.plugins`): pairs with
TRL's columns `prompt`, `chosen` and `rejected`, and episodes, rows of `observations`,
`completions`, `rewards`, `terminated` and, where it is known, `success`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from lactchain import plugins
from lactchain.data import parquet
from lactchain.data.parquet import JSON, NUMBER, TEXT, Format
from lactchain.data.preferences import read_pairs
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State
from lactchain.errors import DataError
from lactchain.storage.manifests import result_of
from lactchain.types import Action, PreferencePair, Trajectory

SUFFIXES = (".parquet", ".jsonl", ".ndjson")
"""Of the files that data lie in, ours and others'."""

Row = TypeVar("Row", PreferencePair, Trajectory)


def episode_of(
    actions: Sequence[str],
    token_ids: Sequence[tuple[int, ...]],
    logprobs: Sequence[tuple[float, ...]],
    stop_reasons: Sequence[str],
    **fields: Any,
) -> Trajectory:
    """An episode of its columns; `ValueError` where their lengths do not fit."""
    parts_of_each = zip(actions, token_ids, logprobs, stop_reasons, strict=True)
    return Trajectory(actions=tuple(Action(*parts) for parts in parts_of_each), **fields)


def _columns_of(episode: Trajectory) -> dict[str, Any]:
    return vars(episode) | {
        "actions": [action.text for action in episode.actions],
        "token_ids": [action.token_ids for action in episode.actions],
        "logprobs": [action.logprobs for action in episode.actions],
        "stop_reasons": [action.stop_reason for action in episode.actions],
    }


TRAJECTORIES = Format(
    "trajectories",
    1,
    {
        "env_id": TEXT,
        "seed": pa.uint64(),
        "policy": TEXT,
        "terminated": pa.bool_(),
        "truncated": pa.bool_(),
        "observations": pa.list_(TEXT),
        "actions": pa.list_(TEXT),
        "token_ids": pa.list_(pa.list_(pa.int32())),
        "logprobs": pa.list_(pa.list_(NUMBER)),
        "stop_reasons": pa.list_(TEXT),
        "rewards": pa.list_(NUMBER),
        "infos": pa.list_(JSON),
    },
    episode_of,
    _columns_of,
)


def write_trajectories(
    path: str | Path, trajectories: Sequence[Trajectory], facts: Mapping[str, Any] | None = None
) -> None:
    """Writes episodes to one parquet file; see `Format.write`."""
    TRAJECTORIES.write(path, trajectories, facts)


def read_trajectories(path: str | Path) -> list[Trajectory]:
    """The episodes of a file, or of each `*.parquet` of a folder; see `Format.read`."""
    return TRAJECTORIES.read(path)


def open_pairs(path: str | Path, env: LanguageEnv | None = None) -> list[PreferencePair]:
    """Preference pairs of our files, or of any data set with TRL's columns; else a `DataError`.

    So are pairs in states that `env`, to learn in, holds back.
    """
    pairs = _read(result_of(path, "pairs"), "pairs", read_pairs)
    _check_practised(env, (pair.state for pair in pairs), path)
    return pairs


def open_trajectories(path: str | Path, env: LanguageEnv | None = None) -> list[Trajectory]:
    """Episodes of our files, or of any data set that the add-on `data_sets` reads.

    `DataError` names what is missing or damaged: a file, a column, a row that is no episode; or a
    decision in a state that `env`, to learn in, holds back.
    """
    episodes = _read(result_of(path, "trajectories"), "episodes", read_trajectories)
    _check_practised(env, (info.get("state") for e in episodes for info in e.infos[:-1]), path)
    return episodes


def _read(place: Path, what: str, read_ours: Callable[[Path], list[Row]]) -> list[Row]:
    if _is_ours(place):
        found = [row for file in parquet.files(place) for row in read_ours(file)]
    else:
        found = plugins.required("data_sets", str(place)).read(place, what)
    if not found:
        raise DataError(f"{place}: expected {what} to learn from, found none; name other data")
    return found


def _is_ours(place: Path) -> bool:
    """Whether it is a file of ours, or a folder of our shards and no other data."""
    if place.is_file():
        return parquet.is_ours(place)
    data = [file for file in place.rglob("*") if file.suffix in SUFFIXES]
    shards = all(file.parent == place and parquet.SHARD.fullmatch(file.name) for file in data)
    return shards and any(map(parquet.is_ours, data))


def _check_practised(
    env: LanguageEnv | None, states: Iterable[State | None], name: str | Path
) -> None:
    """Raises `DataError` if recorded decisions are in states that are held back, or may be.

    A state is None or empty where it is unknown; `name` is what the record is called.
    """
    if env is None or not env.held_back:
        return
    for state in states:
        if not state:
            raise DataError(
                f"{name}: expected records that tell the state of each decision, since some states"
                " are held back, got one that does not; set environment.held_back to null"
            )
        if state in env.held_back:
            raise DataError(
                f"{name}: expected no decision in a state that is held back, got one in {state};"
                " record it with the same environment.held_back"
            )
