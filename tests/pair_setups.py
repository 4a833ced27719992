"""Several tiny trainings in one pair of processes, under DDP or FSDP2, joined by gloo on the CPU.

accelerate allows FSDP2 only where it sees accelerators: here the gloo group is announced as one of
them. All else is accelerate's and the project's own code.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import training_setups
from accelerate import PartialState
from accelerate.state import GradientState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule
from training_setups import MAKERS, STATES, TRAINING, new_group, open_run

from lactchain import ActorConfig, Interrupted, TrainingConfig, launch
from lactchain.models.loading import load_actor
from lactchain.runs import distributed
from lactchain.runs.process import stop_requested
from lactchain.runs.run import read_metrics
from lactchain.trainers import guards
from lactchain.trainers.base import save_result, train

FSDP2 = {
    "ACCELERATE_USE_FSDP": "true", "ACCELERATE_TORCH_DEVICE": "cpu", "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
}  # fmt: skip


def announce_accelerators() -> None:
    """Lets accelerate take the processes of this group for those of GPUs."""

    def prepare_backend(*_: Any) -> tuple[str, DistributedType]:
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo")
        return "gloo", DistributedType.MULTI_GPU

    os.environ.update(FSDP2)
    PartialState._prepare_backend = prepare_backend


def run_on_two(
    work: Callable[[], Any], folder: Path, *, fsdp: bool, mixed_precision: str = "no"
) -> list[Any]:
    """What `work` returns in each of two processes that work together.

    Raises:
        AssertionError: with their logs, if one of them failed.
    """
    files = [folder / f"rank-{rank}.json" for rank in range(2)]
    variables = {**new_group(), "ACCELERATE_MIXED_PRECISION": mixed_precision}
    start = training_setups._preloaded().Process
    processes = [
        start(target=_main, args=(rank, variables, fsdp, file, work))
        for rank, file in enumerate(files)
    ]
    for file, process in zip(files, processes, strict=True):
        file.with_suffix(".log").touch()
        process.start()
    for process in processes:
        process.join()
    logs = [file.with_suffix(".log").read_text() for file in files]
    assert [process.exitcode for process in processes] == [0, 0], "\n".join(logs)
    return [json.loads(file.read_text()) for file in files]


def _main(
    rank: int, variables: dict[str, str], fsdp: bool, file: Path, work: Callable[[], Any]
) -> None:
    own = variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    training_setups.begin(own, str(file.with_suffix(".log")), "training")
    if fsdp:
        announce_accelerators()
    else:
        os.environ["ACCELERATE_USE_CPU"] = "true"
    launch(lambda _: file.write_text(json.dumps(work())), TrainingConfig)


def losses(kind: str, weights: Path, run_dir: Path, batch_size: int, **options: Any) -> list[float]:
    """The losses of ten updates.

    Nothing is random, so that any number of processes sees the same rows. The last update of an
    epoch has fewer than the others.
    """
    with comparable(kind, weights, run_dir, batch_size, **options) as trainer:
        train(trainer)
    records = read_metrics(run_dir)
    return [record["train/loss"] for record in records if "train/loss" in record]


@contextmanager
def comparable(
    kind: str, weights: Path, run_dir: Path, batch_size: int, accumulation: int = 2, **options: Any
) -> Iterator[Any]:
    """The trainer of `losses`."""
    rows = {"batch_size": batch_size, "gradient_accumulation_steps": accumulation}
    notes = {"save_every_updates": 4, "extra": {"logging_steps": 1}}
    settings = replace(TRAINING, max_steps=10, num_epochs=5, **rows, **notes)
    with patch.multiple(training_setups, NUM_ROWS=19, DROPOUT=0.0), open_run(run_dir) as run:
        yield MAKERS[kind](weights, run, settings=settings, **options)


def interrupt(kind: str, weights: Path, run_dir: Path, **options: Any) -> dict[str, Any]:
    """Trains as `losses`, but for a stop in the eighth update; what is seen then and at the end."""
    with comparable(kind, weights, run_dir, 2, **options) as trainer:
        stop_within(trainer, update=8)
        with pytest.raises(Interrupted) as stop:
            train(trainer)
    guards.stop_requested = stop_requested
    GradientState._reset_state()  # as in a new process: that one was left between micro-batches
    with comparable(kind, weights, run_dir, 2, **options) as trainer:
        train(trainer)
    save_result(trainer, run_dir.with_name("result"))
    model = trainer.model
    return {
        "stop": str(stop.value),
        "units": [type(m).__name__ for m in model.modules() if isinstance(m, FSDPModule)],
        "values": model.values(STATES).tolist() if kind == "critic" else None,
    }


def actor_norm(weights: Path) -> float:
    """Size of the weights that this process gets of an actor that is not trained."""
    model, _ = load_actor(ActorConfig(str(weights / "actor")))
    return sum(parameter.norm().item() for parameter in model.parameters())


def stop_within(trainer: Any, update: int) -> None:
    """As if SIGTERM came to the last process alone, in the first micro-batch of an update."""
    training_step = trainer.training_step

    def interrupted(*args: Any) -> torch.Tensor:
        loss = training_step(*args)
        last = distributed.rank() == distributed.world_size() - 1
        if last and trainer.state.global_step == update - 1:
            guards.stop_requested = lambda: signal.SIGTERM
        return loss

    trainer.training_step = interrupted
