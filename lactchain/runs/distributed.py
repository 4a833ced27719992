"""Processes that work together, started by `accelerate launch` or `torchrun`.

Rank and world size come from the environment, so that asking for them costs no torch. A plain
`python script.py` is rank 0 of 1.

A collective waits for all, and for long, since a slow process may come late. So a thread in each
process looks after the others on its machine. It asks the operating system whether they live, and
nothing of themselves: a process that is slow, or waits for a disk, goes on.
"""

import functools
import itertools
import math
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psutil

from lactchain.errors import ConfigError, Interrupted, ProcessLost
from lactchain.runs.console import tell

if TYPE_CHECKING:
    from accelerate import PartialState
    from torch.distributed import Store

POLL_SECONDS = 0.1  # between two looks at how far the other processes are
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

_peers: "Peers | None" = None
"""The other processes, which are watched once this one has met them."""
STARTED_BY = "LACTCHAIN_STARTED_BY"
"""Names the process without which those of a launch end; a launcher of others says nothing."""
LOOK_SECONDS = 1.0
LOOKS = {"died": 3, "is stopped": 10}
"""So often in a row a process is found dead, or stopped, before that counts."""
FAREWELL_SECONDS = 3.0
"""How long rank 0 stays, with the store that it holds, so that the others hear that it has left."""


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
    rendezvous = (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
    sizes = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
    is_by_accelerate = "ACCELERATE_MIXED_PRECISION" in os.environ
    is_alone = os.environ.keys().isdisjoint(sizes)
    if is_by_accelerate and is_alone and rendezvous == ("127.0.0.1", "29500"):
        raise ConfigError(f"accelerate was asked for several processes and started one; {ON_CPU}")
    hides_gpus = uses_cpu() or os.environ.get("ACCELERATE_TORCH_DEVICE") == "cpu"
    hides_gpus |= os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("-1")
    if is_by_accelerate and world_size() > 1 and not hides_gpus:
        import torch

        if not torch.cuda.is_available():
            raise ConfigError(
                f"accelerate was asked for {world_size()} processes on GPUs, and torch finds none "
                f"here; {ON_CPU}"
            )


def uses_cpu() -> bool:
    """Whether the launcher was told to use the CPU."""
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1", "yes")


def initialise() -> "PartialState":
    """Joins the process group (gloo without CUDA, else NCCL); `ConfigError` for a wrong size."""
    global _peers
    import torch
    from accelerate import PartialState

    if not torch.cuda.is_available():
        # accelerate otherwise gives each process a world of its own (accelerate 1.15).
        os.environ["ACCELERATE_USE_CPU"] = "true"
    # FSDP's launch may ask that one process of a machine reads weights, and gives them to the
    # others when a training begins. Any model that is used before or without one, such as an actor
    # that collects episodes, would have none in the others. Each reads its own: files are mapped.
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    if world_size() > 1 and _peers is None and (interface := loopback()) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    options = {"timeout": timeout} if world_size() > 1 else {}
    state = PartialState(cpu=uses_cpu(), **options)
    if world_size() > 1 and _peers is None:
        _peers = Peers(rank(), world_size(), _connection())
        _peers.watcher.start()
    if state.num_processes != world_size():
        raise ConfigError(
            f"process group: expected {world_size()} processes, got {state.num_processes}; "
            "start with one of configs/accelerate/*.yaml"
        )
    return state


def loopback() -> str | None:
    """The interface by which processes of one machine meet; None where some may be elsewhere.

    Else gloo looks for the address of the host's name, and warns in a container that has none.
    """
    if os.environ.get("LOCAL_WORLD_SIZE") != str(world_size()):
        return None
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)


def leave(in_good_order: bool = True) -> None:
    """Leaves the process group, if this process has joined one.

    The others miss a process that does not leave in good order, and end.
    """
    global _peers
    # Gloo's threads otherwise outlive the interpreter, and abort a process that had ended well.
    torch = sys.modules.get("torch")
    if _peers is not None and in_good_order:
        _peers.leave()
    if torch is not None and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    if _peers is not None:
        _peers.end_watch()
    _store.cache_clear()
    _peers = None


def is_lost(error: RuntimeError) -> bool:
    """Whether an error says that another process is not there any more."""
    torch = sys.modules.get("torch")
    if world_size() == 1 or torch is None:
        return False
    return isinstance(error, torch.distributed.DistError) or bool(_GONE.search(str(error)))


def has_met() -> bool:
    """Whether this process has met the others of its launch."""
    return world_size() == 1 or _peers is not None


def ended() -> str:
    """Who of the others on this machine is not there any more, in words."""
    ranks = [] if _peers is None else _peers.ended()
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
            with suppress(RuntimeError):  # rank 0 is gone, and the store with it
                _store().compare_set(f"{self._name}/given_up", "", str(rank()))

    def __iter__(self) -> Iterator[int]:
        """Claims pieces until there are none, or a process has given up."""
        while self._given_up() is None and (claimed := self._add("claimed", 1)) <= self.count:
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
            if (first := self._given_up()) is not None:
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
        return _store().add(f"{self._name}/{counter}", amount)

    def _given_up(self) -> str | None:
        """The rank of the first process that has."""
        name = f"{self._name}/given_up"
        return _store().get(name).decode() if _store().check([name]) else None


def made_here(
    make: Callable[[Any, int], Any], pieces: Iterable[tuple[Any, int]], _: Callable[[], None]
) -> Iterator[tuple[int, Any]]:
    """The number of each piece of work, and what is made of it; in this process."""
    for piece, number in pieces:
        yield number, make(piece, number)


made = made_here
"""Who makes pieces of work; others than this process are waited for with a look now and then."""
cpu_elsewhere = 0.0
"""Seconds of CPU that those others have taken."""


@functools.cache
def _store() -> "Store":
    """The key-value store through which the processes of this launch have met."""
    if world_size() == 1:
        from torch.distributed import HashStore

        return HashStore()
    initialise()
    return _connection()


def _connection() -> "Store":
    """A new connection to that store."""
    from torch.distributed import PrefixStore, rendezvous

    store, _, _ = next(rendezvous("env://", timeout=timeout))
    return PrefixStore("lactchain", store)


# --- the others of this machine ------------------------------------------------------------------


class Peers:
    """The other processes on this machine; ranks and process ids are exchanged through a store.

    Args:
        rank: of this process, which tells the others that it has begun.
        size: of the launch; returns when all have begun.
        store: a connection of its own, since a thread asks.
    """

    def __init__(self, rank: int, size: int, store: "Store") -> None:
        self._rank, self._store = rank, store
        self._started_by = os.environ.pop(STARTED_BY, None)  # which is not for others to inherit
        self._staying = set(range(size)) - {rank}
        self._looks: dict[int, tuple[str | None, int]] = {}
        self._processes: dict[int, tuple[int, psutil.Process | None]] = {}
        self._over = threading.Event()
        # It ends this process when another one is lost: the main thread may wait.
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        store.set(f"peer-{rank}", f"{os.getpid()} {socket.gethostname()}")
        for other in sorted(self._staying):
            pid, host = store.get(f"peer-{other}").decode().split(" ", 1)
            if host == socket.gethostname():
                self._processes[other] = int(pid), None
                with suppress(psutil.NoSuchProcess):
                    self._processes[other] = int(pid), psutil.Process(int(pid))

    def look(self) -> str | None:
        """What has become of the first process that is lost; None where none is."""
        if self._started_by not in (None, str(os.getppid())):
            return f"process {self._started_by}, which started this one, died"
        states = {rank: _state(process) for rank, (_, process) in self._processes.items()}
        if states.get(0) is None:  # it holds the store, and torch is loud about one that is gone
            self._hear_who_left()
        for rank, state in states.items():
            before, number = self._looks.get(rank, (None, 0))
            number = number + 1 if state == before else 1
            self._looks[rank] = state, number
            if rank in self._staying and number >= LOOKS.get(state, math.inf):
                return f"rank {rank} (process {self._processes[rank][0]}) {state}"
        return None

    def ended(self) -> list[int]:
        """The ranks of those that are not there any more, in good order or not."""
        return [rank for rank, (_, p) in self._processes.items() if _state(p) == "died"]

    def leave(self) -> None:
        """Says that this process has ended in good order.

        Rank 0, and the store with it, stays until all have left, or have had the time to hear it.
        """
        with suppress(RuntimeError):  # rank 0 and its store may be gone
            self._store.set(f"left-{self._rank}", "")
        end = time.monotonic() + FAREWELL_SECONDS
        while self._rank == 0 and self._staying and time.monotonic() < end:
            time.sleep(LOOK_SECONDS / 20)
            self._hear_who_left()

    def end_watch(self) -> None:
        """Waits for the watcher, which would abort an interpreter that ends before it."""
        self._over.set()
        if self.watcher.is_alive():
            self.watcher.join(FAREWELL_SECONDS)

    def _watch(self) -> None:
        while (lost := self.look()) is None:
            if self._over.wait(LOOK_SECONDS):
                return
        line = f"[rank {self._rank}] error: {lost}; give the same command to go on from the last"
        tell(f"{line} checkpoint")
        os._exit(ProcessLost.exit_code)

    def _hear_who_left(self) -> None:
        with suppress(RuntimeError):
            self._staying -= {r for r in self._staying if self._store.check([f"left-{r}"])}


def _state(process: psutil.Process | None) -> str | None:
    """`died`, `is stopped`, or None of a process that lives."""
    status = psutil.STATUS_DEAD
    with suppress(psutil.NoSuchProcess):  # nor is another one that has its number now
        if process is not None and process.is_running():
            status = process.status()
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return "died"
    return "is stopped" if status == psutil.STATUS_STOPPED else None
