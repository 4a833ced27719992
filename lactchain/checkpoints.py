"""Checkpoints that are whole or refused: every byte is covered by a manifest, written last.

A directory counts as a checkpoint when its `manifest.json` verifies: names, sizes and SHA-256 of
all files, the directory's own name, and a digest of the manifest itself. Hidden files, such as a
file browser's, are no part of it, and others that were put there are named and left alone. Files
that another process reads are written beside their place and renamed into it.

What could be whole, or of use to somebody, is never deleted: only checkpoints of the same run that
newer ones replace are, and what a crash left without a manifest.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from lactchain.errors import ConfigError, DataError, DiskError

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_REMOVED = ".removed-"

log = logging.getLogger(__name__)


@contextmanager
def disk_errors(path: str | Path, num_bytes: int | None = None) -> Iterator[None]:
    """Turns the failures of writing to `path` into a `DiskError` that says what was missing.

    Holds for plain files, parquet, safetensors and `torch.save`.

    Args:
        path: where the writing goes.
        num_bytes: how much is to be written, where it is known.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = _disk_reason(error)
        if reason is None:
            raise
        raise DiskError(_disk_message(Path(path), num_bytes, reason)) from error


def _disk_reason(error: OSError | SafetensorError | RuntimeError) -> str | None:
    """What the operating system said, None where the error is about something else."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if code := re.search(r"\(os error (\d+)\)", str(error)):  # safetensors hands it on as text
        return os.strerror(int(code[1]))
    if "inline_container" in str(error):  # torch.save's writer does not say why it fell short
        return "torch.save fell short"
    return None


def _disk_message(path: Path, num_bytes: int | None, reason: str) -> str:
    existing = next(p for p in (path, *path.absolute().parents) if os.path.exists(p))
    need = "" if num_bytes is None else f", need {num_bytes:,} bytes"
    free = shutil.disk_usage(existing).free
    return f"{path}: could not be written ({reason}){need}, free {free:,} bytes"


def atomic_write(path: str | Path, data: bytes | str) -> None:
    """Writes a file that is, for every reader and after every crash, the old one or the new one.

    Raises:
        DiskError: the disk is full or read-only; the old file is untouched.
    """
    path = Path(path)
    content = data.encode("utf-8") if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.tmp")
    with disk_errors(path, len(content)):
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _sync_directory(path.parent)


def write_manifest(directory: str | Path, extra: Mapping[str, Any]) -> None:
    """Declares a directory complete: all its files reach the disk, then their manifest does.

    Args:
        directory: holds the files, subdirectories included.
        extra: what else the manifest records and `verify_manifest` returns: parent checkpoint,
            base model, versions, ...; values that JSON can hold.

    Raises:
        DataError: the directory holds a symbolic link.
        DiskError: the disk is full or read-only.
    """
    directory = Path(directory)
    reserved = {"schema_version", "name", "files"} & set(extra)
    if reserved:
        raise ValueError(f"extra: expected none of the manifest's own keys, got {sorted(reserved)}")
    paths = _files(directory)
    with disk_errors(directory):
        for path in paths:
            _sync_file(path)
        for folder in {path.parent for path in paths} | {directory}:
            _sync_directory(folder)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "name": directory.absolute().name,
        **json.loads(json.dumps(extra)),  # as reading gives it back: keys are text, tuples lists
        "files": {str(path.relative_to(directory)): _describe(path) for path in paths},
    }
    atomic_write(directory / MANIFEST, _serialise(manifest))


def verify_manifest(directory: str | Path) -> dict[str, Any]:
    """The manifest of a directory all of whose listed files are as they were written.

    Files that are not listed are named in the log.

    Raises:
        DataError: naming the file that is missing, cut, changed or a symbolic link.
        ConfigError: a newer version of the project made the directory.
    """
    directory = Path(directory)
    manifest = _read_manifest(directory / MANIFEST)
    recorded = manifest["files"]
    for name, expected in recorded.items():
        _verify_file(directory / name, expected)
    for path in sorted(directory.rglob("*")):
        is_folder = path.is_dir() and not path.is_symlink()
        if not is_folder and str(path.relative_to(directory)) not in {*recorded, MANIFEST}:
            _name_foreign(path)
    return manifest


def _verify_file(path: Path, expected: Mapping[str, Any]) -> None:
    if path.is_symlink() or not path.is_file():
        found = "a link or special file" if os.path.lexists(path) else "none"
        raise DataError(f"{path}: {MANIFEST} lists a plain file here, found {found}")
    size = path.stat().st_size
    if size != expected["size"]:
        raise DataError(f"{path}: expected {expected['size']} bytes, got {size}")
    if _sha256(path) != expected["sha256"]:
        raise DataError(f"{path}: damaged, its SHA-256 is not the one in {MANIFEST}")


@cache  # once: manifests are verified again and again
def _name_foreign(path: Path) -> None:
    log.warning("%s: not listed in %s, left alone", path, MANIFEST)


def latest_checkpoint(directory: str | Path, **expected: Any) -> Path | None:
    """The newest `checkpoint-N` that verifies, None when there is none.

    Args:
        directory: holds the checkpoints.
        expected: entries that the manifest must have, such as `run_id`; a checkpoint of another
            run is skipped.

    What is skipped is logged in one line each, with the reason, and stays where it is.

    Raises:
        ConfigError: a newer version of the project made the newest one.
    """
    for path in _newest_first(directory):
        reason = _reason_to_skip(path, expected)
        if reason is None:
            return path
        log.warning("skipped %s: %s", path, reason)
    return None


def prune_checkpoints(directory: str | Path, keep: int, **expected: Any) -> None:
    """Removes checkpoints older than the `keep` newest ones that verify.

    Call it when a new manifest is written: nothing goes before something newer is known to be
    good. A removal that is cut short leaves no half checkpoint behind.

    Args:
        directory: holds the checkpoints.
        keep: how many stay.
        expected: as for `latest_checkpoint`; a stray checkpoint of another run then neither counts
            as one that is kept, nor goes.
    """
    num_valid = 0
    for path in _newest_first(directory):
        if num_valid < keep:
            num_valid += _reason_to_skip(path, expected) is None
        elif _is_replaceable(path, expected):
            _remove(path)
    for leftover in Path(directory).glob(f"{_REMOVED}*"):
        shutil.rmtree(leftover)


def clear_place(path: Path) -> None:
    """Makes room for a checkpoint that is to be written at `path`.

    What a crash left there without a manifest goes; anything else, damaged or of another run, is
    set aside under another name. Either is logged.

    Raises:
        DiskError: the disk is read-only.
    """
    if not path.exists():
        return
    with disk_errors(path):
        if (path / MANIFEST).exists():
            aside = _name_aside(path)
            os.rename(path, aside)
            log.warning("%s: is written anew; what was there is now %s", path, aside.name)
        else:
            _remove(path)
            log.info("%s: was never completed, is written anew", path)


def _name_aside(path: Path) -> Path:
    names = (path.with_name(f"set-aside-{number}-{path.name}") for number in count(1))
    return next(name for name in names if not name.exists())


def _newest_first(directory: str | Path) -> list[Path]:
    directory = Path(directory)
    if not directory.is_dir():
        return []
    found = [p for p in directory.iterdir() if p.is_dir() and _CHECKPOINT.fullmatch(p.name)]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)


def _reason_to_skip(path: Path, expected: Mapping[str, Any]) -> str | None:
    try:
        manifest = verify_manifest(path)
    except DataError as error:
        return str(error)
    return _mismatch(path, manifest, expected)


def _mismatch(path: Path, manifest: Mapping[str, Any], expected: Mapping[str, Any]) -> str | None:
    for key, value in {"name": path.name, **expected}.items():
        if manifest.get(key) != value:
            return f"{key}: expected {value!r}, got {manifest.get(key)!r}"
    return None


def _is_replaceable(path: Path, expected: Mapping[str, Any]) -> bool:
    """Whether a checkpoint was never completed, or is one of those expected, whole or not."""
    if not (path / MANIFEST).exists():
        return True
    try:
        manifest = _read_manifest(path / MANIFEST)
    except (DataError, ConfigError):
        return False
    return _mismatch(path, manifest, expected) is None


def _remove(path: Path) -> None:
    """Removes a checkpoint in one step for all who look; its files go after that."""
    doomed = path.with_name(f"{_REMOVED}{path.name}")
    if doomed.exists():
        shutil.rmtree(doomed)
    os.rename(path, doomed)
    shutil.rmtree(doomed)


def _files(directory: Path) -> list[Path]:
    """What a manifest lists: all files below a directory but itself and hidden ones; sorted.

    Raises:
        DataError: one of them is a symbolic link or no plain file.
    """
    paths = [path for path in sorted(directory.rglob("*")) if not _is_hidden(path, directory)]
    for path in paths:
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise DataError(f"{path}: expected a plain file, got a link or special file")
    return [path for path in paths if path.is_file() and path != directory / MANIFEST]


def _is_hidden(path: Path, directory: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(directory).parts)


def _describe(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _serialise(manifest: Mapping[str, Any]) -> str:
    """The one text of a manifest, closed by the digest of all before it."""
    body = json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False)
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f'{{\n"digest": "{digest}",\n"manifest": {body}\n}}\n'


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode()
        manifest = json.loads(text)["manifest"]
        intact = _serialise(manifest) == text
    except FileNotFoundError:
        raise DataError(f"{path}: missing, the directory was never completed") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: damaged, it is no manifest") from error
    if not intact:
        raise DataError(f"{path}: damaged, its digest does not match")
    version = manifest["schema_version"]
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"{path}: made by a newer version of lactchain (schema version {version}, this one "
            f"reads {SCHEMA_VERSION}); upgrade lactchain"
        )
    return manifest


def _sync_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
