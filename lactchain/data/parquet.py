"""Parquet files that notice damage: every bit is covered, and a bad row group is named.

The files are plain parquet with page checksums, so any tool reads them. Page checksums leave the
page headers and the footer uncovered; the manifest beside each file covers all of it, and names
the run and the place that it belongs to (`lactchain.storage.manifests`).

Text is stored as parquet strings. Only a column in which some text is not valid UTF-8 (lone
surrogates, which a model can well produce) is stored as bytes; both read back verbatim.

Work is cut into shards: files that processes share out, and that a restarted run keeps. A process
claims the next shard when it has finished one. What a shard holds follows from its number alone, so
that the result depends neither on how many processes worked, nor on who made what, nor on how often
they were killed.
"""

import io
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lactchain.errors import DataError, Interrupted
from lactchain.runs import distributed
from lactchain.runs.console import under_way
from lactchain.runs.process import stop_requested
from lactchain.storage import manifests
from lactchain.storage.files import make_folder
from lactchain.storage.manifests import manifest_beside

ROWS_PER_GROUP = 4096
TEXT, NUMBER = pa.string(), pa.float64()
JSON = pa.json_()  # an object, which the file holds as text
Row = TypeVar("Row")
log = logging.getLogger(__name__)
NO_PARQUET = pa.ArrowException, OSError, ValueError
NO_ROWS = pa.ArrowException, AttributeError, LookupError, TypeError, ValueError, RecursionError

SHARD = re.compile(r"\d{5}-of-(\d{5})\.parquet")
encode_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def write_table(
    path: str | Path,
    table: pa.Table,
    kind: str,
    version: int,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Writes a table into a file, and then the manifest beside it: where that is, it is whole.

    The folder is made where there is none. The manifest records some `facts` as well. `kind` and
    `version` are those of a `Format`.
    """
    buffer = io.BytesIO()
    pq.write_table(
        table,
        buffer,
        row_group_size=ROWS_PER_GROUP,
        compression="zstd",
        write_page_checksum=True,
        store_schema=False,
    )
    make_folder(Path(path).parent)
    about = {"kind": kind, "version": version, **(facts or {})}
    manifests.write_with_manifest(path, buffer.getvalue(), about)


def read_table(path: str | Path, kind: str, version: int) -> pa.Table:
    """Reads a file, or every `*.parquet` of a folder by name; `DataError` names what is damaged."""
    tables = [_read_file(file, kind, version) for file in files(path)]
    return pa.concat_tables(tables, promote_options="permissive")


@contextmanager
def rows_of(path: str | Path, kind: str) -> Iterator[None]:
    """Rows that are not of the kind that their manifest says are a `DataError`."""
    try:
        yield
    except NO_ROWS as error:
        raise DataError(
            f"{path}: its rows are no {kind} ({type(error).__name__}: {error}); make it again"
        ) from error


def files(path: str | Path) -> list[Path]:
    """A file, or every `*.parquet` of a folder by name.

    Raises:
        DataError: there is none, or of files that are numbered some are missing.
    """
    path = Path(path)
    found = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not found or not found[0].is_file():
        raise DataError(f"{path}: expected a parquet file or a folder of them or JSONL, found none")
    if path.is_dir() and (missing := _missing(found)):
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise DataError(
            f"{path / missing[0]}{more}: missing beside the others; give the command that writes "
            "them again if it was not done, or else copy the folder whole"
        )
    return found


def _missing(found: Sequence[Path]) -> list[str]:
    """The names that numbered files, such as 00000-of-00003.parquet, lack."""
    numbered = (SHARD.fullmatch(path.name) for path in found)
    totals = {match[1] for match in numbered if match}
    wanted = {f"{n:05d}-of-{total}.parquet" for total in totals for n in range(int(total))}
    return sorted(wanted - {path.name for path in found})


def is_ours(path: Path) -> bool:
    """Whether a manifest vouches for it, or should: others beside have one, or it is of a run."""
    if path.suffix.lower() != ".parquet":
        return False
    has_others = any(path.parent.glob("*-of-*.manifest"))
    return manifest_beside(path).is_file() or has_others or manifests.run_around(path) is not None


@dataclass(frozen=True)
class Format(Generic[Row]):
    """How rows of one kind lie in files: a column for each of some fields.

    Attributes:
        kind: what the rows are, as in "trajectories" and "pairs"; readers refuse another kind.
        version: of the schema of that kind; readers refuse another one.
        columns: the types of the fields, `TEXT` and `JSON` among them, or lists of these.
        make: a row of its fields.
        fields_of: the fields of a row.
    """

    kind: str
    version: int
    columns: Mapping[str, pa.DataType]
    make: Callable[..., Row]
    fields_of: Callable[[Row], Mapping[str, Any]] = vars

    def write(
        self, path: str | Path, rows: Sequence[Row], facts: Mapping[str, Any] | None = None
    ) -> None:
        """Writes rows to one file; its manifest beside it records `facts` as well.

        Raises:
            DataError: a row holds what JSON cannot, such as NaN or an array.
            DiskError: the file cannot be written.
        """
        write_table(path, self.table(rows), self.kind, self.version, facts)

    def read(self, path: str | Path) -> list[Row]:
        """The rows of a file, or of every `*.parquet` of a folder by name, verbatim.

        Raises:
            DataError: a file is missing, damaged (naming the row group) or of another schema.
        """
        table = read_table(path, self.kind, self.version)
        with rows_of(path, self.kind):
            columns = [_values(table[name], kind) for name, kind in self.columns.items()]
            rows = zip(*columns, strict=True)
            return [self.make(**dict(zip(self.columns, row, strict=True))) for row in rows]

    def table(self, rows: Sequence[Row]) -> pa.Table:
        """Rows in the columns of the schema."""
        values = [self.fields_of(row) for row in rows]
        return pa.table({
            name: _column([fields[name] for fields in values], kind, name)
            for name, kind in self.columns.items()
        })  # fmt: skip


def _column(values: Sequence[Any], kind: pa.DataType, name: str) -> pa.Array:
    """A column of values; texts that UTF-8 cannot hold make it one of bytes."""
    if kind == JSON:
        return _column([_as_json(value, name, n) for n, value in enumerate(values)], TEXT, name)
    if kind == TEXT:
        try:
            return pa.array(values, TEXT)
        except UnicodeEncodeError:
            return pa.array([text.encode("utf-8", "surrogatepass") for text in values], pa.binary())
    if pa.types.is_list(kind) and kind.value_type in (TEXT, JSON):
        offsets = np.cumsum([0, *map(len, values)])
        inner = _column(list(chain.from_iterable(values)), kind.value_type, name)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), inner)
    return pa.array(values, kind)


def _values(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> list[Any]:
    """A column as Python values, lists as tuples; many times faster than `to_pylist`."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_list(kind):
        offsets = column.offsets.to_numpy().tolist()
        values = _values(column.values, kind.value_type)
        return [tuple(values[a:b]) for a, b in pairwise(offsets)]
    values = column.to_numpy(zero_copy_only=False).tolist()
    if pa.types.is_binary(column.type):
        values = [value.decode("utf-8", "surrogatepass") for value in values]
    return _parsed(values) if kind == JSON else values


def _as_json(value: Any, name: str, number: int) -> str:
    try:
        return encode_json(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: number {number}: expected what JSON can hold, {error}") from error


def _parsed(texts: Sequence[str]) -> list[Mapping[str, Any]]:
    # One document is parsed three times faster than its parts one by one.
    found = json.loads(f"[{','.join(texts)}]")
    if len(found) != len(texts) or not all(isinstance(value, dict) for value in found):
        raise ValueError("expected a JSON object in each, got something else")
    return found


def _read_file(path: Path, kind: str, version: int) -> pa.Table:
    if not manifest_beside(path).is_file():
        raise DataError(
            f"{path}: not a file of LactChain, or never completed: there "
            "is no manifest beside it; make it again (a folder of others' episodes is read where "
            "a stage takes --trajectories)"
        )
    content, manifest, is_intact = manifests.read_with_manifest(path)
    if not is_intact:
        raise DataError(f"{path}: damaged, {_damaged_part(content)}; write it again")
    found = manifest["kind"], manifest["version"]
    if found != (kind, version):
        raise DataError(
            f"{path}: expected {kind} of schema version {version}, "
            f"got {found[0]} of schema version {found[1]}"
        )
    try:
        return pq.read_table(io.BytesIO(content))
    except NO_PARQUET as error:
        raise DataError(f"{path}: no parquet file that can be read ({error})") from error


def _damaged_part(content: bytes) -> str:
    """Where a file that has changed is damaged, as far as the page checksums tell."""
    try:
        file = pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True)
    except NO_PARQUET:
        return "in its footer"
    for index in range(file.num_row_groups):
        try:
            file.read_row_group(index)
        except NO_PARQUET:
            return f"in row group {index} of {file.num_row_groups}"
    return "outside the pages of its row groups"


# --- shards ---


def work_through(
    folder: Path,
    work: Sequence[Any],
    shard_size: int,
    make: Callable[[Sequence[Any], int], tuple[Sequence[Row], Mapping[str, float]]],
    rows_as: Format[Row],
    title: str,
) -> tuple[list[Row], Counter[str]]:
    """All rows of all shards, in order; makes those that are missing or damaged.

    Args:
        folder: of the files; on a file system that all processes see.
        work: what the rows are made of, `shard_size` of them for each shard.
        make: takes the work of a shard, and its number; its rows, and a tally: numbers about how
            they came to be. The manifest of the file keeps it, so that it counts whoever made
            them, and when.
        rows_as: how the files hold their rows.

    Returns:
        The rows, and the sum of the tallies. `Interrupted` if a signal asked to stop; the finished
        shards are kept.
    """
    make_folder(folder)
    parts = [work[i : i + shard_size] for i in range(0, len(work), shard_size)]
    count = len(parts)
    paths = [folder / f"{i:05d}-of-{count:05d}.parquet" for i in range(count)]
    with distributed.Shares(count) as shares, under_way(title, count) as step:

        def watch(finished: int) -> None:
            step.at(finished)
            stop_if_requested(folder)

        def missing() -> Iterator[tuple[Sequence[Any], int]]:
            for shard in shares:
                if _is_whole(paths[shard], rows_as):
                    watch(shares.finish())
                else:
                    yield parts[shard], shard

        made = distributed.made(make, missing(), lambda: watch(step.done))
        for shard, (rows, tally) in made:
            rows_as.write(paths[shard], rows, {"tally": tally})
            watch(shares.finish())
        shares.wait(watch)
    total: Counter[str] = Counter()
    for path in paths:
        total.update(manifests.read_manifest(manifest_beside(path))["tally"])
    return [row for path in paths for row in rows_as.read(path)], total


def stop_if_requested(folder: Path) -> None:
    """Raises `Interrupted` if a signal asked this process to stop."""
    if number := stop_requested():
        raise Interrupted(
            number, f"stopped; what is finished is in {folder}, give the same command to go on"
        )


def _is_whole(path: Path, rows_as: Format[Any]) -> bool:
    if not path.exists():
        return False
    try:
        rows_as.read(path)
    except DataError as error:
        log.warning("%s: is made again (%s)", path, error)
        return False
    return True
