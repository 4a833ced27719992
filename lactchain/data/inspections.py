"""What a round of a pipeline leaves for people to look at: answers and candidates, valued.

A folder RUN/round_N/inspection (N = 0: before the first round) holds two tables in parquet (schema
version 1), `meta.json`, and a manifest. A row of `answers.parquet` is a start state:

    state_id: its number among all start states, the same in all rounds
    state: as the environment's view gives it, as JSON text
    text: what it shows when an episode begins
    completion: the actor's greedy completion, with its tokens and their probabilities
    actions, rewards: what was played of it, and what each action earned
    invalid: whether it is no chain
    next_state: where it led, as JSON text; null if the episode was over
    terminated: whether it ended the episode
    success, num_actions, return: of the greedy episode from there; the return is not discounted
    value: V(s) by the round's critic
    q: r + γ^k V(next state) of the completion by that critic, as pairs are ranked, or its Q(s, c)
    advantage: q − value
    optimal: V*(s), the greatest of any policy of chains
    policy_value: V^π(s) of the policy whose episodes the round's critic has learnt from
    shortest: fewest actions from there to the goal

A row of `candidates.parquet` is one of several completions to one of these states: those that the
evaluation sampled from the actor, freely at temperature 1, the most probable first; and those of
the round's pairs that were asked the same text, by the actor before it learnt from them:

    state_id, completion, tokens, probabilities: as above; no probabilities of what was not sampled
    probability: of the whole completion; null of what was not sampled
    count: how often it was sampled
    reward: what it earned, not discounted
    score: as q above
    invalid: whether it is no chain
    chosen, rejected: whether it is the one or the other in some pair of the round

Numbers that are not known are null: values of a round without a critic, exact ones where there is
no exact model. Half a surrogate pair, which no such table can hold, stands as its number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from lactchain.data import parquet
from lactchain.errors import DataError
from lactchain.storage.files import read_json, write_json
from lactchain.storage.manifests import verify_manifest, write_manifest

VERSION = 1
_TEXTS, _NUMBERS = pa.list_(pa.string()), pa.list_(pa.float64())

ANSWERS = pa.schema({
    "state_id": pa.int64(),
    "state": pa.string(),
    "text": pa.string(),
    "completion": pa.string(),
    "tokens": _TEXTS,
    "probabilities": _NUMBERS,
    "actions": _TEXTS,
    "rewards": _NUMBERS,
    "invalid": pa.bool_(),
    "next_state": pa.string(),
    "terminated": pa.bool_(),
    "success": pa.bool_(),
    "num_actions": pa.int64(),
    "return": pa.float64(),
    "value": pa.float64(),
    "q": pa.float64(),
    "advantage": pa.float64(),
    "optimal": pa.float64(),
    "policy_value": pa.float64(),
    "shortest": pa.int64(),
})  # fmt: skip
CANDIDATES = pa.schema({
    "state_id": pa.int64(),
    "completion": pa.string(),
    "tokens": _TEXTS,
    "probabilities": _NUMBERS,
    "probability": pa.float64(),
    "count": pa.int64(),
    "reward": pa.float64(),
    "score": pa.float64(),
    "invalid": pa.bool_(),
    "chosen": pa.bool_(),
    "rejected": pa.bool_(),
})  # fmt: skip
TABLES = {"answers": ANSWERS, "candidates": CANDIDATES}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Inspection:
    """What a round has left to look at.

    Attributes:
        meta: `asked` start states `of` so many; whether they are `sampled`, or all; the `critic`
            that the values are by, a folder in the run where it lies there, or None; its `gamma`
            and `discount_per`.
        answers, candidates: the tables, with the columns of `ANSWERS` and `CANDIDATES`.
    """

    meta: Mapping[str, Any]
    answers: pa.Table
    candidates: pa.Table


def write_inspection(
    folder: str | Path, meta: Mapping[str, Any], answers: Sequence[Row], candidates: Sequence[Row]
) -> None:
    """Writes the tables, from rows with a value for each column, and last their manifest.

    Raises:
        DiskError: the folder cannot be written.
    """
    rows = {"answers": answers, "candidates": candidates}
    write_tables(folder, meta, {name: (TABLES[name], some) for name, some in rows.items()})


def write_tables(
    folder: str | Path,
    meta: Mapping[str, Any],
    tables: Mapping[str, tuple[pa.Schema, Sequence[Row]]],
) -> None:
    """Writes tables by name, each from rows with a value for each column, and last their manifest.

    Raises:
        DiskError: the folder cannot be written.
    """
    folder = Path(folder)
    for name, (schema, rows) in tables.items():
        table = pa.Table.from_pylist([_storable(row) for row in rows], schema)
        parquet.write_table(folder / f"{name}.parquet", table, name, VERSION)
    write_json(folder / "meta.json", meta)
    write_manifest(folder, {})


def read_inspection(folder: str | Path) -> Inspection:
    """Reads what `write_inspection` wrote.

    Raises:
        DataError: the folder is missing, damaged or not complete.
    """
    meta, tables = read_tables(folder, TABLES)
    return Inspection(meta, **tables)


def read_tables(
    folder: str | Path, schemas: Mapping[str, pa.Schema]
) -> tuple[dict[str, Any], dict[str, pa.Table]]:
    """Reads what `write_tables` wrote.

    Raises:
        DataError: the folder is missing, damaged or not complete.
    """
    folder = Path(folder)
    verify_manifest(folder)
    with parquet.rows_of(folder, "tables of this schema"):
        tables = {
            name: parquet.read_table(folder / f"{name}.parquet", name, VERSION).cast(schema)
            for name, schema in schemas.items()
        }
    return read_json(folder / "meta.json"), tables


def is_inspection(folder: str | Path) -> bool:
    """Whether a folder holds all that `write_tables` writes, as it was written."""
    try:
        verify_manifest(folder)
    except DataError:
        return False
    return True


def state_text(state: Mapping[str, Any]) -> str:
    """A state as these tables hold it."""
    return json.dumps(state)


def _storable(row: Row) -> dict[str, Any]:
    return {name: _as_utf8(value) for name, value in row.items()}


def _as_utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    return [_as_utf8(part) for part in value] if isinstance(value, list | tuple) else value
