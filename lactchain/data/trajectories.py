"""Trajectories in parquet, one row per episode, in the columns of `to_table`."""

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from lactchain.data import parquet
from lactchain.errors import DataError
from lactchain.types import Action, Trajectory

KIND, VERSION = "trajectories", 1
COLUMNS = (
    "env_id", "seed", "policy", "terminated", "truncated", "observations", "actions", "token_ids",
    "logprobs", "stop_reasons", "rewards", "infos",
)  # fmt: skip


def _is_text(kind: pa.DataType) -> bool:
    return any(is_one(kind) for is_one in TEXTS)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


TEXTS = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary,
)  # fmt: skip
ROUNDING = 1e-3  # by which the logarithm of a probability may be above 0
KINDS = {
    "env_id": (0, _is_text, "texts"),
    "policy": (0, _is_text, "texts"),
    "seed": (0, pa.types.is_integer, "whole numbers"),
    "terminated": (0, pa.types.is_boolean, "true or false"),
    "truncated": (0, pa.types.is_boolean, "true or false"),
    "rewards": (1, _is_number, "numbers"),
    "token_ids": (2, pa.types.is_integer, "whole numbers"),
    "logprobs": (2, _is_number, "numbers"),
}
"""Columns that are no lists of texts: lists within lists so deep, and of what."""


def write_trajectories(
    path: str | Path, trajectories: Sequence[Trajectory], facts: Mapping[str, Any] | None = None
) -> None:
    """Writes episodes to one parquet file; its manifest beside it records `facts` as well."""
    parquet.write_table(path, to_table(trajectories), KIND, VERSION, facts)


def read_trajectories(path: str | Path) -> list[Trajectory]:
    """The episodes of a file, or of each `*.parquet` of a folder; infos are as JSON has them."""
    table = parquet.read_table(path, KIND, VERSION)
    with parquet.rows_of(path, KIND):
        return from_table(table, path)


def to_table(trajectories: Sequence[Trajectory]) -> pa.Table:
    """Episodes in the columns of the schema; `DataError` where JSON cannot hold an info."""

    def of_actions(name: str) -> list[list[Any]]:
        return [[getattr(action, name) for action in t.actions] for t in trajectories]

    columns = {
        "env_id": parquet.text_column([t.env_id for t in trajectories]),
        "seed": pa.array([t.seed for t in trajectories], pa.uint64()),
        "policy": parquet.text_column([t.policy for t in trajectories]),
        "terminated": pa.array([t.terminated for t in trajectories], pa.bool_()),
        "truncated": pa.array([t.truncated for t in trajectories], pa.bool_()),
        "observations": parquet.text_lists([t.observations for t in trajectories]),
        "actions": parquet.text_lists(of_actions("text")),
        "token_ids": parquet.number_lists(of_actions("token_ids"), pa.list_(pa.int32())),
        "logprobs": parquet.number_lists(of_actions("logprobs"), pa.list_(pa.float64())),
        "stop_reasons": parquet.text_lists(of_actions("stop_reason")),
        "rewards": parquet.number_lists([t.rewards for t in trajectories], pa.float64()),
        "infos": parquet.text_lists(_infos_as_json(trajectories)),
    }
    return pa.table(columns)


def from_table(table: pa.Table, source: str | Path) -> list[Trajectory]:
    """Episodes of a table; `DataError` names the column that `source` lacks, or the bad row."""
    if missing := set(COLUMNS) - set(table.column_names):
        raise DataError(f"{source}: expected columns {COLUMNS}, {sorted(missing)} are missing")
    columns = {name: parquet.to_python(table[name]) for name in COLUMNS}
    said = [columns.pop(name) for name in ("actions", "token_ids", "logprobs", "stop_reasons")]
    columns["actions"] = [tuple(map(Action, *row)) for row in zip(*said, strict=True)]
    columns["infos"] = _parse_infos(columns["infos"], source)
    found = []
    for index, row in enumerate(zip(*columns.values(), strict=True)):
        try:
            found.append(Trajectory(**dict(zip(columns, row, strict=True))))
        except ValueError as error:
            raise DataError(f"{source}: row {index} is no episode: {error}") from error
    return found


def from_foreign(table: pa.Table, source: str | Path) -> list[Trajectory]:
    """Episodes of a table of anybody in these columns; what `from_table` takes on trust is checked.

    Raises:
        DataError: naming the column that is missing, or not of its type, or the bad row.
    """
    for name in [name for name in COLUMNS if name in table.column_names]:
        _check_column(table[name], name, source)
    try:
        found = from_table(table, source)
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: expected UTF-8, got {error}") from error
    for index, episode in enumerate(found):
        for action in episode.actions:
            fits = len(action.logprobs) in (0, len(action.token_ids))
            fits &= all(p <= ROUNDING for p in action.logprobs)
            if not fits or min(action.token_ids, default=0) < 0:
                raise DataError(
                    f"{source}: row {index}: expected token ids from 0 on, and a log-probability, "
                    f"at most 0, for each or for none, got {action.token_ids} and {action.logprobs}"
                )
    return found


def _check_column(column: pa.ChunkedArray, name: str, source: str | Path) -> None:
    """Each value is there, and of the column's type: the text "false" is no truth value."""
    depth, is_kind, kind = KINDS.get(name, (1, _is_text, "texts"))
    values = column.combine_chunks()
    for level in range(depth + 1):
        if values.null_count:
            raise DataError(f"{source}: {name}: expected a value in each row, got null")
        if level < depth:
            if not (pa.types.is_list(values.type) or pa.types.is_large_list(values.type)):
                raise DataError(f"{source}: {name}: expected lists, got {values.type}")
            values = values.flatten()
    if not is_kind(values.type) and not (depth and pa.types.is_null(values.type)):
        raise DataError(f"{source}: {name}: expected {kind}, got {values.type}")


def plain_infos(
    completions: Sequence[str], rewards: Sequence[float], success: bool | None
) -> tuple[dict[str, Any], ...]:
    """The T + 1 infos of an episode of which nobody kept more than T completions and rewards.

    Each completion counts as one executed action; `success` is None where nobody said.
    """
    nothing = {"executed": [], "rewards": [], "bumped": [], "positions": [], "state": None}
    nothing |= {
        "invalid_action": False,
        "invalid_reason": None,
        "success": None if success is None else False,
    }
    played = [
        nothing | {"executed": [completion], "rewards": [reward], "bumped": [False]}
        for completion, reward in zip(completions, rewards, strict=False)
    ]
    *before, last = nothing, *played
    return *before, last | {"success": success}


def _parse_infos(
    rows: Sequence[Sequence[str]], source: str | Path
) -> list[tuple[Mapping[str, Any], ...]]:
    texts = parquet.flatten(rows)
    try:
        # One document is parsed three times faster than its parts one by one.
        infos = json.loads(f"[{','.join(texts)}]")
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source}: infos: expected JSON, {error}") from error
    if len(infos) != len(texts) or not all(isinstance(info, dict) for info in infos):
        raise DataError(f"{source}: infos: expected a JSON object in each, got something else")
    infos = iter(infos)
    return [tuple(islice(infos, len(row))) for row in rows]


def _infos_as_json(trajectories: Sequence[Trajectory]) -> list[list[str]]:
    texts = []
    for index, trajectory in enumerate(trajectories):
        try:
            texts.append([*map(parquet.encode_json, trajectory.infos)])
        except (TypeError, ValueError) as error:
            raise DataError(
                f"trajectory {index} ({trajectory.env_id}, seed {trajectory.seed}): "
                f"infos: expected what JSON can hold, {error}"
            ) from error
    return texts
