"""Checkpoints: the newest that is whole, and room for the next.

A `checkpoint-N` counts when its manifest verifies and names this place in this run. What could be
whole, or of use to somebody, is never deleted: only checkpoints of the same run that newer ones
replace are, and what a crash left without a manifest.
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

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_REMOVED = ".removed-"

log = logging.getLogger(__name__)


def latest_checkpoint(directory: str | Path) -> Path | None:
    """The newest `checkpoint-N` of this run that verifies, None when there is none.

    What is skipped is logged with the reason, and stays; one of a newer version is refused. What a
    removal that was cut short has left goes.
    """
    _finish_removals(directory)
    for path in _newest_first(directory):
        reason = _reason_to_skip(path)
        if reason is None:
            return path
        log.warning("skipped %s: %s; the one before counts, if any", path, reason)
    return None


def prune_checkpoints(directory: str | Path, keep: int = 2, whole_ones: bool = True) -> None:
    """Removes checkpoints older than the `keep` newest ones that verify.

    Call it when a new manifest is written: nothing goes before something newer is known to be
    good. A removal that is cut short leaves no half checkpoint behind. A stray checkpoint of
    another run neither counts as one that is kept, nor goes.

    Args:
        whole_ones: whether those go that verify, too, and not only what a removal has left of one.
    """
    num_valid = 0
    for path in _newest_first(directory):
        if num_valid < keep:
            num_valid += _reason_to_skip(path) is None
        elif _is_replaceable(path) and (whole_ones or _reason_to_skip(path)):
            _remove(path)
    _finish_removals(directory)


def clear_place(path: Path) -> None:
    """Makes room for a checkpoint that is to be written at `path`.

    What a crash left there without a manifest goes; anything else, damaged or of another run, is
    set aside under another name. Either is logged.
    """
    if not path.exists():
        return
    with disk_errors(path):
        if (path / MANIFEST).exists():
            names = (path.with_name(f"set-aside-{number}-{path.name}") for number in count(1))
            aside = next(name for name in names if not name.exists())
            os.rename(path, aside)
            log.warning("%s: is written anew; what was there is now %s", path, aside.name)
        else:
            _remove(path)
            log.info("%s: was never completed, is written anew", path)


def _newest_first(directory: str | Path) -> list[Path]:
    directory = Path(directory)
    if not directory.is_dir():
        return []
    found = [p for p in directory.iterdir() if p.is_dir() and _CHECKPOINT.fullmatch(p.name)]
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


def _finish_removals(directory: str | Path) -> None:
    """Removes what `_remove` was about to, when it was cut short; several processes may at once."""
    for leftover in Path(directory).glob(f"{_REMOVED}checkpoint-[0-9]*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _remove(path: Path) -> None:
    """Removes a checkpoint in one step for all who look; its files go after that."""
    doomed = path.with_name(f"{_REMOVED}{path.name}")
    with disk_errors(path):
        if doomed.exists():
            shutil.rmtree(doomed)
        os.rename(path, doomed)
        shutil.rmtree(doomed)
