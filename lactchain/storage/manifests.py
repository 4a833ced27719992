"""Manifests: what was whole when it was written, where it lies, and which run it belongs to.

A folder is whole when its `manifest.json` verifies: the names, sizes and SHA-256 of all its files.
It is written last, and sealed. Hidden files, such as a file browser's, are no part of it, nor is a
model card, which people may edit; others that were put there are left alone. A file that is read by
itself has its manifest beside it: `0-of-3.parquet` has `_0-of-3.manifest`, which others' readers of
folders pass over.

Every manifest names the run and the place in the run's folder that it was written at. What was put
there from elsewhere is refused; outside of runs, folders and files may be moved and renamed. A run
may hold what its own stages wrote, by the same names, as copies do that were made through links.
Its results lie in folders of their names: actor, critic, values, trajectories, pairs.

All that read raise `DataError` for what is missing, damaged or of another place, and `ConfigError`
for what a newer version of the project wrote.
"""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lactchain.errors import ConfigError, DataError
from lactchain.storage import files

MANIFEST = "manifest.json"
CARD = "README.md"
RUN_FILE = "environment.json"
"""In a run's folder; names the run."""
SCHEMA_VERSION = 1


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run."""
    return (folder / RUN_FILE).is_file()


def run_around(path: str | Path) -> Path | None:
    """The innermost run whose folder a path lies in; a stage of a pipeline is a run of its own.

    A link leads to where the file itself lies.
    """
    return next(filter(is_run, Path(path).resolve().parents), None)


def origin(path: str | Path) -> dict[str, Any]:
    """The run around a path, and its place there; outside of runs None and its name."""
    run, path = run_around(path), Path(path).resolve()
    if run is None:
        return {"run_id": None, "place": path.name}
    run_id = read_run_file(run).get("run_id")
    return {"run_id": run_id, "place": path.relative_to(run).as_posix()}


def result_of(path: str | Path, name: str) -> Path:
    """The folder of a result: as given, or the one of that name in a run; `DataError` if none is.

    A pipeline's episodes and pairs are those that its critic and its actor have learnt from.
    """
    path = Path(path)
    is_there = Path.exists if name in ("pairs", "trajectories") else Path.is_dir
    if not is_there(path):
        raise DataError(f"{path}: no such folder; expected a run, or what it saved")
    if not is_run(path):
        return path
    of_stages = [(path / part).resolve().parent / name for part in ("critic", "actor")]
    found = next((p for p in (path / name, *of_stages) if p.is_dir()), None)
    if found is None:
        raise DataError(f"{path}: this run has saved no {name}; name one that has, or the folder")
    return found


def seen_from(folder: str | Path, place: str | Path) -> str | None:
    """A place as seen from a folder, such as ../base/actor; None unless one run holds both.

    The outermost run counts: the stages of a pipeline stay together.
    """
    folder, place = Path(os.path.abspath(folder)), os.path.abspath(place)
    runs = [parent for parent in (folder, *folder.parents) if is_run(parent)]
    if not runs or not Path(place).is_relative_to(runs[-1]):
        return None
    return os.path.relpath(place, folder)


def is_same_place(old: object, old_folder: str, new: object, new_folder: str | Path) -> bool:
    """Whether two settings name one place inside a run whose folder was the old one."""
    if not isinstance(old, str) or not isinstance(new, str):
        return False
    return os.path.relpath(old or ".", old_folder) == seen_from(new_folder, new)


def write_run_file(folder: Path, facts: Mapping[str, Any]) -> None:
    """Writes what makes a folder that of a run, sealed."""
    files.write_sealed(folder / RUN_FILE, facts)


def read_run_file(folder: Path) -> dict[str, Any]:
    """What a folder's run says of itself; `DataError` where it is damaged."""
    how = "put a copy back, or remove it and give the same command with --inexact"
    facts = files.read_sealed(folder / RUN_FILE, how)
    config = facts.get("config", {})
    parts = [config, config.get("environment") or {}] if isinstance(config, dict) else [config]
    if not all(isinstance(part, dict) for part in parts):
        raise DataError(
            f"{folder / RUN_FILE}: config: expected settings by name, got others; {how}"
        )
    imports = facts.get("imports", [])
    if not (isinstance(imports, list) and all(isinstance(name, str) for name in imports)):
        raise DataError(f"{folder / RUN_FILE}: imports: expected names of modules; {how}")
    return facts


def misplacement(path: str | Path, manifest: Mapping[str, Any]) -> str | None:
    """What tells that a folder or file was written elsewhere.

    None where it belongs here, also by a copy of a stage's result, and outside of runs.
    """
    if (run := run_around(path)) is None:
        return None
    for key, expected in origin(path).items():
        found = manifest.get(key)
        stages = run.rglob(RUN_FILE) if key == "run_id" and found != expected else ()
        if found not in (expected, *(read_run_file(file.parent).get(key) for file in stages)):
            return f"{key}: expected {expected!r}, got {found!r}"
    return None


def write_manifest(directory: str | Path, extra: Mapping[str, Any]) -> None:
    """Declares a directory complete: all its files reach the disk, then their manifest does.

    `extra` is what else it records and `verify_manifest` returns, such as the base model; a link in
    the directory is refused.
    """
    directory = Path(directory)
    paths = _files(directory)
    with files.disk_errors(directory):
        for path in paths:
            with suppress(PermissionError):  # safetensors leaves its files to their owner
                path.chmod(path.parent.stat().st_mode & 0o666)
            files.sync_file(path)
        for folder in {path.parent for path in paths} | {directory}:
            files.sync_folder(folder)
        _sync_name(directory)
    names = {str(path.relative_to(directory)): path for path in paths}
    listed = {n: {"size": p.stat().st_size, "sha256": files.sha256(p)} for n, p in names.items()}
    about = {"schema_version": SCHEMA_VERSION, **origin(directory), **extra}
    files.write_sealed(directory / MANIFEST, about | {"files": listed})


def verify_manifest(directory: str | Path) -> dict[str, Any]:
    """The manifest of a directory all of whose listed files are as they were written."""
    directory = Path(directory)
    manifest = read_manifest(directory / MANIFEST)
    _check_origin(directory, manifest)
    recorded = manifest["files"]
    for name in sorted(recorded):
        _verify_file(directory / name, recorded[name])
    return manifest


def verify_manifest_if_any(path: Path) -> None:
    """Raises `DataError` if a folder is not as its manifest says; most models have none."""
    if (path / MANIFEST).is_file() or run_around(path):
        verify_manifest(path)


def verify_listed(file: Path) -> None:
    """Raises `DataError` if the manifest beside a file lists it otherwise than it is."""
    manifest = file.parent / MANIFEST
    listed = read_manifest(manifest)["files"] if manifest.is_file() else {}
    if file.name in listed:
        _verify_file(file, listed[file.name])


def write_with_manifest(path: str | Path, content: bytes, extra: Mapping[str, Any]) -> None:
    """Writes a file's manifest, with `extra` in it, beside its place, and then the file.

    So that no crash leaves a file that nothing vouches for.
    """
    about = {"schema_version": SCHEMA_VERSION, **origin(path), **extra}
    files.write_sealed(manifest_beside(path), about | describe(content))
    files.atomic_write(path, content)


def read_with_manifest(path: str | Path) -> tuple[bytes, dict[str, Any], bool]:
    """A file's bytes, its manifest, and whether the bytes are those that were written."""
    manifest = read_manifest(manifest_beside(path))
    _check_origin(Path(path), manifest)
    try:
        content = files.content_of(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}, though there is a manifest of it") from error
    return content, manifest, describe(content).items() <= manifest.items()


def verify_if_described(path: str | Path, mend: str) -> dict[str, Any]:
    """The manifest beside a file; nothing where there is none, as may be outside of runs.

    `DataError` where the file is not as it says, or one of a run has none; `mend` tells how to come
    by another file.
    """
    beside = manifest_beside(path)
    if beside.is_file():
        _, manifest, is_intact = read_with_manifest(path)
        if not is_intact:
            raise DataError(f"{path}: damaged; {mend}")
        return manifest
    if Path(path).is_file() and run_around(path):
        raise DataError(f"{beside}: missing, nothing vouches for {Path(path).name}; {mend}")
    return {}


def manifest_beside(path: str | Path) -> Path:
    """Where the manifest of a file is that is read by itself."""
    return Path(path).with_name(f"_{Path(path).stem}.manifest")


def read_manifest(path: Path) -> dict[str, Any]:
    """A manifest that is whole, or an error; whether the files are whole is another question."""
    if not path.exists():
        raise DataError(f"{path}: missing, what it describes was never completed")
    manifest = files.read_sealed(path, "it is no manifest")
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
    run = next((n for n, parent in enumerate(parents) if is_run(parent)), 0)
    for folder in parents[: run + 1]:
        files.sync_folder(folder)


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
    if files.sha256(path) != expected["sha256"]:
        raise DataError(f"{path}: damaged, its SHA-256 is not the one in {MANIFEST}")


def _files(directory: Path) -> list[Path]:
    """The plain files below a directory but manifest, card and hidden ones; links are refused."""
    paths = [*files.files_below(directory)]
    for path in paths:
        if path.is_symlink() or not path.is_file():
            raise DataError(f"{path}: expected a plain file, got a link or special file")
    return [path for path in paths if path not in (directory / MANIFEST, directory / CARD)]
