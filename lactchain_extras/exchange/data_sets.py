"""Data sets of others to learn from: preference pairs and episodes, whatever the file.

That is a JSONL file, a parquet file or a folder of them, or a folder that Minari or
`datasets.Dataset.save_to_disk` wrote. Of a data set in splits it is the one called train. Preference
pairs have TRL's columns `prompt`, `chosen` and `rejected`, texts or conversations; where both
conversations begin with the prompt it need not stand beside them ("implicit prompt"). An episode is a
row of T decisions:

| column | |
|---|---|
| observations | T + 1 texts: what each decision was asked with, and the last one; T will do where the episode terminated |
| completions | T texts |
| rewards | T numbers |
| terminated | whether the last state is terminal; else the episode was cut |
| success | optional: whether it ended well |

Others may have written files of ours as well, or copied them without their manifests.
"""  # noqa: E501

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lactchain.data import parquet
from lactchain.data.parquet import JSON, NUMBER, TEXT
from lactchain.data.preferences import read_pairs
from lactchain.data.sources import TRAJECTORIES, episode_of, read_trajectories
from lactchain.errors import DataError
from lactchain.storage.files import parse_json_lines
from lactchain.storage.manifests import RUN_FILE
from lactchain.types import Action, Conversation, PreferencePair, Trajectory
from lactchain_extras.exchange.minari_files import plain_infos, read_minari

Row = Mapping[str, Any]

SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json")
ROUNDING = 1e-3  # by which the logarithm of a probability may be above 0
ROWS_AT_ONCE, MOST_UNPACKED = 64, 2**28  # of a file of anybody; the second in bytes
BYTES_OF_A_ROW = 512  # of Python, whatever is in it
LISTS = (
    pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list,
    pa.types.is_list_view, pa.types.is_large_list_view,
)  # fmt: skip
_SHARD = re.compile(r"-\d+-of-\d+.*")
_SPLIT = re.compile(
    "(?<![a-z])(train|training|validation|valid|dev|val|test|testing|eval|evaluation"
    "|held_?out|hold_?out)(?![a-z])",
    re.I,
)

log = logging.getLogger(__name__)

PAIR_COLUMNS = ("prompt", "chosen", "rejected")
EPISODE_COLUMNS = {
    "observations": pa.list_(TEXT),
    "completions": pa.list_(TEXT),
    "rewards": pa.list_(NUMBER),
    "terminated": pa.bool_(),
}
TYPES = {TEXT: (str, "texts"), JSON: (str, "texts"), NUMBER: (int | float, "numbers")}
READ = {*PAIR_COLUMNS, *EPISODE_COLUMNS, "success", *TRAJECTORIES.columns}


def read(place: Path, what: str) -> list[PreferencePair] | list[Trajectory]:
    """What is in a file or a folder, which may be nothing.

    Args:
        what: "pairs" or "episodes".

    Raises:
        DataError: naming what is missing or damaged: a file, a column, a row.
    """
    if what == "episodes" and (place / "data" / "metadata.json").is_file():
        return read_minari(place)
    is_saved = any((place / name).is_file() for name in ("state.json", "dataset_dict.json"))
    files = [] if is_saved else _files(place)
    if any(map(parquet.is_ours, files)):  # one that has lost its manifest is refused
        read_ours = read_pairs if what == "pairs" else read_trajectories
        return [row for file in files for row in read_ours(file)]
    rows = _saved(place) if is_saved else [row for file in files for row in _rows_in(file)]
    named = ((row, f"{place}: row {number}") for number, row in enumerate(rows))
    if what == "pairs":
        return [pair_of(row, name) for row, name in named]
    return [_episode(row, name, number) for number, (row, name) in enumerate(named)]


# --- files ---


def _files(path: Path) -> list[Path]:
    """The files that hold the rows of a data set, of its training split where it has several.

    What holds runs is no data set: files of many kinds are in their folders. Of each folder the
    numbered files must all be there.
    """
    if path.is_file():
        if path.suffix.lower() in SUFFIXES:
            return [path]
        what = f"expected a file that ends in {', '.join(SUFFIXES)}, or a folder of them"
        raise DataError(f"{path}: {what}; write each row as a JSON object on a line of its own")
    if any(path.rglob(RUN_FILE)):
        return parquet.files(path)
    tables = _inside(path, "*.parquet")
    lines = [*_inside(path, "*.jsonl"), *_inside(path, "*.ndjson")]
    if lines and tables:
        named = f"{lines[0].name} and {tables[0].name}"
        raise DataError(f"{path}: expected files of one kind, got {named}")
    for folder in sorted({file.parent for file in tables}):
        parquet.files(folder)
    splits: dict[str, list[Path]] = {}
    for file in tables or lines or parquet.files(path):
        splits.setdefault(_split_of(file.relative_to(path)), []).append(file)
    return splits[_training_split(path, splits)]


def _inside(path: Path, pattern: str) -> list[Path]:
    """Files at any depth by name, but not in hidden folders: copies of editors lie there."""
    found = [file for file in sorted(path.rglob(pattern)) if file.is_file()]
    return [f for f in found if not any(p.startswith(".") for p in f.relative_to(path).parts)]


def _rows_in(file: Path) -> list[Row]:
    if file.suffix.lower() == ".parquet":
        return _parquet_rows(file)
    return parse_json_lines(file, file.read_bytes())


def _parquet_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of anybody, of its columns those of `READ`, all others None.

    Raises:
        DataError: it cannot be read, has a column twice, or unpacks to a thousand times its size.
    """
    try:
        most = max(MOST_UNPACKED, 1000 * path.stat().st_size)
        file, batches = pq.ParquetFile(path), []
        there = file.schema_arrow.names
        if twice := {name for name in there if there.count(name) > 1}:
            raise DataError(f"{path}: expected each column once, got {', '.join(twice)} twice")
        total = file.metadata.num_rows * BYTES_OF_A_ROW
        fields = [field for field in file.schema_arrow if field.name in READ]
        schema = pa.schema([field.with_type(_written_out(field.type)) for field in fields])
        packed = file.iter_batches(batch_size=ROWS_AT_ONCE, columns=schema.names)
        while total <= most and (batch := next(packed, None)) is not None:
            batches.append(batch.cast(schema))
            total += batches[-1].nbytes
        if total > most:
            raise DataError(f"{path}: expected rows of at most {most:,} bytes, got more")
        rows = pa.Table.from_batches(batches, schema).to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: no parquet file that can be read ({error})") from error
    return [dict.fromkeys(there) | row for row in rows]


def _written_out(kind: pa.DataType) -> pa.DataType:
    """A type without dictionaries, by which a few bytes stand for many."""
    if pa.types.is_dictionary(kind):
        return _written_out(kind.value_type)
    if any(is_one(kind) for is_one in LISTS):
        return pa.list_(_written_out(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_written_out(field.type)) for field in kind])
    return kind


def _saved(folder: Path) -> list[Row]:
    """What `Dataset.save_to_disk` wrote into a folder, or `DatasetDict.save_to_disk`."""
    from datasets import DatasetDict, load_from_disk

    try:
        found = load_from_disk(str(folder))
        if isinstance(found, DatasetDict):
            found = found[_training_split(folder, found)]
        return found.to_list()
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DataError(f"{folder}: damaged: {error}") from error


def _split_of(file: Path) -> str:
    """The split that a name tells, as data/train_prefs-00000-of-00001.parquet train_prefs."""
    names = [_SHARD.sub("", file.stem), *(part for part in reversed(file.parent.parts))]
    return next((name for name in names if _SPLIT.search(name)), "")


def _training_split(path: Path, splits: Iterable[str]) -> str:
    """The one that is for training, or the only one; `DataError` where neither is."""
    names = sorted(splits)
    if len(names) == 1:
        return names[0]
    if training := [name for name in names if name in ("train", "training")]:
        left = ", ".join(name or "others" for name in names if name != training[0])
        log.info("%s: the split %s is read, %s is not", path, training[0], left)
        return training[0]
    known = ", ".join(name or "others" for name in names)
    raise DataError(f"{path}: expected one split, got {known}; give the file or the folder of one")


# --- rows ---


def pair_of(row: Row, name: str) -> PreferencePair:
    """A preference pair of a row of TRL's columns; errors call the row `name`.

    Raises:
        DataError: naming the column that is missing, or not a text or a conversation.
    """
    _require(row, PAIR_COLUMNS, name, optional="prompt")
    read = {c: _spoken(row[c], f"{name}: {c}") for c in PAIR_COLUMNS if row.get(c) is not None}
    prompt, chosen, rejected = read.get("prompt"), read["chosen"], read["rejected"]
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise DataError(f"{name}: expected two texts or two conversations, got one of each")
    if isinstance(chosen, str):
        if prompt is None:
            raise DataError(f"{name}: expected {', '.join(PAIR_COLUMNS)}, got no prompt")
        return PreferencePair(prompt, chosen, rejected)
    asked = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else prompt
    before = chosen[:-1]
    is_asked = asked in (None, before) if before else prompt
    if rejected[:-1] != before or not is_asked:
        raise DataError(f"{name}: expected one prompt before the last messages, got two or none")
    return PreferencePair(prompt or before, chosen[-1]["content"], rejected[-1]["content"])


def _spoken(value: Any, name: str) -> str | Conversation:
    """A text, or a conversation of texts; errors call it `name`."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list | tuple) or not value:
        raise DataError(f"{name}: expected a text or a conversation, got {_shown(value)}")
    for message in value:
        parts = (message.get("role"), message.get("content")) if isinstance(message, dict) else ()
        if not parts or not all(isinstance(part, str) for part in parts):
            expected = "expected messages of role and content, both texts"
            raise DataError(f"{name}: {expected}, got {_shown(message)}")
    return tuple({"role": m["role"], "content": m["content"]} for m in value)


def _episode(row: Row, name: str, number: int) -> Trajectory:
    """An episode of a row in our columns, or in those of `EPISODE_COLUMNS`."""
    is_ours = "stop_reasons" in row
    columns = TRAJECTORIES.columns if is_ours else EPISODE_COLUMNS
    _require(row, tuple(columns), name)
    try:
        cells = {c: _cell(row[c], kind, f"{name}: {c}") for c, kind in columns.items()}
        if is_ours:
            return _with_likely_tokens(episode_of(**cells), name)
        success = row.get("success")
        if success is not None:
            success = _cell(success, pa.bool_(), f"{name}: success")
        observations, completions = cells["observations"], cells["completions"]
        if cells["terminated"] and len(observations) == len(completions):
            observations = (*observations, "")
        return Trajectory(
            env_id="",
            seed=number,
            observations=observations,
            actions=tuple(map(Action, completions)),
            rewards=cells["rewards"],
            infos=plain_infos(completions, cells["rewards"], success),
            terminated=cells["terminated"],
            truncated=not cells["terminated"],
        )
    except (ValueError, OverflowError) as error:
        raise DataError(f"{name} is no episode: {error}") from error


def _with_likely_tokens(episode: Trajectory, name: str) -> Trajectory:
    for action in episode.actions:
        fits = len(action.logprobs) in (0, len(action.token_ids))
        fits &= all(p <= ROUNDING for p in action.logprobs)
        if not fits or min(action.token_ids, default=0) < 0:
            what = "token ids from 0 on, and a log-probability, at most 0, for each or for none"
            got = f"got {action.token_ids} and {action.logprobs}"
            raise DataError(f"{name}: expected {what}, {got}")
    return episode


def _cell(value: Any, kind: pa.DataType, name: str) -> Any:
    """A value of a column of some type, lists as tuples; the text "false" is no truth value."""
    if pa.types.is_list(kind):
        if not isinstance(value, list | tuple):
            raise DataError(f"{name}: expected a list, got {_shown(value)}")
        return tuple(_cell(one, kind.value_type, name) for one in value)
    if kind == pa.bool_():
        if not isinstance(value, int) or value not in (0, 1):
            raise DataError(f"{name}: expected true or false, got {_shown(value)}")
        return bool(value)
    types, words = TYPES.get(kind, (int, "whole numbers"))
    if isinstance(value, bool) or not isinstance(value, types):
        raise DataError(f"{name}: expected {words}, got {_shown(value)}")
    if kind == JSON:
        return _object(value, name)
    return float(value) if kind == NUMBER else value


def _object(text: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: expected JSON, {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{name}: expected a JSON object, got {_shown(found)}")
    return found


def _shown(value: Any) -> str:
    return f"{str(value)[:60]!r} ({type(value).__name__})"


def _require(row: Row, columns: Sequence[str], name: str, optional: str = "") -> None:
    if missing := [c for c in columns if row.get(c) is None and c != optional]:
        if missing[0] in row:
            raise DataError(f"{name}: {missing[0]}: expected a value, got null; remove the row")
        mend = f"{', '.join(missing)} missing, rename or add the columns"
        raise DataError(f"{name}: expected {', '.join(columns)}, got {', '.join(row)}; {mend}")
