"""Processes that work together, started by `accelerate launch` or `torchrun`.

Rank and world size come from the environment, so that asking for them costs no torch. A plain
`python script.py` is rank 0 of 1.
"""

import functools
import itertools
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lactchain.errors import ConfigError, Interrupted
from lactchain.runs.peers import Peers

if TYPE_CHECKING:
    from accelerate import PartialState
    from torch.distributed import Store

# Seconds between two looks at how far the other processes are.
POLL_SECONDS = 0.1

ON_CPU = (
    "for two on a CPU: accelerate launch --config_file configs/accelerate/cpu_2_processes.yaml "
    "SCRIPT ..."
)

_GONE = re.compile(
    r"[Cc]onnection (was )?(closed|reset|refused)|[Bb]roken pipe|gloo/transport|NCCL.*(remote|peer)"
)
"""What collectives say of a process that is not there."""

timeout = timedelta(minutes=30)
"""How long a process waits for the others; set it before this one joins them."""


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
    """Refuses a launch by accelerate that is not what was asked for; accelerate says nothing of it.

    `accelerate launch --cpu --num_processes 2` prepares a rendezvous on this machine and then
    starts a single process. And processes for GPUs that are not there are started all the same.
    """
    if "ACCELERATE_MIXED_PRECISION" not in os.environ:
        return
    rendezvous = (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
    sizes = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
    if os.environ.keys().isdisjoint(sizes) and rendezvous == ("127.0.0.1", "29500"):
        raise ConfigError(f"accelerate was asked for several processes and started one; {ON_CPU}")
    if world_size() > 1 and not _hides_gpus():
        import torch

        if not torch.cuda.is_available():
            raise ConfigError(
                f"accelerate was asked for {world_size()} processes on GPUs, and torch finds none "
                f"here; {ON_CPU}"
            )


def _hides_gpus() -> bool:
    """Whether the launcher was told to leave GPUs alone."""
    by_device = os.environ.get("ACCELERATE_TORCH_DEVICE") == "cpu"
    return _uses_cpu() or by_device or os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("-1")


def _uses_cpu() -> bool:
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1", "yes")


def initialise() -> "PartialState":
    """Joins the process group (gloo without CUDA, else NCCL); `ConfigError` for a wrong size."""
    import torch
    from accelerate import PartialState

    if not torch.cuda.is_available():
        # accelerate otherwise gives each process a world of its own (accelerate 1.15).
        os.environ["ACCELERATE_USE_CPU"] = "true"
    # FSDP's launch may ask that one process of a machine reads weights, and gives them to the
    # others when a training begins. Any model that is used before or without one, such as an actor
    # that collects episodes, would have none in the others. Each reads its own: files are mapped.
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    options = {"timeout": timeout} if world_size() > 1 else {}
    state = PartialState(cpu=_uses_cpu(), **options)
    if world_size() > 1:
        _peers()
    if state.num_processes != world_size():
        raise ConfigError(
            f"process group: expected {world_size()} processes, got {state.num_processes}; "
            "start with one of configs/accelerate/*.yaml"
        )
    return state


def leave(in_good_order: bool = True) -> None:
    """Leaves the process group, if this process has joined one.

    The others miss a process that does not leave in good order, and end.
    """
    # Gloo's threads otherwise outlive the interpreter, and abort a process that had ended well.
    torch = sys.modules.get("torch")
    peers = _peers() if _peers.cache_info().currsize else None
    if peers is not None and in_good_order:
        peers.leave()
    if torch is not None and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    if peers is not None and in_good_order and is_main():
        peers.wait_for_others()
    _store.cache_clear()
    _peers.cache_clear()


def is_lost(error: RuntimeError) -> bool:
    """Whether an error says that another process is not there any more."""
    torch = sys.modules.get("torch")
    if world_size() == 1 or torch is None:
        return False
    return isinstance(error, torch.distributed.DistError) or bool(_GONE.search(str(error)))


def has_met() -> bool:
    """Whether this process has met the others of its launch."""
    return world_size() == 1 or _peers.cache_info().currsize > 0


def ended() -> str:
    """Who of the others on this machine is not there any more, in words."""
    ranks = _peers().ended() if _peers.cache_info().currsize else []
    return f"rank {ranks[0]}" if ranks else "another process"


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
    return total(flag) > 0


def of_main(value: Any) -> Any:
    """What rank 0 has, in all processes: what each computes may differ in the last digit."""
    if world_size() == 1:
        return value
    from accelerate.utils import broadcast_object_list

    initialise()
    return broadcast_object_list([value])[0]


class Shares(AbstractContextManager["Shares"]):
    """Pieces of work, each claimed by one process: the next one by whoever is free.

    All processes make it, as often and in the same order as any other of theirs. The claims live as
    long as the launch, so that those of a killed run are in nobody's way.

        with Shares(count) as shares:
            for number in shares:
                ...
                shares.finish()
            shares.wait()

    The `count` pieces are numbered from 0.
    """

    _serial = itertools.count()

    def __init__(self, count: int) -> None:
        self.count = count
        self._name = f"shares-{next(self._serial)}"

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None:
            with suppress(RuntimeError):  # rank 0 is gone, and the counters with it
                if self._add("leaving", 1) == 1:
                    self._add("first", rank())
                self._add("given_up", 1)

    def __iter__(self) -> Iterator[int]:
        """Claims pieces until there are none, or a process has given up."""
        while not self._add("given_up", 0) and (claimed := self._add("claimed", 1)) <= self.count:
            yield claimed - 1

    def finish(self) -> int:
        """Says that a claimed piece is done; returns how many are, over all processes."""
        return self._add("finished", 1)

    def wait(self, watch: Callable[[int], None]) -> None:
        """Returns when all pieces are finished, and all processes are here.

        A piece may take longer than a collective may, so this one looks, and tells `watch` how many
        are finished, until another process gives up (`Interrupted`), or none is finished within the
        time-out (`ConfigError`).
        """
        before, since = -1, time.monotonic()
        while (finished := self._add("finished", 0)) < self.count:
            watch(finished)
            if self._add("given_up", 0):
                first = self._add("first", 0)
                raise Interrupted(signal.SIGTERM, f"stopped, since rank {first} has; see there")
            if finished > before:
                before, since = finished, time.monotonic()
            if time.monotonic() - since > timeout.total_seconds():
                raise ConfigError(
                    f"other processes: finished none of their pieces of work within {timeout}; "
                    "where none of them has died, make the pieces smaller (shard_size, "
                    "states_per_shard) or raise --run.timeout_minutes"
                )
            time.sleep(POLL_SECONDS)
        barrier()

    def _add(self, counter: str, amount: int) -> int:
        """The value of a counter that all processes share, after adding to it."""
        name = f"{self._name}/{counter}"
        if world_size() > 1:
            return _store().add(name, amount)
        _counters[name] += amount
        return _counters[name]


_counters: Counter[str] = Counter()
"""Those of a process that works alone."""


@functools.cache
def _store() -> "Store":
    """The key-value store through which the processes of this launch have met."""
    initialise()
    return _connection()


@functools.cache
def _peers() -> Peers:
    """The other processes, which are watched from now on."""
    peers = Peers(rank(), world_size(), _connection())
    peers.watch()
    return peers


def _connection() -> "Store":
    """A new connection to that store."""
    from torch.distributed import PrefixStore, rendezvous

    store, _, _ = next(rendezvous("env://", timeout=timeout))
    return PrefixStore("lactchain", store)
