"""Run folders: what one must be before a run lives in it, and what is left when none did."""

import fcntl
import logging
import os
import secrets
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from lactchain import distributed
from lactchain.config import differences, load, to_yaml
from lactchain.environments.registry import not_imported
from lactchain.errors import ConfigError, DataError, DiskError, LactChainError
from lactchain.files import atomic_write, disk_errors, make_folder, whole_lines
from lactchain.inputs import Inputs, check_inputs, inputs_of
from lactchain.manifests import (
    MANIFEST,
    RUN_FILE,
    describe,
    read_manifest,
    read_run_file,
    write_run_file,
)
from lactchain.progress import nothing_under_way
from lactchain.provenance import describe_environment
from lactchain.same_run import HARMLESS, check_changes, identity_of, redact, without_moved

_ABOUT = ("config.yaml", RUN_FILE, "sizes.json", "sizes.manifest")
"""Files of a run that follow from its command alone."""
TOLD = ("metrics.jsonl", "evaluations.json", "lineage.jsonl", "trials.jsonl")
"""Files in which a run tells what became of it; its end vouches for them."""
_FILES = {"config.yaml", RUN_FILE, "summary.json", *TOLD}
_SEEN = ".seen-"
"""Begins the names of files by which processes find out whether they see the same folder."""
_TRACKERS = {"wandb"}
"""Folders that trackers write and nobody reads back; links lead out of them to their logs."""

log = logging.getLogger(__name__)


def prepare_folder(
    directory: Path, settings: Mapping[str, Any], resume: str, config: Any
) -> IO[str]:
    """Locks the folder, checks that the run may live in it, and writes down what it is."""
    with disk_errors(directory):
        if directory.is_file():
            raise ConfigError(
                f"run.run_dir: expected a folder, got the file {directory}; choose another with "
                "--run.run_dir"
            )
        make_folder(directory)
        lock = _lock(directory)
    with ExitStack() as on_failure:
        on_failure.callback(lock.close)
        _check_plain(directory)
        with disk_errors(directory):
            for mark in directory.glob(f"{_SEEN}*"):  # of a process that was killed
                mark.unlink()
        begun = has_produced(directory)
        if resume != "must" and not begun:
            _forget(directory)
        is_lost = _check_folder(directory, settings, resume)
        before = read_run_file(directory) if (directory / RUN_FILE).is_file() else {}
        _check_imports(directory, before)
        if (stored := directory / "config.yaml").is_file() and not is_lost:
            _check_own(directory, before, (redact(load(stored)), settings))
        inputs = _inputs(directory, before, config)
        run_id = run_id_of(directory, settings)
        named = {"run_id": run_id, "identity": identity_of(settings)}
        text = to_yaml(settings)
        described = {"inputs": inputs, "config": describe(text.encode())}
        about = before | named | describe_environment() | described
        write_run_file(directory, about)  # first: a kill before the next leaves a run's own two
        atomic_write(stored, text)
        if is_lost:
            log.warning("%s: was missing or damaged, and is written anew", stored)
        if begun and not before:
            log.warning(
                "%s: was missing, and is written anew; which models and data the run began with is "
                "not known any more",
                directory / RUN_FILE,
            )
        _drop_torn_line(directory / "metrics.jsonl")
        if begun and not (directory / "summary.json").exists() and nothing_under_way():
            log.info("%s: was left unfinished, and goes on", directory)
        on_failure.pop_all()
    return lock


_locks: weakref.WeakSet[IO[str]] = weakref.WeakSet()
# A forked worker that outlives its parent must not keep the folder locked.
os.register_at_fork(after_in_child=lambda: [lock.close() for lock in _locks])


def _lock(directory: Path) -> IO[str]:
    """Holds `directory/lock` until it is closed or this process dies, however it dies."""
    path = directory / "lock"
    if path.is_symlink() or not (path.is_file() or not path.exists()):
        raise ConfigError(f"{path}: expected a plain file, got a link or folder; remove it")
    lock = open(path, "a+")  # noqa: SIM115  - open for as long as the run is
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with lock:
            lock.seek(0)
            owner = lock.read().strip()
        raise ConfigError(
            f"{directory}: process {owner} works in this folder; "
            "wait for it, or choose another with --run.run_dir"
        ) from None
    except OSError as error:
        with lock:
            raise DiskError(
                f"{directory}: the file system does not lock files ({error.strerror}); mount it "
                "with locks (NFS: nfsvers=4, or local_lock=flock for a single machine), or choose "
                "a folder on another with --run.run_dir"
            ) from error
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    _locks.add(lock)
    return lock


def seen_by_all(directory: Path) -> bool:
    """Whether a file that rank 0 writes into the folder is there for all processes."""
    if distributed.world_size() == 1:
        return True
    # Its name is new every time: no machine has cached that it is missing.
    mark = int(distributed.total(secrets.randbelow(2**48) if distributed.is_main() else 0))
    file = directory / f"{_SEEN}{mark}"
    if distributed.is_main():
        atomic_write(file, "")
    distributed.barrier()
    missing = distributed.any_of(not file.exists())
    if distributed.is_main():
        file.unlink()
    return not missing


def _check_plain(directory: Path) -> None:
    """Refuses links that lead out of a run, pipes, and folders where its own files should be.

    Whoever hands a run on could have something else read by them, or written over. What is never
    read back may be anything.
    """
    inside = directory.resolve()
    for path in _read_back(directory):
        kind = _foreign_kind(path, inside)
        if kind and os.path.lexists(path):  # others may be at work in it
            raise ConfigError(
                f"{path}: expected a plain file or folder of this run, got {kind}; remove it, or "
                "put a copy of what it stands for in its place"
            )


def _read_back(directory: Path) -> Iterator[Path]:
    """All below a folder but what is hidden, or a tracker's."""
    for folder, folders, files in os.walk(directory):
        folders[:] = [name for name in folders if name[0] != "." and name not in _TRACKERS]
        names = (name for name in (*folders, *files) if name[0] != ".")
        yield from (Path(folder, name) for name in names)


def _foreign_kind(path: Path, inside: Path) -> str | None:
    """What lies where only plain files and folders of a run should; None where it is one."""
    try:
        if not path.is_symlink() and not (path.is_dir() or path.is_file()):
            return "another kind of file"
        with suppress(FileNotFoundError):  # a link may lead nowhere yet, but not in a loop
            path.stat()
        if path.is_symlink() and not path.resolve().is_relative_to(inside):
            return "a link that leads out of the run"
        return "a folder" if path.name in _FILES and path.is_dir() else None
    except OSError as error:
        return f"what cannot be read ({error.strerror})"


def run_id_of(directory: Path, settings: Mapping[str, Any]) -> str:
    """The id that a folder's run has had from the start; of a new one, that of its settings.

    Where `environment.json` was lost, what the run has written tells its id, if all of it tells the
    same.
    """
    environment, stored = directory / RUN_FILE, directory / "config.yaml"
    run_id = read_run_file(directory).get("run_id") if environment.is_file() else None
    if run_id is not None:
        return run_id
    written = _ids_in_manifests(directory)
    if len(written) == 1:
        return written.pop()
    return identity_of(load(stored) if stored.is_file() else settings)


def _ids_in_manifests(directory: Path) -> set[str]:
    """The runs that whole manifests name which were written where they lie in a run's folder."""
    found = set()
    for file in directory.rglob(MANIFEST):
        with suppress(LactChainError):
            manifest = read_manifest(file)
            if manifest.get("place") == file.parent.relative_to(directory).as_posix():
                found.add(manifest.get("run_id"))
    return found - {None}


def _check_own(
    directory: Path, before: Mapping[str, Any], of_this_run: Iterable[Mapping[str, Any]]
) -> None:
    """Refuses the name of another run.

    Settings of this run are those in the folder, and those of the command: a kill may have come
    between the two files.
    """
    identities = {identity_of(settings) for settings in of_this_run}
    if before.get("identity") not in {None, *identities}:
        raise DataError(
            f"{directory / RUN_FILE}: belongs to another run than config.yaml; remove it, the same "
            "command writes it anew"
        )


def has_produced(directory: Path) -> bool:
    """Whether there is anything in the folder but what says which run it is: it is that run's then.

    Folders are not counted, nor hidden files; the files of a run further down are.
    """
    return any(path.parent != directory or not _only_names(path) for path in _files(directory))


def _files(directory: Path) -> Iterator[Path]:
    """What lies in a folder and below it, but for hidden files."""
    found = (path for path in directory.rglob("*") if path.is_file() or path.is_symlink())
    return (path for path in found if path.name[0] != ".")


def _only_names(path: Path) -> bool:
    """Whether a file is there to say which run it is, and that it is under way."""
    return path.name == "lock" or (path.name in _ABOUT and (path.parent / RUN_FILE).is_file())


def _forget(directory: Path) -> None:
    """Lets another run begin in a folder in which nothing was produced."""
    for name in _ABOUT:
        (directory / name).unlink(missing_ok=True)


def leave_nothing(directory: Path) -> None:
    """Removes a folder in which nothing was produced, unless it holds anything else."""
    with suppress(OSError):  # what ended the run is to be told, and not what stays behind
        _forget(directory)
        (directory / "lock").unlink(missing_ok=True)
        for folder in sorted([directory, *directory.rglob("*")], reverse=True):
            if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
                folder.rmdir()


def _check_folder(directory: Path, settings: Mapping[str, Any], resume: str) -> bool:
    """Refuses a folder that this run may not live in.

    Returns:
        Whether its `config.yaml` is missing or damaged, while all else is known to be this run's.
    """
    stored = directory / "config.yaml"
    visible = [p for p in directory.iterdir() if p.name != "lock" and p.name[0] != "."]
    foreign = [p.name for p in visible if not p.is_dir() or any(_files(p))]
    there_is_one = stored.exists() or (RUN_FILE in foreign and has_produced(directory))
    if resume == "must" and not there_is_one and not set(foreign) - {RUN_FILE}:
        raise ConfigError(f"{directory}: resume is must, but there is no run to resume")
    if resume == "never" and there_is_one:
        raise ConfigError(f"{directory}: resume is never, but there is a run in this folder")
    if _is_known(directory, settings) and not _tells_the_same(stored, settings):
        return True
    if not stored.exists() and RUN_FILE in foreign:
        raise ConfigError(
            f"{stored}: missing, and not known to be of these settings; put a copy back, or choose "
            "another folder with --run.run_dir"
        )
    if not stored.exists() and foreign:
        raise ConfigError(f"{directory}: expected a run or nothing, found {sorted(foreign)[:3]}")
    if stored.exists():
        before = redact(load(stored))
        changed = differences(before, settings)
        check_changes(directory, without_moved(directory, before, changed))
    return False


def _is_known(directory: Path, settings: Mapping[str, Any]) -> bool:
    """Whether `environment.json`, which is closed with a checksum, tells of these settings."""
    with suppress(DataError):  # also where there is none
        return read_run_file(directory).get("identity") == identity_of(settings)
    return False


def _tells_the_same(stored: Path, settings: Mapping[str, Any]) -> bool:
    """Whether a file holds these settings, but for harmless ones and places that moved."""
    with suppress(ConfigError):
        before = redact(load(stored))
        changed = without_moved(stored.parent, before, differences(before, settings))
        return not any(HARMLESS.isdisjoint(key.split(".")) for key in changed)
    return False


def _check_imports(directory: Path, before: Mapping[str, Any]) -> None:
    """Asks again for the modules that a run was given on its command line."""
    if missing := not_imported(before.get("imports", [])):
        raise ConfigError(
            f"{directory}: this run imported {', '.join(missing)}; add --import "
            f"{','.join(missing)} to the command"
        )


def _inputs(directory: Path, before: Mapping[str, Any], config: Any) -> Inputs:
    """What the run has read from elsewhere since it began, as it still is unless it is over."""
    recorded = before.get("inputs", {})
    if (directory / "summary.json").exists():
        return recorded
    found = inputs_of(config)
    check_inputs(recorded, found, directory)
    return recorded | found


def _drop_torn_line(path: Path) -> None:
    """Damage further up stays, for what is read back to name it."""
    if path.exists():
        content = path.read_bytes()
        whole = whole_lines(content)
        if whole != content:
            atomic_write(path, whole)
