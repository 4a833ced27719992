"""Several tiny trainings in one pair of processes, under DDP or FSDP2, joined by gloo on the CPU.

accelerate allows FSDP2 only where it sees accelerators: here the gloo group is announced as one of
them. All else is accelerate's and the project's own code.
"""

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from training_setups import _preloaded

from lactchain import distributed
from lactchain.run import launch
from lactchain.settings import TrainingConfig

GROUP = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
FSDP2 = {
    "ACCELERATE_USE_FSDP": "true",
    "ACCELERATE_TORCH_DEVICE": "cpu",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
}


def announce_accelerators() -> None:
    """Lets accelerate take the processes of this group for those of GPUs."""

    def prepare_backend(*_: Any) -> tuple[str, DistributedType]:
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo")
        return "gloo", DistributedType.MULTI_GPU

    os.environ.update(FSDP2)
    PartialState._prepare_backend = prepare_backend


def run_on_two(work: Callable[..., Any], folder: Path, *args: Any, fsdp: bool) -> list[Any]:
    """What `work(*args)` returns in each of two processes that work together.

    Raises:
        AssertionError: with their logs, if one of them failed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    files = [folder / f"rank-{rank}.json" for rank in range(2)]
    processes = [
        _preloaded().Process(target=_main, args=(rank, port, fsdp, files[rank], work, args))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    logs = [file.with_suffix(".log").read_text() for file in files]
    assert [process.exitcode for process in processes] == [0, 0], "\n".join(logs)
    return [json.loads(file.read_text()) for file in files]


def _main(
    rank: int, port: str, fsdp: bool, file: Path, work: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    os.environ.update(GROUP, MASTER_PORT=port, RANK=str(rank), LOCAL_RANK=str(rank))
    sys.stdout = sys.stderr = file.with_suffix(".log").open("a")
    torch.set_num_threads(1)
    if fsdp:
        announce_accelerators()
    sys.argv = ["training"]
    launch(lambda _: file.write_text(json.dumps(work(*args))), TrainingConfig)
    assert distributed.rank() == rank
