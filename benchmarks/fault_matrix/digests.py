"""What a run must end with, however it was disturbed: every file in its folder, but for times."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet
from script_setups import figures_of
from training_setups import final_state

from lactchain.errors import DataError
from lactchain.files import read_json_lines
from lactchain.manifests import (
    MANIFEST,
    describe,
    read_manifest,
    read_run_file,
    read_with_manifest,
    verify_manifest,
)

CHECKPOINT = re.compile(r"checkpoint-(\d+)")
STATE = "/state after step "
DAMAGED = "damaged: "
KEEP = 2
"""Checkpoints that a run keeps."""
PASSING = re.compile(r"(^|/)time(/|$)|seconds$|^(git_commit|run_id|identity)$")
"""Names of facts that depend on the clock, the commit or, within a run, on where it lies."""
END_OF_TRAINING = {"step", "train/epoch", "train/total_flos"}
"""What the record of how long a training took tells beside times."""
Digest = dict[str, str]


def digest(run_dir: Path) -> Digest:
    """A word for the content of each file, by its place; equal runs have equal digests.

    Of the checkpoints the newest counts: which others are kept depends on where a run was cut, but
    these must be whole, and not too many.
    Of pages only the names count: they show times. A manifest counts with what it says of the work,
    and must hold for the files as they are.
    """
    found = {}
    for path in sorted(files(run_dir)):
        name = path.relative_to(run_dir).as_posix()
        found[name] = word(read(path), run_dir)
    for folder in sorted(p for p in run_dir.rglob("checkpoints") if p.is_dir()):
        found |= of_checkpoints(folder, folder.relative_to(run_dir).as_posix())
    return found


def whole(found: Digest) -> Digest:
    """The digest of a run that others are compared with: all of it can be read.

    Any two that cannot are equal.
    """
    if damaged := [f"{name}: {told}" for name, told in found.items() if told.startswith(DAMAGED)]:
        raise RuntimeError(f"the run that nothing disturbed cannot be read: {damaged}")
    return found


def files(run_dir: Path) -> Iterator[Path]:
    """All files of a run, hidden ones and links too, but for what is in checkpoints."""
    for path in run_dir.rglob("*"):
        in_checkpoint = any(CHECKPOINT.fullmatch(parent.name) for parent in path.parents)
        if not in_checkpoint and (path.is_symlink() or not path.is_dir()):
            yield path


def read(path: Path) -> Any:
    """The content of a file that must not depend on a disturbance."""
    if path.is_symlink():
        return str(path.readlink())
    reader = READERS.get(path.name) or READERS.get(path.suffix) or Path.read_bytes
    return _readable(reader, path)


def _readable(reader: Callable[[Path], Any], path: Path) -> Any:
    """What a reader finds, or why nothing can be read: damaged files are read in many ways."""
    try:
        return reader(path)
    except Exception as error:  # noqa: BLE001
        return f"{DAMAGED}{type(error).__name__}: {error}"


def metrics(path: Path) -> list[dict[str, Any]]:
    """Records in their order, so that a step that is there twice is seen.

    How long a training took is not among them: that record follows the last checkpoint, and tells
    of one process. One that was stopped has left its own, one that found it trained leaves none.
    """
    records = [record for record in read_json_lines(path) if not _is_end_of_training(record)]
    return [lasting(record) for record in records]


def _is_end_of_training(record: Mapping[str, Any]) -> bool:
    """Whether a record tells how long a training took, and nothing else."""
    return "time/train_runtime" in record and lasting(record).keys() <= END_OF_TRAINING


def lasting(facts: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Facts but for those of some names, and for passing ones."""
    return {n: fact for n, fact in facts.items() if n not in names and not PASSING.search(n)}


def run_file(path: Path) -> dict[str, Any]:
    """Where a run works and what it reads, if nobody changed the file.

    Of the files that it reads some hold where they lie, and so do its settings: their checksums are
    not compared.
    """
    facts = lasting(read_run_file(path.parent), "config")
    read = facts.get("inputs", {}).items()
    inputs = {name: lasting(hashes, MANIFEST, "critic_config.json") for name, hashes in read}
    return facts | {"inputs": inputs}


def manifest_of_folder(path: Path) -> dict[str, Any]:
    """What a manifest says, if the files that it lists are as they were written.

    From which checkpoint a process went on depends on where the run was cut, and so do the times
    in the metrics that a checkpoint vouches for.
    """
    manifest = verify_manifest(path.parent)
    return lasting(manifest, "metrics", "parent") | {"files": sorted(manifest["files"])}


def manifest_of_file(path: Path) -> dict[str, Any]:
    """What a manifest says, if the file beside it, and those that it vouches for, are so."""
    place = read_manifest(path)["place"]
    _, manifest, whole = read_with_manifest(path.with_name(Path(place).name))
    beside = manifest.get("beside", {})
    told = {name: describe((path.parent / name).read_bytes()) for name in beside}
    if not whole or told != beside:
        raise DataError(f"{path}: {place} is not as it was written")
    tally = lasting(manifest.get("tally", {}))
    return lasting(manifest, "size", "sha256") | {"beside": sorted(beside), "tally": tally}


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a parquet file."""
    return pyarrow.parquet.read_table(path).to_pylist()


def summary(path: Path) -> dict[str, Any]:
    """Figures but for times."""
    return figures_of(json.loads(path.read_text()))


def adapter(path: Path) -> list[str]:
    """What an adapter belongs to; where that lies is its own file's business."""
    record = json.loads(path.read_text())
    return [record["base_fingerprint"], record["tokenizer_fingerprint"]]


def name_only(path: Path) -> str:
    """That it is there, and not empty."""
    return "there" if path.stat().st_size else "empty"


READERS: dict[str, Callable[[Path], Any]] = {
    "metrics.jsonl": metrics,
    "summary.json": summary,
    "lactchain_adapter.json": adapter,
    "lock": lambda path: "there",
    "environment.json": run_file,
    "manifest.json": manifest_of_folder,
    ".manifest": manifest_of_file,
    "report.html": name_only,
    "README.md": name_only,
    ".parquet": rows,
}  # fmt: skip


def of_checkpoints(folder: Path, place: str) -> Digest:
    """The newest checkpoint of a folder; of the others what is wrong with them, if anything."""
    steps = [CHECKPOINT.fullmatch(path.name) for path in folder.iterdir()]
    older = sorted(int(match[1]) for match in steps if match)
    if not older:
        return {}
    step = older.pop()
    found = newest_state(folder, place, step)
    for other in older:
        told = word(read(folder / f"checkpoint-{other}" / MANIFEST), folder)
        if told.startswith(DAMAGED):
            found[manifest_place(place, other)] = told
    if len(older) > KEEP:  # whoever is cut before the oldest goes leaves one more
        found[f"{place}/too many"] = str(len(older) + 1)
    return found


def newest_state(folder: Path, place: str, step: int) -> Digest:
    """The weights, optimiser, random states and so on in a checkpoint, and its manifest."""
    newest = folder / f"checkpoint-{step}"
    if (newest / "trainer_state.json").exists():
        state = _readable(lambda _: sorted(final_state(folder.parent, step).items()), newest)
    else:
        files = sorted(path for path in newest.iterdir() if path.name != MANIFEST)
        state = [(path.name, short(path.read_bytes(), folder)) for path in files]
    return {
        f"{place}{STATE}{step}": word(state, folder),
        manifest_place(place, step): word(read(newest / MANIFEST), folder),
    }


def manifest_place(place: str, step: int) -> str:
    """Where the manifest of a checkpoint stands in a digest."""
    return f"{place}/checkpoint-{step}/{MANIFEST}"


def word(content: Any, run_dir: Path) -> str:
    """A word for a content, which tells where it cannot be read."""
    is_damaged = isinstance(content, str) and content.startswith(DAMAGED)
    return content.replace(str(run_dir), "RUN") if is_damaged else short(content, run_dir)


def short(content: Any, run_dir: Path) -> str:
    """A word for a content, wherever the run lies."""
    data = content if isinstance(content, bytes) else repr(content).encode()
    return hashlib.sha256(data.replace(str(run_dir).encode(), b"RUN")).hexdigest()[:12]


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
    steps, least = _last_steps(found), _last_steps(expected)
    places = [place for place in steps.keys() & least.keys() if steps[place] > least[place]]
    return {
        name
        for place in places
        for last in (steps, least)
        for name in (f"{place}{STATE}{last[place]}", manifest_place(place, last[place]))
    }


def _last_steps(of: Digest) -> dict[str, int]:
    """The step of the newest checkpoint at each place."""
    parts = (name.split(STATE) for name in of if STATE in name)
    return {place: int(step) for place, step in parts}
