"""What a run has done when it is cut, and whether whoever goes on has kept it."""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fault_matrix.cases import Verdict, bad
from fault_matrix.digests import steps_in
from lactchain.errors import LactChainError
from lactchain.storage.files import read_json_lines
from lactchain.storage.manifests import (
    MANIFEST,
    manifest_beside,
    read_with_manifest,
    verify_manifest,
)
from lactchain_extras.trials import whole_trials

PART = re.compile(r"\d+-of-\d+\.parquet|summary\.json")


@dataclass(frozen=True)
class Done:
    """What need not be done again.

    Attributes:
        files: which shard or summary is at each place, by what no other has that is written there
            later.
        checkpoints: the newest step that is whole, and which folder that is, by place.
        metrics: how much of `metrics.jsonl` a checkpoint or trials vouch for, with its times.
    """

    files: dict[Path, str]
    checkpoints: dict[Path, tuple[int, str]]
    metrics: dict[Path, bytes]


def done(run_dir: Path) -> Done:
    """What a run, and those in it, have done."""
    checkpoints, metrics = {}, {}
    for folder in filter(Path.is_dir, run_dir.rglob("checkpoints")):
        for step in steps_in(folder):  # the last that is whole is the one that stays
            manifest, path = folder / f"checkpoint-{step}" / MANIFEST, folder.parent
            with suppress(LactChainError):
                size = verify_manifest(manifest.parent)["metrics"]["size"]
                checkpoints[folder] = step, _which(manifest)
                metrics[path / "metrics.jsonl"] = _beginning(path / "metrics.jsonl", size)
    for trials in run_dir.rglob("trials.jsonl"):
        path, count = trials.with_name("metrics.jsonl"), len(whole_trials(read_json_lines(trials)))
        metrics[path] = b"".join(_beginning(path).splitlines(keepends=True)[:count])
    files = {path: _which(path) for path in run_dir.rglob("*") if _is_whole(path)}
    return Done(files, checkpoints, metrics)


def anew(before: Done, run_dir: Path) -> Verdict | None:
    """A verdict on a run that has lost what had been done, or done it again; None: neither."""
    now = done(run_dir)
    files = [path for path, which in before.files.items() if now.files.get(path) != which]
    places = [place for place in before.checkpoints if not _has_gone_on(place, before, now)]
    metrics = [path for path, told in before.metrics.items() if _beginning(path, len(told)) != told]
    again = [*files, *places, *metrics]
    return bad("begun anew", again) if again else None


def kept(before: Done, run_dir: Path, found: Verdict) -> Verdict:
    """What a run came to, if it has gone on from what it had done."""
    return (anew(before, run_dir) or found) if found.ok else found


def _has_gone_on(place: Path, before: Done, now: Done) -> bool:
    """Whether the newest checkpoint is there, or others came after it."""
    step, which = before.checkpoints[place]
    newest, found = now.checkpoints.get(place, (-1, ""))
    manifest = place / f"checkpoint-{step}" / MANIFEST
    return found == which or (newest > step and _which(manifest) in (which, ""))


def _is_whole(path: Path) -> bool:
    """Whether a shard is, or the summary of a run, as the manifest beside it says."""
    with suppress(LactChainError):
        is_part = PART.fullmatch(path.name) and manifest_beside(path).is_file()
        return bool(is_part and read_with_manifest(path)[2])
    return False


def _which(path: Path) -> str:
    """Which file is at a place; nothing where none is."""
    return f"{path.stat().st_ino} {path.stat().st_mtime_ns}" if path.is_file() else ""


def _beginning(path: Path, size: int | None = None) -> bytes:
    return path.read_bytes()[:size] if path.is_file() else b""
