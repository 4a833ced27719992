"""What a run must end with, however it was disturbed: every file in its folder, but for times."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
from script_setups import figures_of
from training_setups import final_state

from lactchain.files import read_json_lines

CHECKPOINT = re.compile(r"checkpoint-(\d+)")
STATE = "/state after step "
Digest = dict[str, str]


def digest(run_dir: Path) -> Digest:
    """A word for the content of each file, by its place; equal runs have equal digests.

    Of the checkpoints the newest counts: which others are kept depends on where a run was cut.
    Of files that name times or commits only the names count.
    """
    found = {}
    for path in sorted(files(run_dir)):
        name = path.relative_to(run_dir).as_posix()
        found[name] = short(_readable(read, path), run_dir)
    for folder in sorted(p for p in run_dir.rglob("checkpoints") if p.is_dir()):
        found |= newest_state(folder, folder.relative_to(run_dir).as_posix())
    return found


def _readable(reader: Callable[[Path], Any], path: Path) -> Any:
    """What a reader finds; that there is nothing to be read, where a file is damaged."""
    try:
        return reader(path)
    except Exception as error:  # noqa: BLE001  - it may be read in many ways
        return f"unreadable: {type(error).__name__}"


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
    return reader(path)


def metrics(path: Path) -> list[dict[str, Any]]:
    """Records in their order, so that a step that is there twice is seen.

    That of how long a training took is the last process's, which may have found it trained.
    """
    return [
        {name: value for name, value in record.items() if "time" not in name.split("/")}
        for record in read_json_lines(path)
        if "time/train_runtime" not in record
    ]


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
    "environment.json": name_only,
    "report.html": name_only,
    "README.md": name_only,
    "manifest.json": name_only,
    ".manifest": name_only,
    ".parquet": rows,
}  # fmt: skip


def newest_state(folder: Path, place: str) -> Digest:
    """The weights, optimiser, random states and so on in the newest checkpoint of a folder."""
    steps = [CHECKPOINT.fullmatch(path.name) for path in folder.iterdir()]
    step = max((int(match[1]) for match in steps if match), default=None)
    if step is None:
        return {}
    newest = folder / f"checkpoint-{step}"
    if (newest / "trainer_state.json").exists():
        state = _readable(lambda run_dir: final_state(run_dir, step), folder.parent)
    else:
        files = (path for path in newest.iterdir() if path.name != "manifest.json")
        state = {path.name: short(path.read_bytes(), folder) for path in files}
    return {
        f"{place}{STATE}{step}": short(
            sorted(state.items()) if isinstance(state, dict) else state, folder
        )
    }


def short(content: Any, run_dir: Path) -> str:
    """A word for a content, wherever the run lies."""
    data = content if isinstance(content, bytes) else repr(content).encode()
    return hashlib.sha256(data.replace(str(run_dir).encode(), b"RUN")).hexdigest()[:12]


def differing(found: Digest, expected: Digest) -> list[str]:
    """The places at which two digests differ; `+` before strays, `-` before what is missing.

    The last checkpoint may be of another step, where a stop has made one more on the way.
    """
    strays = [f"+{name}" for name in found.keys() - expected.keys() if STATE not in name]
    missing = [f"-{name}" for name in expected.keys() - found.keys() if STATE not in name]
    other = [n for n in found.keys() & expected.keys() if found[n] != expected[n]]
    return sorted([*strays, *missing, *other])
