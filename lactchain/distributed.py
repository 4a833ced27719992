"""Processes that work together, started by `accelerate launch` or `torchrun`.

Rank and world size come from the environment, so that asking for them costs no torch. A plain
`python script.py` is rank 0 of 1.
"""

import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

from lactchain.errors import ConfigError

if TYPE_CHECKING:
    from accelerate import PartialState

# A rank that died is noticed after this, where its launcher has not ended the others before.
TIMEOUT = timedelta(minutes=10)


def rank() -> int:
    """The number of this process, 0 for the one that writes."""
    return int(os.environ.get("RANK", 0))


def world_size() -> int:
    """How many processes work together."""
    return int(os.environ.get("WORLD_SIZE", 1))


def is_main() -> bool:
    """Whether this process is the one that writes."""
    return rank() == 0


def check_launcher() -> None:
    """Refuses a launcher that was asked for several processes and started one.

    `accelerate launch --cpu --num_processes 2` prepares a rendezvous on this machine and then
    starts a single process, without a word.

    Raises:
        ConfigError: this is such a process.
    """
    rendezvous = (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
    by_accelerate = "ACCELERATE_MIXED_PRECISION" in os.environ
    sizes = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
    alone = not any(size in os.environ for size in sizes)
    if by_accelerate and alone and rendezvous == ("127.0.0.1", "29500"):
        raise ConfigError(
            "accelerate was asked for several processes and started one; for two on a CPU: "
            "accelerate launch --config_file configs/accelerate/cpu_2_processes.yaml SCRIPT ..."
        )


def initialise() -> "PartialState":
    """Joins the process group (gloo without CUDA, else NCCL); the same state on every call.

    Raises:
        ConfigError: the group has not the size that the launcher announced.
    """
    import torch
    from accelerate import PartialState

    check_launcher()
    if not torch.cuda.is_available():
        # accelerate otherwise gives each process a world of its own (accelerate 1.15).
        os.environ["ACCELERATE_USE_CPU"] = "true"
    use_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1", "yes")
    options = {"timeout": TIMEOUT} if world_size() > 1 else {}
    state = PartialState(cpu=use_cpu, **options)
    if state.num_processes != world_size():
        raise ConfigError(
            f"process group: expected {world_size()} processes, got {state.num_processes}; "
            "start with one of configs/accelerate/*.yaml"
        )
    return state


def leave() -> None:
    """Leaves the process group, if this process has joined one.

    Gloo's threads otherwise outlive the interpreter, and abort a process that had ended well.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def barrier() -> None:
    """Waits until every process is here; free for a single one."""
    if world_size() > 1:
        initialise().wait_for_everyone()


def total(number: float) -> float:
    """The sum of a number over all processes."""
    if world_size() == 1:
        return number
    import torch

    state = initialise()
    sums = torch.tensor([number], dtype=torch.float64, device=state.device)
    torch.distributed.all_reduce(sums)
    return sums.item()


def any_of(flag: bool) -> bool:
    """Whether the flag is set in any process: all of them learn it, and so can stop together."""
    if world_size() == 1:
        return flag
    import torch

    state = initialise()
    flags = torch.tensor([flag], dtype=torch.int32, device=state.device)
    torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX)
    return bool(flags.item())
