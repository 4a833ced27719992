"""Trajectories in parquet, one row per episode: its fields, with a column per field of `Action`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from lactchain.data.parquet import JSON, NUMBER, TEXT, Format
from lactchain.types import Action, Trajectory


def episode_of(
    actions: Sequence[str],
    token_ids: Sequence[tuple[int, ...]],
    logprobs: Sequence[tuple[float, ...]],
    stop_reasons: Sequence[str],
    **fields: Any,
) -> Trajectory:
    """An episode of its columns; `ValueError` where their lengths do not fit."""
    said = zip(actions, token_ids, logprobs, stop_reasons, strict=True)
    return Trajectory(actions=tuple(Action(*parts) for parts in said), **fields)


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
