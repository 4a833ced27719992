"""Runs: one folder each, and the same command continues it.

A run folder holds `config.yaml` (itself a valid `--config`), `environment.json`, `metrics.jsonl`,
whatever its script puts there, and `summary.json`, written last: a folder with it is finished.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

from lactchain import distributed
from lactchain.config import differences, load, to_dict, to_yaml, without
from lactchain.environments.registry import not_imported
from lactchain.errors import ConfigError, DataError, DiskError, LactChainError
from lactchain.files import (
    append_json_lines,
    atomic_write,
    disk_errors,
    make_folder,
    read_json,
    read_json_lines,
    sync_file,
    sync_folder,
    to_json,
    whole_lines,
    write_json_lines,
)
from lactchain.inputs import Inputs, check_inputs, inputs_of
from lactchain.manifests import (
    MANIFEST,
    RUN_FILE,
    describe,
    manifest_beside,
    read_manifest,
    read_run_file,
    verify_if_described,
    write_run_file,
    write_with_manifest,
)
from lactchain.moved import is_same_place
from lactchain.process import refuse_unless_inexact
from lactchain.progress import nothing_under_way
from lactchain.provenance import describe_environment
from lactchain.renamed_settings import refuse_renamed

# Fields that may change when a run continues, since they do not change what it computes.
HARMLESS = frozenset((
    "run_dir", "resume", "timeout_minutes", "report_to", "logging_steps", "log_every_steps",
    "save_every_updates", "save_every_steps", "keep_checkpoints", "push_to_hub", "public",
    "urls", "in_flight", "timeout_seconds", "max_drift",
))  # fmt: skip
_SECRET = re.compile(
    r"(?<!bos_)(?<!eos_)(?<!pad_)(?<!unk_)tokens?$"
    r"|secret|passw|credential|authorization|cookie|^(auth|pat)$|(api|access|private)[_-]?keys?",
    re.I,
)
_SECRET_IN_URL = re.compile(
    r"(?<=://)[^/\s]+(?=@)"
    r"|(?<=[?&])([^=&#\s]*(?:token|key|secret|sig|passw|credential|auth)[^=&#\s]*=)[^&#\s]+",
    re.I,
)

_ABOUT = ("config.yaml", RUN_FILE, "sizes.json", "sizes.manifest")
"""Files of a run that follow from its command alone."""
_TOLD = ("metrics.jsonl", "evaluations.json", "lineage.jsonl", "trials.jsonl")
"""Files in which a run tells what became of it; its end vouches for them."""
_FILES = {"config.yaml", RUN_FILE, "summary.json", *_TOLD}
_TRACKERS = {"wandb"}
"""Folders that trackers write and nobody reads back; links lead out of them to their logs."""

log = logging.getLogger(__name__)


class Run(AbstractContextManager["Run"]):
    """One run folder, open for one group of processes; rank 0 writes, the others only read.

    Use it as a context manager, or call `finish`: both let go of the folder.

    Attributes:
        directory: the folder.
        id: equal for runs of equal configuration (but for harmless fields). It stands in
            `environment.json`, and in the manifest of all that is written into the folder, so that
            nothing of another run is taken for this one's.
    """

    def __init__(self, directory: Path, run_id: str, lock: IO[str] | None) -> None:
        self.directory = directory
        self.id = run_id
        self._lock = lock

    @classmethod
    def of(cls, config: Any) -> "Run":
        """Opens the folder that the config of a script names in `config.run`; see `open`."""
        distributed.timeout = timedelta(minutes=config.run.timeout_minutes)
        return cls.open(config.run.run_dir, config, resume=config.run.resume)

    @classmethod
    def open(cls, run_dir: str | Path, config: Any, *, resume: str = "auto") -> "Run":
        """Creates the folder, or continues the run in it.

        Args:
            run_dir: the folder.
            config: the config dataclass of the run. Fields in `HARMLESS`, at any depth, may differ
                from those in the folder; a difference is logged. Any other is refused.
            resume: auto; never, which refuses a folder with a run; must, which refuses one without.

        Raises:
            ConfigError: the folder belongs to another configuration or to no run at all, another
                process works in it, `resume` does not allow it, or not all processes see it.
            DiskError: the folder cannot be written or locked.
        """
        directory = Path(run_dir)
        settings = _redact(to_dict(config))
        lock, refusal = None, None
        if distributed.is_main():
            try:
                lock = _prepare_folder(directory, settings, resume, config)
            except LactChainError as error:
                refusal = error
        if distributed.any_of(refusal is not None):
            raise refusal or ConfigError(f"{directory}: rank 0 cannot work in this folder")
        if not _seen_by_all(directory):
            raise ConfigError(
                f"{directory.absolute()}: not all processes see what rank 0 writes there; expected "
                "one folder on a file system that all machines share, choose it with --run.run_dir"
            )
        run = cls(directory, _run_id(directory, settings), lock)
        if run.finished and nothing_under_way():
            log.info("%s: finished, see summary.json in it", directory)
        return run

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        alone = distributed.world_size() == 1  # others may just be writing there
        if error and alone and self._lock is not None and not _has_produced(self.directory):
            _leave_nothing(self.directory)
        self.close()

    def close(self) -> None:
        """Lets another process work in the folder."""
        if self._lock is not None:
            self._lock.close()

    def path(self, name: str) -> Path:
        """Where a file or folder of this run is; the folder that holds it is made."""
        path = self.directory / name
        with disk_errors(path):
            make_folder(path.parent)
        return path

    @property
    def finished(self) -> bool:
        """Whether the run is complete."""
        return (self.directory / "summary.json").exists()

    @property
    def told_to_end(self) -> bool:
        """Whether anybody has made a file `stop` in the folder, to end the run in good order."""
        return (self.directory / "stop").exists()

    @property
    def summary(self) -> dict[str, Any]:
        """What `finish` was given; `DataError` where it is damaged, or another run's."""
        path = self.directory / "summary.json"
        verify_if_described(path, "remove it and give the same command to finish again")
        described = manifest_beside(path)
        beside = read_manifest(described).get("beside", {}) if described.is_file() else {}
        for name, description in beside.items():
            file = self.directory / name
            if not file.is_file() or describe(file.read_bytes()) != description:
                raise DataError(
                    f"{file}: missing or damaged since the run ended; put a copy back, or remove "
                    "summary.json beside it and give the same command, for metrics.jsonl with "
                    "--inexact on the command line"
                )
        return read_json(path)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Writes `summary.json`, which marks the run as complete, and closes the run."""
        if distributed.is_main():
            content = to_json(summary, indent=2).encode()
            told = [path for name in _TOLD if (path := self.directory / name).is_file()]
            with disk_errors(self.directory):
                for path in told:
                    sync_file(path)
            beside = {path.name: describe(path.read_bytes()) for path in told}
            write_with_manifest(self.directory / "summary.json", content, {"beside": beside})
        self.close()

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Appends a record of a step to `metrics.jsonl`; NaN and infinities become null."""
        if distributed.is_main():
            record = {"step": step, "time": round(time.time(), 3), **metrics}
            append_json_lines(self.directory / "metrics.jsonl", [record])

    def log_once(self, metrics: Mapping[str, Any], step: int) -> None:
        """The same, unless that step has such a record: a part that is repeated is silent."""
        records = (r for r in read_metrics(self.directory) if r["step"] == step)
        if not any(metrics.keys() <= record.keys() for record in records):
            self.log(metrics, step)

    @property
    def environment(self) -> dict[str, Any]:
        """What `environment.json` says of where the run works."""
        return read_run_file(self.directory)

    def note(self, **facts: Any) -> None:
        """Adds to `environment.json` what only a stage finds out; it stays when the run goes on."""
        if distributed.is_main():
            write_run_file(self.directory, self.environment | facts)

    def mark_metrics(self) -> dict[str, Any]:
        """Size and checksum of `metrics.jsonl` as it has reached the disk now: for a checkpoint."""
        path = self.directory / "metrics.jsonl"
        if not path.exists():
            return describe(b"")
        with disk_errors(path):
            sync_file(path)
            sync_folder(self.directory)
        return describe(path.read_bytes())

    def truncate_metrics(self, step: int, mark: Mapping[str, Any] | None = None) -> None:
        """Drops the records after a step, when a run resumes from there.

        Raises:
            DataError: those before it are not as `mark_metrics` found them, or a line is no JSON.
        """
        path = self.directory / "metrics.jsonl"
        if not distributed.is_main():
            return
        records = read_metrics(self.directory)  # first: no switch helps with what is no JSON
        content = path.read_bytes() if path.exists() else b""
        if mark is not None and describe(content[: mark["size"]]) != mark:
            refuse_unless_inexact(
                f"{path}: missing or damaged, its records up to step {step} are not those that "
                "were written; put a copy back"
            )
        kept = [record for record in records if record["step"] <= step]
        if len(kept) < len(records):
            write_json_lines(path, kept)


def read_metrics(run_dir: str | Path) -> list[dict[str, Any]]:
    """The records of `metrics.jsonl`; a last line that a crash has cut is left out."""
    return read_json_lines(Path(run_dir) / "metrics.jsonl")


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


def _seen_by_all(directory: Path) -> bool:
    """Whether a file that rank 0 writes into the folder is there for all processes."""
    if distributed.world_size() == 1:
        return True
    # Its name is new every time: no machine has cached that it is missing.
    mark = int(distributed.total(secrets.randbelow(2**48) if distributed.is_main() else 0))
    file = directory / f".seen-{mark}"
    if distributed.is_main():
        atomic_write(file, "")
    distributed.barrier()
    missing = distributed.any_of(not file.exists())
    if distributed.is_main():
        file.unlink()
    return not missing


def _prepare_folder(
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
        begun = _has_produced(directory)
        if resume != "must" and not begun:
            _forget(directory)
        _check_folder(directory, settings, resume)
        before = read_run_file(directory) if (directory / RUN_FILE).is_file() else {}
        _check_imports(directory, before)
        if (stored := directory / "config.yaml").is_file():
            _check_own(directory, before, (_redact(load(stored)), settings))
        inputs = _inputs(directory, before, config)
        run_id = _run_id(directory, settings)
        named = {"run_id": run_id, "identity": _identity(settings)}
        about = before | named | describe_environment() | {"inputs": inputs}
        write_run_file(directory, about)  # first: a kill before the next leaves a run's own two
        atomic_write(directory / "config.yaml", to_yaml(settings))
        _drop_torn_line(directory / "metrics.jsonl")
        if begun and not (directory / "summary.json").exists() and nothing_under_way():
            log.info("%s: was left unfinished, and goes on", directory)
        on_failure.pop_all()
    return lock


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


def _run_id(directory: Path, settings: Mapping[str, Any]) -> str:
    """The id that a folder's run has had from the start; of a new one, that of its settings.

    A newer version of the project may know more settings, with null for what was before. Where
    `environment.json` was lost, what the run has written tells its id, if all of it tells the same.
    """
    environment, stored = directory / RUN_FILE, directory / "config.yaml"
    run_id = read_run_file(directory).get("run_id") if environment.is_file() else None
    if run_id is not None:
        return run_id
    written = _ids_in_manifests(directory)
    return (
        written.pop()
        if len(written) == 1
        else _identity(load(stored) if stored.is_file() else settings)
    )


def _ids_in_manifests(directory: Path) -> set[str]:
    """The runs that whole manifests name which were written where they lie in a run's folder."""
    found = set()
    for file in directory.rglob(MANIFEST):
        with suppress(LactChainError):
            manifest = read_manifest(file)
            if manifest.get("place") == file.parent.relative_to(directory).as_posix():
                found.add(manifest.get("run_id"))
    return found - {None}


def _identity(settings: Mapping[str, Any]) -> str:
    """A word for what settings compute."""
    identity = _without_harmless(settings)
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _check_own(
    directory: Path, before: Mapping[str, Any], of_this_run: Iterable[Mapping[str, Any]]
) -> None:
    """Refuses the name of another run; older versions of the project did not write whose it is.

    Settings of this run are those in the folder, and those of the command: a kill may have come
    between the two files.
    """
    identities = {_identity(settings) for settings in of_this_run}
    if before.get("identity") not in {None, *identities}:
        raise DataError(
            f"{directory / RUN_FILE}: belongs to another run than config.yaml; remove it, the same "
            "command writes it anew"
        )


def _has_produced(directory: Path) -> bool:
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


def _leave_nothing(directory: Path) -> None:
    """Removes a folder in which nothing was produced, unless it holds anything else."""
    with suppress(OSError):  # what ended the run is to be told, and not what stays behind
        _forget(directory)
        (directory / "lock").unlink(missing_ok=True)
        for folder in sorted([directory, *directory.rglob("*")], reverse=True):
            if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
                folder.rmdir()


def _check_folder(directory: Path, settings: Mapping[str, Any], resume: str) -> None:
    stored = directory / "config.yaml"
    visible = [p for p in directory.iterdir() if p.name != "lock" and p.name[0] != "."]
    foreign = [p.name for p in visible if not p.is_dir() or any(_files(p))]
    if not stored.exists() and foreign:
        raise ConfigError(f"{directory}: expected a run or nothing, found {sorted(foreign)[:3]}")
    if not stored.exists() and resume == "must":
        raise ConfigError(f"{directory}: resume is must, but there is no run to resume")
    if stored.exists() and resume == "never":
        raise ConfigError(f"{directory}: resume is never, but there is a run in this folder")
    if stored.exists():
        before = _redact(load(stored))
        refuse_renamed(stored, without(before, settings))
        changed = differences(before, settings)
        _check_identity(directory, _without_moved(directory, before, changed))


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


def _without_moved(
    directory: Path, before: Mapping[str, Any], changed: dict[str, tuple[Any, Any]]
) -> dict[str, tuple[Any, Any]]:
    """The changes but for places inside a run, a pipeline say, that was moved or copied."""
    run = before.get("run")
    folder = run.get("run_dir") if isinstance(run, Mapping) else None
    if not isinstance(folder, str):
        return changed
    return {
        key: (old, new)
        for key, (old, new) in changed.items()
        if not is_same_place(old, folder, new, directory)
    }


def _check_identity(directory: Path, changed: Mapping[str, tuple[Any, Any]]) -> None:
    lines = {key: f"{key} was {old!r}, now {new!r}" for key, (old, new) in changed.items()}
    refused = [key for key in changed if HARMLESS.isdisjoint(key.split("."))]
    if refused:
        raise ConfigError(
            f"{directory}: made by another configuration ({'; '.join(lines[k] for k in refused)}); "
            "choose another folder with --run.run_dir, or the old configuration with "
            f"--config {directory}/config.yaml"
        )
    for line in lines.values():
        log.info("%s: continues with a harmless change: %s", directory, line)


def _without_harmless(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_harmless(value) if isinstance(value, Mapping) else value
        for key, value in settings.items()
        if key not in HARMLESS
    }


def _redact(value: Any, is_secret: bool = False) -> Any:
    """Settings without secrets: texts under a key that says so, and what URLs hold of them."""
    if isinstance(value, str):
        return "<redacted>" if is_secret else _SECRET_IN_URL.sub(r"\1<redacted>", value)
    if isinstance(value, list):
        return [_redact(part, is_secret) for part in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: _redact(part, is_secret or _SECRET.search(str(key)) is not None)
        for key, part in value.items()
    }


def _drop_torn_line(path: Path) -> None:
    """Damage further up stays, for what is read back to name it."""
    if path.exists():
        content = path.read_bytes()
        whole = whole_lines(content)
        if whole != content:
            atomic_write(path, whole)
