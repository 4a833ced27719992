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
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from script_setups import build_weights

from fault_matrix.cases import Case, Verdict
from fault_matrix.disk_states import Model, Recording, materialise, recording, states
from fault_matrix.programs import PROGRAMS
from lactchain.baselines.state_files import load_checkpoint, save_checkpoint
from lactchain.checkpoints import latest_checkpoint
from lactchain.data.parquet import read_table, write_table
from lactchain.errors import DataError
from lactchain.files import (
    append_json_lines,
    atomic_write,
    make_folder,
    read_json_lines,
    read_sealed_lines,
    seal,
    stand_for,
)
from lactchain.manifests import (
    read_with_manifest,
    verify_manifest,
    write_manifest,
    write_with_manifest,
)
from lactchain.run import Run, read_metrics, read_summary
from lactchain.search import runs
from lactchain.search.agents import AgentSpecies
from lactchain.search.evolution import Evolution
from lactchain.settings import RunConfig
from lactchain.stages import search, train_bc
from lactchain.trainers.guards import GuardCallback

TITLE = "power is lost"
MODELS: tuple[Model, ...] = ("journal", "loose")
STATES = 40
"""Of each writer, model and moment, where they are read in a moment."""

Announce = Callable[[int], None]


@dataclass(frozen=True)
class Writer:
    """Something that writes into a folder, step by step.

    Attributes:
        write: does so, and announces the number of each step that is done.
        read: the number of the last step that is there; `ValueError` where it is there by halves.
        num_states: that are tried at each moment.
    """

    write: Callable[[Path, Announce], None]
    read: Callable[[Path], int]
    num_states: int = STATES


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
        for state in states(self.recorded, self.end, self.model, self.writer.num_states, rng):
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
    """As a pipeline does after a round: files, a model, and a link to the newest."""
    for step in STEPS:
        write_with_manifest(folder / f"episodes-{step}.json", b"[1]", {})
        model = folder / f"round_{step}"
        make_folder(model)
        (model / "model.safetensors").write_bytes(b"%d" % step * 3000)
        write_manifest(model, {"round": step})
        stand_for(folder / "actor", model.name)
        announce(step)


def _read_results(folder: Path) -> int:
    """All that came before the newest model is there, too."""
    link = folder / "actor"
    newest = verify_manifest(link.resolve())["round"] if link.is_symlink() else 0
    for step in range(1, newest + 1):
        content, _, is_whole = read_with_manifest(folder / f"episodes-{step}.json")
        if not is_whole or content != b"[1]":
            raise ValueError(f"episodes of round {step} were changed")
        verify_manifest(folder / f"round_{step}")
    return newest


def _write_training(folder: Path, announce: Announce) -> None:
    """The checkpoints of a trainer of transformers, whose weights native code writes."""
    config = _training(folder)
    declared = GuardCallback.on_save

    def saved(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        declared(self, args, state, control, **kwargs)
        announce(state.global_step)

    with patch.object(GuardCallback, "on_save", saved):
        train_bc.main(config)


def _read_training(folder: Path) -> int:
    """As `trainers.base.train` finds out where it goes on; and what it ends with."""
    with Run.of(_training(folder)) as run:
        if run.finished:
            read_summary(run.directory)
            verify_manifest(run.directory / "actor")
        checkpoint = latest_checkpoint(run.path("checkpoints"))
        if checkpoint is None:
            return 0
        recorded = verify_manifest(checkpoint)
        run.truncate_metrics(recorded["global_step"], recorded["metrics"])
        return recorded["global_step"]


def _training(folder: Path) -> Any:
    """A training of four updates or more; its models lie elsewhere, since they are only read."""
    return PROGRAMS["train_bc"].config(Path(_models().name), folder / "run")


@cache
def _models() -> TemporaryDirectory:
    """Models that live as long as this process."""
    folder = TemporaryDirectory()
    build_weights(Path(folder.name))
    return folder


def _write_lineage(folder: Path, announce: Announce) -> None:
    """The generations of a search."""
    save = runs.save_checkpoint

    def saved(place: Path, step: int, *rest: Any) -> None:
        save(place, step, *rest)
        announce(step)

    with patch.object(runs, "save_checkpoint", saved):
        search.main(PROGRAMS["search_evolution"].config(folder, folder / "run"))


def _read_lineage(folder: Path) -> int:
    """As a search goes on."""
    config = PROGRAMS["search_evolution"].config(folder, folder / "run")
    with Run.of(config) as run:
        if run.finished:
            read_summary(run.directory)
            verify_manifest(run.directory / "best")
            return config.evolution.num_generations
        seed, evolution = config.run.seed, config.evolution
        species = AgentSpecies(config.subject, config.environment, config.space, evolution, seed)
        found = Evolution(species, evolution, seed, config.target)
        runs.resume(run, found)
        told = {line["generation"] for line in read_json_lines(run.path("lineage.jsonl"))}
    if told != set(range(found.number)):
        raise ValueError(f"expected the lineage of {found.number} generations, got {sorted(told)}")
    return found.number


def _run(folder: Path) -> Run:
    return Run.open(folder / "run", RunConfig())


WRITERS = {
    "file": Writer(_write_file, _read_file),
    "shards": Writer(_write_shards, _read_shards),
    "checkpoints": Writer(_write_checkpoints, _read_checkpoints),
    "trials": Writer(_write_trials, _read_trials),
    "summary": Writer(_write_summary, _read_summary),
    "results": Writer(_write_results, _read_results),
    "training": Writer(_write_training, _read_training, 12),
    "lineage": Writer(_write_lineage, _read_lineage, 12),
}
