"""Checkpoints: the newest that is whole, and room for the next.

A `checkpoint-N` counts when its manifest verifies and names this place in this run. What could be
whole, or of use to somebody, is never deleted: only checkpoints of the same run that newer ones
replace are, and what a crash left without a manifest.

One of a language model holds what is trained (an adapter, or all weights), optimiser, schedule,
random states of each process and what was logged since the last line (`trainers.guards`); one of
classic agents all that a training goes on from (`baselines.state_files`).
"""

import logging
import os
import re
import shutil
from itertools import count
from pathlib import Path

from lactchain.errors import ConfigError, DataError
from lactchain.storage.files import disk_errors
from lactchain.storage.manifests import MANIFEST, misplacement, read_manifest, verify_manifest

log = logging.getLogger(__name__)


def latest_checkpoint(directory: str | Path) -> Path | None:
    """The newest `checkpoint-N` of this run that verifies, None when there is none.

    What is skipped is logged with the reason, and stays; one of a newer version is refused.
    """
    for path in _newest_first(directory):
        reason = _reason_to_skip(path)
        if reason is None:
            return path
        log.warning("skipped %s: %s; the one before counts, if any", path, reason)
    return None


def prune_checkpoints(directory: str | Path, keep: int = 2) -> None:
    """Removes checkpoints older than the `keep` newest ones that verify.

    Call it when a new manifest is written: nothing goes before something newer is known to be
    good. A stray checkpoint of another run neither counts as one that is kept, nor goes.
    """
    num_valid = 0
    for path in _newest_first(directory):
        if num_valid < keep:
            num_valid += _reason_to_skip(path) is None
        elif _is_replaceable(path):
            _remove(path)


def clear_place(path: Path) -> None:
    """Makes room for a checkpoint that is to be written at `path`.

    What a crash left there without a manifest goes; anything else, damaged or of another run, is
    set aside under another name. Either is logged.
    """
    if not path.exists():
        return
    if not (path / MANIFEST).exists():
        _remove(path)
        log.info("%s: was never completed, is written anew", path)
        return
    names = (path.with_name(f"set-aside-{number}-{path.name}") for number in count(1))
    aside = next(name for name in names if not name.exists())
    with disk_errors(path):
        os.rename(path, aside)
    log.warning("%s: is written anew; what was there is now %s", path, aside.name)


def _newest_first(directory: str | Path) -> list[Path]:
    folders = (path for path in Path(directory).glob("checkpoint-*") if path.is_dir())
    found = [path for path in folders if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)


def _reason_to_skip(path: Path) -> str | None:
    try:
        return misplacement(path, verify_manifest(path))
    except DataError as error:
        return str(error)


def _is_replaceable(path: Path) -> bool:
    """Whether a checkpoint was never completed, or is one of this run, whole or not."""
    if not (path / MANIFEST).exists():
        return True
    try:
        return misplacement(path, read_manifest(path / MANIFEST)) is None
    except (DataError, ConfigError):
        return False


def _remove(path: Path) -> None:
    """The manifest goes first: what a removal that is cut short has left counts for nothing."""
    with disk_errors(path):
        (path / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(path)
