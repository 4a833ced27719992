"""What a run has done when it is cut, and whether whoever goes on has kept it."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

from fault_matrix.cases import Verdict
from fault_matrix.digests import CHECKPOINT
from lactchain.errors import LactChainError
from lactchain.files import append_json_lines, read_json_lines
from lactchain.manifests import MANIFEST, manifest_beside, read_with_manifest, verify_manifest
from lactchain.progress import Step
from lactchain.run import Run
from lactchain.search.runs import whole_trials

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

    def __str__(self) -> str:
        """What there is, for a detail."""
        steps = [f"checkpoint-{step}" for step, _ in self.checkpoints.values()]
        lines = sum(told.count(b"\n") for told in self.metrics.values())
        return ", ".join([f"{len(self.files)} files", *steps, f"{lines} lines"])


def done(run_dir: Path) -> Done:
    """What a run, and those in it, have done."""
    folders = [path for path in run_dir.rglob("checkpoints") if path.is_dir()]
    checkpoints, metrics = {}, {}
    for folder in folders:
        for step, checkpoint in _newest_first(folder):
            with suppress(LactChainError):
                mark = verify_manifest(checkpoint)["metrics"]
                checkpoints[folder] = step, _which(checkpoint / MANIFEST)
                path = folder.with_name("metrics.jsonl")
                metrics[path] = _beginning(path, mark["size"])
                break
    for trials in run_dir.rglob("trials.jsonl"):
        path, count = trials.with_name("metrics.jsonl"), len(whole_trials(read_json_lines(trials)))
        metrics[path] = b"".join(_beginning(path).splitlines(keepends=True)[:count])
    files = {path: _which(path) for path in run_dir.rglob("*") if _is_whole(path)}
    return Done(files, checkpoints, metrics)


def lost(before: Done, now: Done) -> list[str]:
    """What had been done and was not kept, or was done again; nothing where all is as it should."""
    return [
        *(f"{path} anew" for path, which in before.files.items() if now.files.get(path) != which),
        *(str(place) for place in before.checkpoints if not _has_gone_on(place, before, now)),
        *(
            str(path)
            for path, told in before.metrics.items()
            if _beginning(path, len(told)) != told
        ),
    ]


def begun_anew(again: list[str]) -> Verdict:
    """The verdict on a run that has lost something, or does it again."""
    return Verdict(False, "begun anew", ", ".join(again)[:500])


def kept(before: Done, run_dir: Path, found: Verdict) -> Verdict:
    """What a run came to, if it has gone on from what it had done."""
    if found.ok and (again := lost(before, done(run_dir))):
        return begun_anew(again)
    return replace(found, detail=f"{found.detail} left {before}".strip())


def _has_gone_on(place: Path, before: Done, now: Done) -> bool:
    """Whether the newest checkpoint is there, or others came after it."""
    step, which = before.checkpoints[place]
    newest, found = now.checkpoints.get(place, (-1, ""))
    manifest = place / f"checkpoint-{step}" / MANIFEST
    return found == which or (newest > step and _which(manifest) in (which, ""))


def _newest_first(folder: Path) -> list[tuple[int, Path]]:
    found = ((CHECKPOINT.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted(((int(match[1]), path) for match, path in found if match), reverse=True)


def _is_whole(path: Path) -> bool:
    """Whether a shard is, or the summary of a run, as the manifest beside it says."""
    if not PART.fullmatch(path.name) or not manifest_beside(path).is_file():
        return False
    with suppress(LactChainError):
        return read_with_manifest(path)[2]
    return False


def _which(path: Path) -> str:
    """Which file is at a place; nothing where none is."""
    return f"{path.stat().st_ino} {path.stat().st_mtime_ns}" if path.is_file() else ""


def _beginning(path: Path, size: int | None = None) -> bytes:
    return path.read_bytes()[:size] if path.is_file() else b""


# --- how far a process was, as it told on its live line -------------------------------------------

Place = tuple[str, str]
"""The folder of the innermost run, and what the live line calls the step."""


@dataclass(frozen=True)
class Note:
    """A process told how far it is."""

    place: Place
    done: float
    resumed: bool
    """Whether it was there from the start."""
    time: float
    """`time.monotonic` of this machine."""


@dataclass
class Notes:
    """Has a process note in a file what it tells of its progress; called before the script."""

    file: str

    def __call__(self) -> None:
        """From now on; what another process has noted goes."""
        Path(self.file).unlink(missing_ok=True)
        runs: list[Run] = []
        _after(Run, "__init__", lambda run, *_: runs.append(run))
        _after(Run, "close", lambda run: runs.remove(run) if run in runs else None)
        _after(Step, "at", lambda step, done: self._note(runs, step, False))
        _after(Step, "resumed", lambda step, done: self._note(runs, step, True))

    def _note(self, runs: list[Run], step: Step, resumed: bool) -> None:
        place = str(runs[-1].directory) if runs else "", step.label
        append_json_lines(self.file, [asdict(Note(place, step.done, resumed, time.monotonic()))])

    def read(self) -> Iterator[Note]:
        """What was noted."""
        for line in read_json_lines(self.file):
            yield Note(**line | {"place": tuple(line["place"])})


def _after(kind: type, name: str, hear: Callable[..., None]) -> None:
    """Has a method of a class call something when it has done its work."""
    original = getattr(kind, name)

    @wraps(original)
    def heard(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        hear(*args, **kwargs)
        return result

    setattr(kind, name, heard)


def furthest(notes: list[Note]) -> dict[Place, float]:
    """How far a process was at each place, when it was there for the last time."""
    found: dict[Place, float] = {}
    for note in notes:
        found[note.place] = note.done if note.resumed else max(found.get(note.place, 0), note.done)
    return found


def begun_before(notes: list[Note], reached: dict[Place, float]) -> list[str]:
    """Where a process began behind what another had reached, though it could go on from there."""
    first = {note.place: note.done for note in reversed(notes) if note.resumed}
    return [
        f"{' '.join(place)}: from {begun:g} instead of {reached[place]:g}"
        for place, begun in first.items()
        if begun < reached.get(place, 0)
    ]
