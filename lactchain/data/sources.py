"""Data to learn from, ours or somebody else's: preference pairs and episodes, whatever the file.

What is not ours is a JSONL file, a parquet file or a folder of them, or a folder that Minari or
`datasets.Dataset.save_to_disk` wrote. Preference pairs have TRL's columns `prompt`, `chosen` and
`rejected`, texts or conversations. An episode is a row of T decisions:

| column | |
|---|---|
| observations | T + 1 texts: what each decision was asked with, and the last one; T will do where the episode terminated |
| completions | T texts |
| rewards | T numbers |
| terminated | whether the last state is terminal; else the episode was cut |
| success | optional: whether it ended well |
"""  # noqa: E501

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lactchain import plugins
from lactchain.data import parquet
from lactchain.data.preferences import read_pairs
from lactchain.data.trajectories import COLUMNS, from_table, plain_infos, read_trajectories
from lactchain.errors import DataError
from lactchain.storage.files import parse_json_lines
from lactchain.storage.manifests import RUN_FILE, is_run, run_around
from lactchain.storage.results import result_of
from lactchain.types import Action, PreferencePair, Trajectory

Row = Mapping[str, Any]

PAIR_COLUMNS = ("prompt", "chosen", "rejected")
EPISODE_COLUMNS = ("observations", "completions", "rewards", "terminated")


def open_pairs(path: str | Path) -> list[PreferencePair]:
    """Preference pairs of our files, or of any data set with TRL's columns; else a `DataError`."""
    path = result_of(path, "pairs")
    rows = _foreign_rows(path, "chosen_token_ids")
    if rows is None:
        return read_pairs(path)
    return [pair_of(row, f"{path}: row {i}") for i, row in enumerate(rows)]


def open_trajectories(path: str | Path) -> list[Trajectory]:
    """Episodes of our files, of Minari, or of a data set with the columns of `EPISODE_COLUMNS`.

    Files of ours are held against their manifests, where these are still there. `DataError` names
    what is missing or damaged: a file, a column, a row that is no episode.
    """
    path = result_of(path, "trajectories")
    if (path / "data" / "metadata.json").is_file():
        return plugins.required("minari", str(path)).read_minari(path)
    rows = _foreign_rows(path, "stop_reasons")
    if rows is None:
        return [episode for file in _files(path) for episode in _read_file(file)]
    if rows and rows[0].keys() >= set(COLUMNS):
        return plugins.required("datasets", str(path)).read_dataset(path)
    return [_episode(row, f"{path}: row {i}", i) for i, row in enumerate(rows)]


def _files(path: Path) -> list[Path]:
    """A file, or every `*.parquet` of a folder; of a data set those of its folders as well.

    What holds runs is no data set: files of many kinds are in their folders. Of each folder the
    numbered files must all be there.
    """
    found = sorted(path.rglob("*.parquet"))
    if not found or any(path.rglob(RUN_FILE)):
        return parquet.files(path)
    return [file for folder in {file.parent: 0 for file in found} for file in parquet.files(folder)]


def _read_file(file: Path) -> list[Trajectory]:
    """A file that must have had a manifest is refused without it."""
    has_others = any(file.parent.glob("*-of-*.manifest"))
    if parquet.has_manifest(file) or has_others or run_around(file):
        return read_trajectories(file)
    try:
        table = pq.ParquetFile(file).read()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: damaged: {error}") from error
    return from_table(table, file)


def pair_of(row: Row, name: str) -> PreferencePair:
    """A preference pair of a row of TRL's columns; errors call the row `name`."""
    _require(row, PAIR_COLUMNS, name)
    prompt, completions = row["prompt"], [_spoken(row[side], name) for side in PAIR_COLUMNS[1:]]
    return PreferencePair(prompt if isinstance(prompt, str) else tuple(prompt), *completions)


def _spoken(completion: str | Sequence[Row], name: str) -> str:
    """The text of a completion, or of a conversation of one message."""
    if isinstance(completion, str):
        return completion
    if len(completion) != 1 or not isinstance(completion[0].get("content"), str):
        raise DataError(f"{name}: expected a completion of one message, got {completion!r}")
    return completion[0]["content"]


def _episode(row: Row, name: str, number: int) -> Trajectory:
    _require(row, EPISODE_COLUMNS, name)
    observations, completions = tuple(row["observations"]), tuple(row["completions"])
    terminated, success = bool(row["terminated"]), row.get("success")
    success = None if success is None else bool(success)
    if terminated and len(observations) == len(completions):
        observations = (*observations, "")
    try:
        rewards = tuple(map(float, row["rewards"]))
        return Trajectory(
            env_id="",
            seed=number,
            observations=observations,
            actions=tuple(map(Action, completions)),
            rewards=rewards,
            infos=plain_infos(completions, rewards, success),
            terminated=terminated,
            truncated=not terminated,
        )
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} is no episode: {error}") from error


def _require(row: Row, columns: Sequence[str], name: str) -> None:
    if missing := [column for column in columns if row.get(column) is None]:
        raise DataError(
            f"{name}: expected {', '.join(columns)}, got {', '.join(row)}; {', '.join(missing)} "
            "missing, rename or add the columns"
        )


def _foreign_rows(path: Path, our_column: str) -> list[Row] | None:
    """The rows of a data set that is not ours; None where our own reader should look."""
    if is_run(path):
        return None
    if (path / "state.json").is_file():
        return plugins.required("datasets", str(path)).saved_dataset(path).to_list()
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    if texts := [file for file in files if file.suffix in (".jsonl", ".json") and file.is_file()]:
        return [row for file in texts for row in parse_json_lines(file, file.read_bytes())]
    try:
        tables = [pq.ParquetFile(file) for file in _files(path)]
    except (pa.ArrowException, OSError):
        return None
    if our_column in tables[0].schema_arrow.names:
        return None
    return [row for table in tables for row in table.read().to_pylist()]
