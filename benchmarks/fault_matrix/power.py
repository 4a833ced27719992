"""Power is lost at a file operation, and any state is left that the file system allows.

All that writes what is read back, in many states at each moment: what was announced is there and
whole, and nothing is a mix of old and new.
"""

import logging
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fault_matrix.cases import Case, Verdict
from fault_matrix.disk_states import Model, Recording, materialise, recording, states
from lactchain.baselines.state_files import load_checkpoint, save_checkpoint
from lactchain.data.parquet import read_table, write_table
from lactchain.errors import DataError
from lactchain.files import append_json_lines, atomic_write, read_sealed_lines, seal, stand_for
from lactchain.manifests import write_with_manifest
from lactchain.run import Run, read_metrics
from lactchain.settings import RunConfig

TITLE = "power is lost"
MODELS: tuple[Model, ...] = ("journal", "loose")
STATES = 40
"""Of each writer, model and moment."""

Announce = Callable[[int], None]


@dataclass(frozen=True)
class Writer:
    """Something that writes into a folder, step by step.

    Attributes:
        write: does so, and announces the number of each step that is done.
        read: the number of the last step that is there; `ValueError` where it is there by halves.
    """

    write: Callable[[Path, Announce], None]
    read: Callable[[Path], int]


def cases(shared: Path, scale: float) -> Iterator[Case]:
    """Every moment of every writer, in turn."""
    every = max(1, round(1 / scale))
    for name, writer in WRITERS.items():
        recorded, announced = _recorded(writer, shared / name)
        for model in MODELS:
            for end in range(0, len(recorded.operations) + 1, every):
                loss = _Loss(writer, recorded, announced, model, end)
                yield Case(2, "writers", f"{name}-{model}-{end}", loss)


@dataclass(frozen=True)
class _Loss:
    """Power is lost behind so many operations of a writer."""

    writer: Writer
    recorded: Recording
    announced: dict[int, int]
    model: Model
    end: int

    def __call__(self, folder: Path) -> Verdict:
        with _silence():
            return self._judge(folder)

    def _judge(self, folder: Path) -> Verdict:
        least = max((n for end, n in self.announced.items() if end <= self.end), default=0)
        rng = random.Random(self.end)
        for state in states(self.recorded, self.end, self.model, STATES, rng):
            place = folder / "after"
            materialise(state, self.recorded, place)
            try:
                found = self.writer.read(place)
            except Exception as error:  # noqa: BLE001  - whatever it is, it is a fault
                return Verdict(False, "unreadable", f"{type(error).__name__}: {error}")
            if found < least:
                return Verdict(False, "lost", f"expected step {least} or later, got {found}")
            shutil.rmtree(place)
        return Verdict(True, "old or new")


@contextmanager
def _silence() -> Iterator[None]:
    """What is skipped is told each time."""
    log = logging.getLogger("lactchain")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _recorded(writer: Writer, folder: Path) -> tuple[Recording, dict[int, int]]:
    """What a writer does, and behind how many operations each of its steps was announced."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    announced: dict[int, int] = {}
    with recording(folder) as recorded:

        def announce(step: int) -> None:
            recorded.look()
            announced[len(recorded.operations)] = step

        writer.write(folder, announce)
    shutil.rmtree(folder)
    return recorded, announced


# --- writers --------------------------------------------------------------------------------------

STEPS = (1, 2, 3, 4)


def _write_file(folder: Path, announce: Announce) -> None:
    for step in STEPS:
        atomic_write(folder / "file.json", f"{step}" * 3000)
        announce(step)


def _read_file(folder: Path) -> int:
    file = folder / "file.json"
    content = file.read_text() if file.exists() else ""
    return [f"{step}" * 3000 if step else "" for step in (0, *STEPS)].index(content)


def _write_shards(folder: Path, announce: Announce) -> None:
    for step in STEPS:
        write_table(folder / f"shards/{step}.parquet", _table(step), "rows", 1)
        announce(step)


def _read_shards(folder: Path) -> int:
    """Those that are missing or damaged are made again: what is believed may not be wrong."""
    whole = 0
    for step in STEPS:
        try:
            table = read_table(folder / f"shards/{step}.parquet", "rows", 1)
        except DataError:
            continue
        if table != _table(step):
            raise ValueError(f"shard {step} was changed")
        whole = step if whole == step - 1 else whole
    return whole


def _table(step: int) -> pa.Table:
    return pa.table({"number": np.arange(1000) + step})


def _write_checkpoints(folder: Path, announce: Announce) -> None:
    with _run(folder) as run:
        for step in STEPS:
            run.log({"loss": 1 / step, "text": "x" * 700}, step)
            mark = run.mark_metrics()
            save_checkpoint(run.path("checkpoints"), step, _state(step), 2, mark)
            announce(step)


def _read_checkpoints(folder: Path) -> int:
    with _run(folder) as run:
        state = load_checkpoint(folder / "run/checkpoints")
        if state is None:
            return 0
        step = state["step"]
        run.truncate_metrics(step, state["metrics"])
        told = [record["step"] for record in read_metrics(run.directory)]
    if told != list(STEPS[:step]):
        raise ValueError(f"expected records of {step} steps, got {told}")
    if not np.array_equal(state["values"], _state(step)["values"]):
        raise ValueError(f"checkpoint {step} was changed")
    return step


def _state(step: int) -> dict[str, Any]:
    return {"step": step, "values": np.random.default_rng(step).random(300)}


def _write_trials(folder: Path, announce: Announce) -> None:
    with _run(folder) as run:
        for step in STEPS:
            line = seal({"trial": step, "why": "x" * 700}, step - 1, run.id)
            append_json_lines(run.path("trials.jsonl"), [line], synced=True)
            announce(step)


def _read_trials(folder: Path) -> int:
    with _run(folder) as run:
        found = [line["trial"] for line in read_sealed_lines(run.path("trials.jsonl"), run.id)]
    if found != list(STEPS[: len(found)]):
        raise ValueError(f"expected trials in their order, got {found}")
    return len(found)


def _write_summary(folder: Path, announce: Announce) -> None:
    with _run(folder) as run:
        run.finish({"figure": "x" * 2000})
    announce(1)


def _read_summary(folder: Path) -> int:
    with _run(folder) as run:
        return int(run.finished and run.summary == {"figure": "x" * 2000})


def _write_results(folder: Path, announce: Announce) -> None:
    """As a pipeline does after a round: files and links to the newest."""
    for step in STEPS:
        write_with_manifest(folder / f"episodes-{step}.json", b"[1]", {})
        (folder / f"round_{step}").mkdir()
        stand_for(folder / "actor", f"round_{step}")
        announce(step)


def _read_results(folder: Path) -> int:
    link = folder / "actor"
    return int(link.readlink().name.removeprefix("round_")) if link.is_symlink() else 0


def _run(folder: Path) -> Run:
    return Run.open(folder / "run", RunConfig())


WRITERS = {
    "file": Writer(_write_file, _read_file),
    "shards": Writer(_write_shards, _read_shards),
    "checkpoints": Writer(_write_checkpoints, _read_checkpoints),
    "trials": Writer(_write_trials, _read_trials),
    "summary": Writer(_write_summary, _read_summary),
    "results": Writer(_write_results, _read_results),
}
