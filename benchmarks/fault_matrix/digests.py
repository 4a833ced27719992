"""What a run must end with, however it was disturbed: every file in its folder, but for times.

And what it has done when it is cut, which whoever goes on must have kept.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet
from training_setups import final_state

from fault_matrix.cases import Verdict, bad
from lactchain.errors import DataError, LactChainError
from lactchain.storage import manifests
from lactchain.storage.files import read_json, read_json_lines
from lactchain.storage.manifests import MANIFEST, manifest_beside, read_with_manifest

CHECKPOINT = re.compile(r"checkpoint-(\d+)")
PART = re.compile(r"\d+-of-\d+\.parquet|summary\.json")
STATE = "/state after step "
DAMAGED = "damaged: "
KEEP = 2
"""Checkpoints that a run keeps."""
CANARY = "canary_of_faults"
"""Name of code that must not be imported; runs are compared without it."""
PASSING = re.compile(rf"(^|/)time(/|$)|seconds?$|^(git_commit|run_id|identity|{CANARY}.*)$")
"""Names of facts that depend on the clock, the commit or, within a run, on where it lies."""
CHECKSUMS = ("size", "sha256")
"""Of files that are compared themselves."""
END_OF_TRAINING = {"step", "train/epoch", "train/total_flos"}
"""What the record of how long a training took tells beside times."""
Digest = dict[str, str]


def digest(run_dir: Path) -> Digest:
    """A word for the content of each file, by its place; equal runs have equal digests.

    Of the checkpoints the newest counts: which others are kept depends on where a run was cut, but
    these must be whole, and not too many. Of pages only the names count: they show times. A
    manifest counts with what it says of the work, and must hold for the files as they are.
    """
    found = {
        path.relative_to(run_dir).as_posix(): word(reader_of(path), path, run_dir)
        for path in sorted(files(run_dir))
    }
    for folder in run_dir.rglob("checkpoints"):
        if folder.is_dir() and (steps := steps_in(folder)):
            found |= of_checkpoints(folder, steps, run_dir)
    return found


def whole(found: Digest) -> Digest:
    """The digest of a run that others are compared with: any two that cannot be read are equal."""
    if damaged := [f"{name}: {told}" for name, told in found.items() if told.startswith(DAMAGED)]:
        raise RuntimeError(f"the run that nothing disturbed cannot be read: {damaged}")
    return found


def files(run_dir: Path) -> Iterator[Path]:
    """All files of a run, hidden ones and links too, but for what is in checkpoints."""
    for path in run_dir.rglob("*"):
        is_apart = path.stem == CANARY or any(CHECKPOINT.fullmatch(p.name) for p in path.parents)
        if not is_apart and (path.is_symlink() or not path.is_dir()):
            yield path


def word(reader: Callable[[Path], Any], path: Path, run_dir: Path) -> str:
    """A word for what is read, wherever the run lies; or why nothing can be read."""
    try:
        content = reader(path)
    except Exception as error:  # noqa: BLE001  - damaged files are read in many ways
        return f"{DAMAGED}{type(error).__name__}: {error}".replace(str(run_dir), "RUN")
    data = content if isinstance(content, bytes) else repr(content).encode()
    return hashlib.sha256(data.replace(str(run_dir).encode(), b"RUN")).hexdigest()[:12]


def reader_of(path: Path) -> Callable[[Path], Any]:
    """Who reads of a file what must not depend on a disturbance."""
    if path.is_symlink():
        return Path.readlink
    return READERS.get(path.name) or READERS.get(path.suffix) or Path.read_bytes


def metrics(path: Path) -> list[dict[str, Any]]:
    """Records in their order, so that a step that is there twice is seen.

    How long a training took is not among them: that record follows the last checkpoint, and tells
    of one process. One that was stopped has left its own, one that found it trained leaves none.
    """
    records = ((record, lasting(record)) for record in read_json_lines(path))
    return [
        facts
        for record, facts in records
        if "time/train_runtime" not in record or facts.keys() - END_OF_TRAINING
    ]


def lasting(value: Any, left_out: Collection[str] = ()) -> Any:
    """Facts but for passing ones, and those of some names, however deep they stand."""
    if isinstance(value, list):
        return [lasting(part, left_out) for part in value]
    if not isinstance(value, dict):
        return value
    names = (n for n in value if n not in left_out and not PASSING.search(n))
    return {name: lasting(value[name], left_out) for name in names}


def run_file(path: Path) -> Any:
    """Where a run works and what it reads, if nobody changed the file.

    Of the files that it reads some hold where they lie, and so do its settings: their checksums are
    not compared.
    """
    return lasting(manifests.read_run_file(path.parent), ("config", MANIFEST, "critic_config.json"))


def manifest_of_folder(path: Path) -> Any:
    """What a manifest says, if the files that it lists are as they were written.

    From which checkpoint a process went on depends on where the run was cut, and so do the times
    in the metrics that a checkpoint vouches for.
    """
    return lasting(manifests.verify_manifest(path.parent), ("metrics", "parent", *CHECKSUMS))


def manifest_of_file(path: Path) -> Any:
    """What a manifest says, if the file beside it, and those that it vouches for, are so."""
    place = manifests.read_manifest(path)["place"]
    _, manifest, is_whole = read_with_manifest(path.with_name(Path(place).name))
    beside = manifest.get("beside", {})
    told = {name: manifests.describe((path.parent / name).read_bytes()) for name in beside}
    if not is_whole or told != beside:
        raise DataError(f"{path}: {place} is not as it was written")
    return lasting(manifest, CHECKSUMS)


def adapter(path: Path) -> list[str]:
    """What an adapter belongs to; where that lies is its own file's business."""
    record = read_json(path)
    return [record["base_fingerprint"], record["tokenizer_fingerprint"]]


def state(newest: Path) -> list:
    """The weights, optimiser, random states and so on in a checkpoint."""
    if (newest / "trainer_state.json").exists():
        step = int(CHECKPOINT.fullmatch(newest.name)[1])
        return sorted(final_state(newest.parent.parent, step).items())
    return [(p.name, p.read_bytes()) for p in sorted(newest.iterdir()) if p.name != MANIFEST]


READERS: dict[str, Callable[[Path], Any]] = {
    "metrics.jsonl": metrics,
    "summary.json": lambda path: lasting(read_json(path)),
    "lactchain_adapter.json": adapter,
    "lock": lambda path: "there",
    "environment.json": run_file,
    "manifest.json": manifest_of_folder,
    ".manifest": manifest_of_file,
    **dict.fromkeys(("report.html", "README.md"), lambda path: path.stat().st_size > 0),
    ".parquet": lambda path: pyarrow.parquet.read_table(path).to_pylist(),
}


def steps_in(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, in their order."""
    found = (CHECKPOINT.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in found if match)


def of_checkpoints(folder: Path, steps: list[int], run_dir: Path) -> Digest:
    """The newest checkpoint of a folder; of the others what is wrong with them, if anything."""
    place, newest = folder.relative_to(run_dir).as_posix(), folder / f"checkpoint-{steps[-1]}"
    found = {f"{place}{STATE}{steps[-1]}": word(state, newest, run_dir)}
    for step in steps:
        manifest = folder / f"checkpoint-{step}" / MANIFEST
        told = word(manifest_of_folder, manifest, run_dir)
        if step == steps[-1] or told.startswith(DAMAGED):
            found[manifest_place(place, step)] = told
    if len(steps) > KEEP + 1:  # whoever is cut before the oldest goes leaves one more
        found[f"{place}/too many"] = str(len(steps))
    return found


def manifest_place(place: str, step: int) -> str:
    """Where the manifest of a checkpoint stands in a digest."""
    return f"{place}/checkpoint-{step}/{MANIFEST}"


def differing(found: Digest, expected: Digest, stopped: bool = False) -> list[str]:
    """The places at which two digests differ; `+` before strays, `-` before what is missing.

    Args:
        stopped: the run was asked to stop, and saved then: its last checkpoint may be a later one.
    """
    later = _later(found, expected) if stopped else set()
    strays = [f"+{name}" for name in found.keys() - expected.keys() - later]
    missing = [f"-{name}" for name in expected.keys() - found.keys() - later]
    other = [n for n in found.keys() & expected.keys() if found[n] != expected[n]]
    return sorted([*strays, *missing, *other])


def _later(found: Digest, expected: Digest) -> set[str]:
    """The last checkpoints of both, at the places where that of the first is the later one."""
    steps, least = (
        {place: int(step) for place, _, step in (n.partition(STATE) for n in of) if step}
        for of in (found, expected)
    )
    places = [place for place in steps.keys() & least.keys() if steps[place] > least[place]]
    lasts = [(place, last[place]) for place in places for last in (steps, least)]
    return {f"{p}{STATE}{n}" for p, n in lasts} | {manifest_place(p, n) for p, n in lasts}


# --- what a run has done -------------------------------------------------------------------------


@dataclass(frozen=True)
class Done:
    """What need not be done again.

    Attributes:
        files: which shard or summary is at each place, by what no other has that is written there
            later.
        checkpoints: the newest step that is whole, and which folder that is, by place.
        metrics: how much of `metrics.jsonl` a checkpoint vouches for, with its times.
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
                size = manifests.verify_manifest(manifest.parent)["metrics"]["size"]
                checkpoints[folder] = step, _which(manifest)
                metrics[path / "metrics.jsonl"] = _beginning(path / "metrics.jsonl", size)
    files = {path: _which(path) for path in run_dir.rglob("*") if _is_whole(path)}
    return Done(files, checkpoints, metrics)


def kept(before: Done, run_dir: Path, found: Verdict) -> Verdict:
    """What a run came to, if it has neither lost what had been done, nor done it again."""
    if not found.ok:
        return found
    now = done(run_dir)
    files = [path for path, which in before.files.items() if now.files.get(path) != which]
    places = [place for place in before.checkpoints if not _has_gone_on(place, before, now)]
    metrics = [path for path, told in before.metrics.items() if _beginning(path, len(told)) != told]
    again = [*files, *places, *metrics]
    return bad("begun anew", again) if again else found


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
