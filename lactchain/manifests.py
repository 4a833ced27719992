"""Manifests: what was whole when it was written, where it lies, and which run it belongs to.

A folder is whole when its `manifest.json` verifies: the names, sizes and SHA-256 of all its files,
and a digest of the manifest itself, which is written last. Hidden files, such as a file browser's,
are no part of it, nor is a model card, which people may edit; others that were put there are named
and left alone. A file that is read by itself has its manifest beside it: `00000-of-00003.parquet`
has `00000-of-00003.manifest`.

Every manifest names the run and the place in the run's folder that it was written at. What was put
there from elsewhere is refused; outside of runs, folders and files may be moved and renamed. A run
may hold what its own stages wrote, by the same names, as copies do that were made through links.

All that read raise `DataError` for what is missing, damaged or of another place, and `ConfigError`
for what a newer version of the project wrote.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lactchain.errors import ConfigError, DataError
from lactchain.files import (
    SEAL,
    atomic_write,
    disk_errors,
    read_json,
    seal,
    sha256,
    sync_file,
    sync_folder,
    write_json,
)

MANIFEST = "manifest.json"
CARD = "README.md"
RUN_FILE = "environment.json"
"""In a run's folder; names the run."""
SCHEMA_VERSION = 1
_OWN_KEYS = {"schema_version", "run_id", "place", "files", "size", "sha256"}

log = logging.getLogger(__name__)


def origin(path: str | Path) -> dict[str, Any]:
    """The run whose folder a path lies in, and its place there; outside of runs None and its name.

    The innermost run counts: a stage of a pipeline is a run of its own. A link leads to where the
    file itself lies.
    """
    path = Path(path).resolve()
    for folder in path.parents:
        if (folder / RUN_FILE).is_file():
            run_id = read_run_file(folder).get("run_id")
            if run_id is not None:
                return {"run_id": run_id, "place": path.relative_to(folder).as_posix()}
    return {"run_id": None, "place": path.name}


def write_run_file(folder: Path, facts: Mapping[str, Any]) -> None:
    """Writes what names the run in a folder, and closes it with a checksum."""
    write_json(folder / RUN_FILE, seal(facts, 0), indent=2)


def read_run_file(folder: Path) -> dict[str, Any]:
    """What names the run in a folder; `DataError` where it is damaged."""
    stored = read_json(folder / RUN_FILE)
    facts = {key: value for key, value in stored.items() if key != SEAL}
    if stored != seal(facts, 0):
        raise DataError(f"{folder / RUN_FILE}: damaged; remove it, the same command writes it anew")
    return facts


def misplacement(path: str | Path, manifest: Mapping[str, Any]) -> str | None:
    """What tells that a folder or file was written elsewhere; None where it belongs here."""
    for key, expected in origin(path).items():
        found = manifest.get(key)
        if found != expected and not (key == "run_id" and _is_of_a_stage(path, found)):
            return f"{key}: expected {expected!r}, got {found!r}"
    return None


def _is_of_a_stage(path: str | Path, run_id: str) -> bool:
    """Whether the run that a path lies in has a stage, a run of its own, of this id."""
    parents = Path(path).resolve().parents
    run = next((folder for folder in parents if (folder / RUN_FILE).is_file()), None)
    return run is not None and any(
        read_run_file(file.parent).get("run_id") == run_id for file in run.rglob(RUN_FILE)
    )


def write_manifest(directory: str | Path, extra: Mapping[str, Any]) -> None:
    """Declares a directory complete: all its files reach the disk, then their manifest does.

    `extra` is what else it records and `verify_manifest` returns, such as the base model; a link in
    the directory is refused.
    """
    directory = Path(directory)
    paths = _files(directory)
    with disk_errors(directory):
        for path in paths:
            sync_file(path)
        for folder in {path.parent for path in paths} | {directory}:
            sync_folder(folder)
        _sync_name(directory)
    files = {
        str(path.relative_to(directory)): {"size": path.stat().st_size, "sha256": sha256(path)}
        for path in paths
    }
    _write(directory / MANIFEST, directory, extra, {"files": files})


def verify_manifest(directory: str | Path) -> dict[str, Any]:
    """The manifest of a directory all of whose listed files are as they were written.

    Files that are not listed are named in the log.
    """
    directory = Path(directory)
    manifest = read_manifest(directory / MANIFEST)
    _check_origin(directory, manifest)
    recorded = manifest["files"]
    for name in sorted(recorded):
        _verify_file(directory / name, recorded[name])
    for path in sorted(directory.rglob("*")):
        is_folder = path.is_dir() and not path.is_symlink()
        if not is_folder and str(path.relative_to(directory)) not in {*recorded, MANIFEST, CARD}:
            _name_foreign(path)
    return manifest


def verify_listed(file: Path) -> None:
    """Checks one file of a directory whose manifest may list it, without the time for all."""
    files = read_manifest(file.parent / MANIFEST)["files"]
    if file.name in files:
        _verify_file(file, files[file.name])


def write_with_manifest(path: str | Path, content: bytes, extra: Mapping[str, Any]) -> None:
    """Writes a file's manifest, with `extra` in it, beside its place, and then the file.

    So that no crash leaves a file that nothing vouches for.
    """
    _write(manifest_beside(path), path, extra, describe(content))
    atomic_write(path, content)


def read_with_manifest(path: str | Path) -> tuple[bytes, dict[str, Any], bool]:
    """A file's bytes, its manifest, and whether the bytes are those that were written."""
    manifest = read_manifest(manifest_beside(path))
    _check_origin(Path(path), manifest)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}, though there is a manifest of it") from error
    return content, manifest, describe(content).items() <= manifest.items()


def verify_if_described(path: str | Path, mend: str) -> None:
    """Raises `DataError` if a file of a run is not as the manifest beside it says, or has none.

    Outside of runs a file may be without; `mend` tells how to come by another file.
    """
    beside = manifest_beside(path)
    if beside.is_file():
        if not read_with_manifest(path)[2]:
            raise DataError(f"{path}: damaged; {mend}")
    elif Path(path).is_file() and in_a_run(Path(path)):
        raise DataError(f"{beside}: missing, nothing vouches for {Path(path).name}; {mend}")


def in_a_run(path: Path) -> bool:
    """Whether a file or folder lies in that of a run, which vouches for all that it writes."""
    return any((parent / RUN_FILE).is_file() for parent in path.resolve().parents)


def manifest_beside(path: str | Path) -> Path:
    """Where the manifest of a file is that is read by itself."""
    return Path(path).with_suffix(".manifest")


def read_manifest(path: Path) -> dict[str, Any]:
    """A manifest that is whole, or an error; whether the files are whole is another question."""
    try:
        text = path.read_bytes().decode()
        manifest = json.loads(text)["manifest"]
        intact = _serialise(manifest) == text
    except FileNotFoundError:
        raise DataError(f"{path}: missing, what it describes was never completed") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: damaged, it is no manifest") from error
    if not intact:
        raise DataError(f"{path}: damaged, its checksum does not match")
    version = manifest["schema_version"]
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"{path}: made by a newer version of lactchain (schema version {version}, this one "
            f"reads {SCHEMA_VERSION}); upgrade lactchain"
        )
    return manifest


def _sync_name(path: Path) -> None:
    """Lets the name of a folder, and of those that it is in, reach the disk, up to its run's."""
    parents = list(path.absolute().parents)
    run = next((n for n, parent in enumerate(parents) if (parent / RUN_FILE).is_file()), 0)
    for folder in parents[: run + 1]:
        sync_folder(folder)


def _write(
    path: Path, described: str | Path, extra: Mapping[str, Any], contents: Mapping[str, Any]
) -> None:
    if reserved := _OWN_KEYS & set(extra):
        raise ValueError(f"extra: expected none of the manifest's own keys, got {sorted(reserved)}")
    manifest = {
        "schema_version": SCHEMA_VERSION,
        **origin(described),
        **json.loads(json.dumps(extra)),  # as reading gives it back: keys are text, tuples lists
        **contents,
    }
    atomic_write(path, _serialise(manifest))


def _serialise(manifest: Mapping[str, Any]) -> str:
    """The one text of a manifest, closed by the digest of all before it."""
    body = json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False)
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f'{{\n"digest": "{digest}",\n"manifest": {body}\n}}\n'


def describe(content: bytes) -> dict[str, Any]:
    """Size and SHA-256 of a file's content."""
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _check_origin(path: Path, manifest: Mapping[str, Any]) -> None:
    if origin(path)["run_id"] is None:
        return
    if reason := misplacement(path, manifest):
        raise DataError(
            f"{path}: was written elsewhere ({reason}); remove it, and keep copies outside of the "
            "folders of runs"
        )


def _verify_file(path: Path, expected: Mapping[str, Any]) -> None:
    if path.is_symlink() or not path.is_file():
        found = "a link or special file" if os.path.lexists(path) else "none"
        raise DataError(f"{path}: {MANIFEST} lists a plain file here, found {found}")
    size = path.stat().st_size
    if size != expected["size"]:
        raise DataError(f"{path}: expected {expected['size']} bytes, got {size}")
    if sha256(path) != expected["sha256"]:
        raise DataError(f"{path}: damaged, its SHA-256 is not the one in {MANIFEST}")


@cache  # once: manifests are verified again and again
def _name_foreign(path: Path) -> None:
    log.warning("%s: not listed in %s, left alone", path, MANIFEST)


def _files(directory: Path) -> list[Path]:
    """The plain files below a directory but manifest, card and hidden ones; links are refused."""
    paths = [path for path in sorted(directory.rglob("*")) if not _is_hidden(path, directory)]
    for path in paths:
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise DataError(f"{path}: expected a plain file, got a link or special file")
    described = {directory / MANIFEST, directory / CARD}
    return [path for path in paths if path.is_file() and path not in described]


def _is_hidden(path: Path, directory: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(directory).parts)
