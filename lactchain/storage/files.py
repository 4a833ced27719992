"""Files: written whole or not at all, and read with an error that says what is wrong.

Files that another process reads are written beside their place and renamed into it. All that
write raise `DiskError` where the disk is full or read-only, and leave an old file untouched; all
that read raise `DataError`, and say which file, or which line of it, is missing or damaged.
"""

import hashlib
import json
import math
import os
import re
import shutil
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lactchain.errors import DataError, DiskError

SEAL = "seal"
SAMPLE_BYTES = 1 << 20
"""Of a large file this much is hashed at its beginning and at each of 16 places."""


@contextmanager
def disk_errors(path: str | Path, num_bytes: int | None = None) -> Iterator[None]:
    """Turns failures of writing to `path` into a `DiskError` that says what was missing.

    Holds for plain files, parquet, safetensors, tokenizers and `torch.save`.
    """
    try:
        yield
    except Exception as error:  # tokenizers raise nothing narrower
        reason = _disk_reason(error)
        if reason is None:
            raise
        raise DiskError(_disk_message(Path(path), num_bytes, reason)) from error


def _disk_reason(error: Exception) -> str | None:
    """What the operating system said, None where the error is about something else."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if code := re.search(r"\(os error (\d+)\)", str(error)):  # libraries in Rust: it is a text
        return os.strerror(int(code[1]))
    # torch.save's writer does not say why it fell short.
    if re.search(r"inline_container|basic_ios::clear", str(error)):
        return "torch.save fell short"
    return None


def _disk_message(path: Path, num_bytes: int | None, reason: str) -> str:
    existing = next(p for p in (path, *path.absolute().parents) if os.path.exists(p))
    need = "" if num_bytes is None else f", need {num_bytes:,} bytes"
    free = shutil.disk_usage(existing).free
    return f"{path}: could not be written ({reason}){need}, free {free:,} bytes"


def atomic_write(path: str | Path, data: bytes | str) -> None:
    """Writes a file that is, for every reader and after every crash, the old one or the new one."""
    path = Path(path)
    if not path.name:
        raise DiskError(f"{path}: could not be written, expected the name of a file")
    content = data.encode("utf-8") if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.tmp")
    with disk_errors(path, len(content)):
        try:
            temporary.unlink(missing_ok=True)  # of a crash; nor is a link there followed
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def stand_for(link: Path, target: str | None) -> None:
    """Lets a name lead to another folder, relative to its own; None: to nothing.

    It is a link, or, on a file system without links, a copy. What had that name before goes, also
    a folder: whoever copies a run may follow its links.
    """
    temporary = link.with_name(f".{link.name}.tmp")
    with disk_errors(link):
        for place in (temporary, link):
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
        if target is None:
            link.unlink(missing_ok=True)
            return
        temporary.unlink(missing_ok=True)
        try:
            os.symlink(target, temporary)
        except OSError:
            shutil.copytree(link.parent / target, temporary)
        os.replace(temporary, link)
        sync_folder(link.parent)


def make_folder(path: str | Path) -> None:
    """Makes a folder, and those above it that are missing; their names have reached the disk."""
    path = Path(path)
    with disk_errors(path):
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            problem = f"{path}: could not be written, a file is in its way; move that"
            raise DiskError(problem) from error
        for folder in missing:
            sync_folder(folder.parent)


def files_below(folder: Path) -> Iterator[Path]:
    """What lies in a folder and below it, by name, but for folders and what is hidden."""
    for path in sorted(folder.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not is_hidden and (path.is_symlink() or not path.is_dir()):
            yield path


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder and below it."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)


def in_bytes(size: float) -> str:
    """A size as people read it: 1.2 GB, 340 MB, 0.1 MB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"


def sync_file(path: Path) -> None:
    """Returns when what was written into a file has reached the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Returns when the names in a folder have reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: str | Path) -> str:
    """The SHA-256 of a file's bytes, as 64 digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def take_sample(digest: Any, path: Path) -> None:
    """Adds size and bytes of a file to a checksum, of one above 17 MB those at 17 places."""
    size = path.stat().st_size
    digest.update(str(size).encode())
    with path.open("rb") as stream:
        for place in range(17):
            stream.seek(max(place * SAMPLE_BYTES, place * (size - SAMPLE_BYTES) // 16))
            digest.update(stream.read(SAMPLE_BYTES))


def read_json(path: str | Path, mend: str = "") -> dict[str, Any]:
    """The object in a JSON file; `mend` tells at the end of messages how to come by such a file."""
    behind = f"; {mend}" if mend else ""
    try:
        return _object(content_of(path, behind))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file{behind}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: damaged ({error}){behind}") from error


def content_of(path: str | Path, behind: str = "") -> bytes:
    """What is in a file; a pipe may have no end."""
    if not os.path.isfile(path) and os.path.exists(path):
        raise DataError(f"{path}: expected a file, got a folder, a pipe or a device{behind}")
    return Path(path).read_bytes()


def read_versioned_json(
    path: str | Path, version: int, names: Iterable[str] = (), mend: str = ""
) -> dict[str, Any]:
    """The object in a JSON file of this schema version, with all `names` in it; see `read_json`."""
    stored = read_json(path, mend)
    found = stored.pop("schema_version", None)
    if type(found) is not int or found != version:
        raise DataError(f"{path}: expected schema version {version}, got {found}")
    if missing := set(names) - stored.keys():
        raise DataError(f"{path}: damaged, {sorted(missing)} are missing")
    return stored


def check_types(config_class: type, values: Mapping[str, Any]) -> None:
    """Raises `ValueError` unless values of a JSON file are of the types of a class's fields."""
    hints = typing.get_type_hints(config_class)
    for name, value in values.items():
        if not _is_of(value, hints[name]):
            kind = getattr(hints[name], "__name__", str(hints[name])).replace("typing.", "")
            raise ValueError(f"{name}: expected {kind}, got {value!r}")


def _is_of(value: Any, hint: Any) -> bool:
    """Whether a value is of a type; true and false are no numbers."""
    options = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return isinstance(value, str) and value in options
    if options and typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_is_of(value, option) for option in options)
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) else True


def write_json(path: str | Path, value: Any, indent: int | None = None) -> None:
    """Writes a JSON file; see `to_json` for what becomes of NaN."""
    atomic_write(path, to_json(value, indent))


def read_json_lines(path: str | Path) -> list[dict[str, Any]]:
    """The objects of a file with one on each line; none where there is no such file.

    A last line that a crash has cut is left out.
    """
    path = Path(path)
    return parse_json_lines(path, whole_lines(content_of(path))) if path.exists() else []


def whole_lines(content: bytes) -> bytes:
    """The lines of a file without the last one, if a crash has cut it.

    After a loss of power there may be zeros in the place of some of it.
    """
    lines = content.split(b"\n")[:-1]
    if lines and b"\0" in lines[-1]:
        del lines[-1]
    return b"".join(line + b"\n" for line in lines)


def parse_json_lines(path: Path, content: bytes) -> list[dict[str, Any]]:
    """The objects on the lines of a file's content."""
    records = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            records.append(_object(line))
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path}: line {number} is no JSON object ({error}); a line holds one:"
                " mend or remove it"
            ) from error
    return records


def seal(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with the checksum of what it says."""
    return {**record, SEAL: hashlib.sha256(f" 0 {to_json(record)}".encode()).hexdigest()}


def write_sealed(path: str | Path, record: Mapping[str, Any]) -> None:
    """Writes a JSON file that is sealed."""
    write_json(path, seal(record), indent=1)


def read_sealed(path: str | Path, mend: str) -> dict[str, Any]:
    """What `write_sealed` was given; `DataError`, with `mend`, where the file was changed."""
    sealed = read_json(path, mend)
    record = {key: value for key, value in sealed.items() if key != SEAL}
    if sealed != seal(record):
        raise DataError(f"{path}: damaged, its checksum does not match; {mend}")
    return record


def write_json_lines(path: str | Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Writes a file with an object on each line anew."""
    atomic_write(path, _lines(records))


def append_json_lines(
    path: str | Path, records: Iterable[Mapping[str, Any]], synced: bool = False
) -> None:
    """Adds objects to a file, a line each; if `synced`, to be read back, they reach the disk."""
    text, is_new = _lines(records), not os.path.exists(path)
    with disk_errors(path, len(text)):
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        if synced and is_new:
            sync_folder(Path(path).parent)


def to_json(value: Any, indent: int | None = None) -> str:
    """The value as JSON can hold it: numpy scalars as numbers, NaN and infinities as null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _lines(records: Iterable[Mapping[str, Any]]) -> str:
    return "".join(to_json(record) + "\n" for record in records)


def _object(content: bytes) -> dict[str, Any]:
    value = json.loads(content)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {type(value).__name__}")
    return value


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(entry) for entry in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
