"""Run folders: what one must be before a run lives in it, and what is left when none did.

`environment.json` says which run a folder is: its id, its settings, what it reads from elsewhere,
and where it works. `config.yaml` has the settings once more, for people and for `--config`.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import is_dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import IO, Any

from lactchain.config.parsing import differences, load, to_yaml
from lactchain.errors import ConfigError, DataError, DiskError
from lactchain.models.weights import resolve_weights
from lactchain.runs.console import nothing_under_way
from lactchain.runs.preflight import READ, unread_models
from lactchain.runs.process import describe_environment, refuse_unless_inexact
from lactchain.storage import files, manifests
from lactchain.storage.manifests import MANIFEST, RUN_FILE, is_run

RECORDS = ("metrics.jsonl", "evaluations.json", "lineage.jsonl")
"""Files in which a run tells what became of it; its end vouches for them."""
_ABOUT = ("config.yaml", RUN_FILE, "sizes.json", "_sizes.manifest")
"""Files of a run that follow from its command alone."""
_FILES = {"config.yaml", RUN_FILE, "summary.json", *RECORDS}
_TRACKERS = {"wandb"}
"""Folders that trackers write and nobody reads back; links lead out of them to their logs."""

Inputs = dict[str, dict[str, str]]
"""By setting: the checksum of each file."""

# Fields that may change when a run continues, since they do not change what it computes.
HARMLESS = frozenset((
    "run_dir", "timeout_minutes", "report_to", "logging_steps", "log_every_steps",
    "save_every_updates", "save_every_steps", "keep_checkpoints", "urls", "in_flight",
    "timeout_seconds", "max_drift",
))  # fmt: skip
_SECRET = re.compile(
    r"(?<!bos_)(?<!eos_)(?<!pad_)(?<!unk_)(token|(?<=.)tokens)$"
    r"|secret|passw|credential|authorization|cookie|^(auth|pat)$|(api|access|private)[_-]?keys?",
    re.I,
)
_SECRET_IN_URL = re.compile(
    r"(?<=://)[^/\s]+(?=@)"
    r"|(?<=[?&])([^=&#\s]*(?:token|key|secret|sig|passw|credential|auth)[^=&#\s]*=)[^&#\s]+",
    re.I,
)

log = logging.getLogger(__name__)


def prepare_folder(directory: Path, settings: Mapping[str, Any], config: Any) -> IO[str]:
    """Locks the folder, checks that the run may live in it, and writes down what it is."""
    with files.disk_errors(directory):
        if directory.is_file():
            raise ConfigError(
                f"run.run_dir: expected a folder, got the file {directory}; choose another with "
                "--run.run_dir"
            )
        files.make_folder(directory)
        lock = _lock(directory)
    with ExitStack() as on_failure:
        on_failure.callback(lock.close)
        _check_plain(directory)
        begun = has_produced(directory)
        if is_run(directory) and not begun:  # another run may begin here
            before = {}
            for name in _ABOUT:
                (directory / name).unlink(missing_ok=True)
        elif before := _run_in(directory):
            _check_changes(directory, before["config"], json.loads(files.to_json(settings)))
        is_over = (directory / "summary.json").exists()
        inputs = before.get("inputs", {})
        if not is_over:
            # It would go on from a checkpoint, or the shards that are there, with another base
            # model, and nobody would see it: many models have no manifest.
            found = inputs_of(config)
            if changed := changed_input(inputs, found):
                refuse_unless_inexact(
                    f"{directory}: {changed} is not as it was when this run began; put it back, "
                    "remove it where it is new, or give another run.run_dir to begin anew"
                )
            inputs = inputs | found
        elif nothing_under_way():
            with suppress(OSError, DataError):  # what it read may be gone
                if changed := changed_input(inputs, inputs_of(config)):
                    log.warning(
                        "%s: %s is not as it was when this run began; its result is of what it was",
                        *(directory, changed),
                    )
        about = {
            "run_id": identity_of(before.get("config", settings)),
            **before,
            **describe_environment(),
            "inputs": inputs,
            "config": settings,
        }
        manifests.write_run_file(directory, about)
        files.atomic_write(directory / "config.yaml", to_yaml(settings))
        _drop_torn_line(directory / "metrics.jsonl")
        if begun and not is_over and nothing_under_way():
            log.info("%s: was left unfinished, and goes on", directory)
        on_failure.pop_all()
    return lock


def _run_in(directory: Path) -> dict[str, Any]:
    """What is known of the run in a folder; nothing where the folder is empty."""
    if is_run(directory):
        return {"config": {}} | manifests.read_run_file(directory)
    # A hidden file counts for nothing, but a hidden folder is somebody's, such as `.git`.
    inside = (path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir())
    found = {p.relative_to(directory).parts[0] for p in inside if p.name[0] != "."} - {"lock"}
    if not found:
        return {}
    if "config.yaml" not in found:
        raise ConfigError(f"{directory}: expected a run or nothing, found {sorted(found)[:3]}")
    refuse_unless_inexact(
        f"{directory / RUN_FILE}: missing, and nothing else tells what the run has read; put a "
        "copy back"
    )
    return {"config": redact(load(directory / "config.yaml"))}


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


def is_locked(directory: Path) -> bool:
    """Whether a process works in the folder of a run."""
    try:
        with open(directory / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def _check_plain(directory: Path) -> None:
    """Refuses links that lead out of a run, pipes, and folders where its own files should be.

    Whoever hands a run on could have something else read by them, or written over. What is never
    read back may be anything: hidden files, and a tracker's.
    """
    inside = os.path.realpath(directory)
    for folder, folders, others in os.walk(directory):
        folders[:] = [name for name in folders if name[0] != "." and name not in _TRACKERS]
        for name in (*folders, *(name for name in others if name[0] != ".")):
            path = Path(folder, name)
            is_plain = Path(os.path.realpath(path)).is_relative_to(inside)
            with suppress(OSError):  # it may be gone by now
                mode = path.stat().st_mode
                is_plain &= S_ISREG(mode) or (S_ISDIR(mode) and name not in _FILES)
            if not is_plain:
                raise ConfigError(
                    f"{path}: expected a plain file or folder of this run, and no link out of it; "
                    "remove it, or put a copy of what it stands for in its place"
                )


def has_produced(directory: Path) -> bool:
    """Whether there is anything in a run's folder but what says which run it is, or one in it.

    Folders are not counted, nor hidden files.
    """
    return any(path.name not in (*_ABOUT, "lock") for path in files.files_below(directory))


def _check_changes(directory: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Logs settings that may change while a run goes on; refuses any other that has.

    Places inside a run, a pipeline say, that was moved or copied have not changed.
    """
    folder = (before.get("run") or {}).get("run_dir")
    lines, refused = [], []
    for key, (old, new) in differences(before, now).items():
        if folder is None or not manifests.is_same_place(old, folder, new, directory):
            line = f"{key} was {old!r}, now {new!r}"
            (refused if HARMLESS.isdisjoint(key.split(".")) else lines).append(line)
    if refused:
        raise ConfigError(
            f"{directory / RUN_FILE}: made by another configuration ({'; '.join(refused)}); choose "
            "another folder with --run.run_dir, or the old configuration with --config "
            f"{directory}/config.yaml"
        )
    for line in lines:
        log.info("%s: continues with a harmless change: %s", directory, line)


def inputs_of(config: Any) -> Inputs:
    """What the models and data are that a configuration names, as far as they are there."""
    unread = frozenset(unread_models(vars(config)))
    return {key: _checksums(path) for key, path in _places(config, "") if key not in unread}


def _places(config: Any, prefix: str) -> Iterator[tuple[str, Path]]:
    """The files and folders that a config names, by the dotted key of the setting."""
    for name, value in vars(config).items():
        if is_dataclass(value):
            yield from _places(value, f"{prefix}{name}.")
        elif name == "model" and isinstance(value, str):
            with suppress(DataError):  # one that is not there is for whoever reads it to tell
                yield f"{prefix}{name}", resolve_weights(value)
        elif name in READ and isinstance(value, str) and os.path.exists(value):
            yield f"{prefix}{name}", Path(value)


def _checksums(path: Path) -> dict[str, str]:
    """A checksum of each file; not of hidden ones and of a card, which nobody reads."""
    found = {}
    for file in [path] if path.is_file() else files.files_below(path):
        if file.is_file() and file.name != manifests.CARD:
            digest = hashlib.sha256()
            files.take_sample(digest, file)
            name = file.name if file == path else file.relative_to(path).as_posix()
            found[name] = digest.hexdigest()
    return found


def changed_input(recorded: Mapping[str, Mapping[str, str]], found: Inputs) -> str | None:
    """The first file of two `inputs_of` that is new, or not as it was."""
    for key in recorded.keys() & found.keys():
        before, now = recorded[key], found[key]
        names = sorted(before.keys() | now.keys(), key=lambda name: (MANIFEST not in name, name))
        if name := next((n for n in names if before.get(n) != now.get(n)), None):
            return f"{name} of {key}"
    return None


def _drop_torn_line(path: Path) -> None:
    """Damage further up stays, for what is read back to name it."""
    if path.exists():
        content = path.read_bytes()
        whole = files.whole_lines(content)
        if whole != content:
            files.atomic_write(path, whole)


def identity_of(settings: Mapping[str, Any]) -> str:
    """A word for what settings compute."""
    identity = _without_harmless(settings)
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _without_harmless(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_harmless(value) if isinstance(value, Mapping) else value
        for key, value in settings.items()
        if key not in HARMLESS
    }


def redact(value: Any, is_secret: bool = False) -> Any:
    """Settings without secrets: texts under a key that says so, and what URLs hold of them."""
    if isinstance(value, str):
        return "<redacted>" if is_secret else _SECRET_IN_URL.sub(r"\1<redacted>", value)
    if isinstance(value, list):
        return [redact(part, is_secret) for part in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: redact(part, is_secret or _SECRET.search(str(key)) is not None)
        for key, part in value.items()
    }
