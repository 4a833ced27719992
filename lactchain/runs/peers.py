"""The other processes of a launch: whoever dies or is stopped is noticed within seconds.

A collective waits for all, and for long, since a slow process may come late. So a thread in each
process looks after the others on its machine. It asks the operating system whether they live, and
nothing of themselves: a process that is slow, or waits for a disk, goes on.
"""

import os
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from lactchain.errors import ProcessLost
from lactchain.runs.console import tell

if TYPE_CHECKING:
    from torch.distributed import Store

LOOK_SECONDS = 1.0
LOOKS = {"died": 3, "is stopped": 10}
"""So often in a row a process is found dead, or stopped, before that counts."""
FAREWELL_SECONDS = 3.0
"""How long rank 0 stays, with the store that it holds, so that the others hear that it has left."""


class Peers:
    """The other processes on this machine; ranks and process ids are exchanged through a store.

    Args:
        rank: of this process, which tells the others that it has begun.
        size: of the launch; returns when all have begun.
        store: a connection of its own, since a thread asks.
    """

    def __init__(self, rank: int, size: int, store: "Store") -> None:
        self._rank, self._size, self._store = rank, size, store
        self._left: set[int] = set()
        self._looks: dict[tuple[int, str], int] = {}
        self._processes: dict[int, tuple[int, psutil.Process | None]] = {}
        store.set(f"peer-{rank}", f"{os.getpid()} {socket.gethostname()}")
        for other in set(range(size)) - {rank}:
            pid, host = store.get(f"peer-{other}").decode().split(" ", 1)
            if host == socket.gethostname():
                self._processes[other] = int(pid), _process(int(pid))

    def look(self) -> str | None:
        """What has become of the first process that is lost; None where none is."""
        states = {rank: _state(process) for rank, (_, process) in self._processes.items()}
        for rank, state in states.items():
            # Rank 0 holds the store, and torch is loud about one that is gone.
            if rank in self._left or (states.get(0) is None and self._has_left(rank)):
                continue
            for what, enough in LOOKS.items():
                number = self._looks.get((rank, what), 0) + 1 if what == state else 0
                self._looks[rank, what] = number
                if number >= enough:
                    return f"rank {rank} (process {self._processes[rank][0]}) {what}"
        return None

    def ended(self) -> list[int]:
        """The ranks of those that are not there any more, in good order or not."""
        return [rank for rank, (_, p) in self._processes.items() if _state(p) == "died"]

    def leave(self) -> None:
        """Says that this process has ended in good order."""
        with suppress(RuntimeError):  # rank 0 and its store may be gone
            self._store.set(f"left-{self._rank}", "")

    def wait_for_others(self) -> None:
        """Stays until all have left, or have had the time to hear that this one has."""
        end = time.monotonic() + FAREWELL_SECONDS
        others = set(range(self._size)) - {self._rank}
        while time.monotonic() < end and not all(map(self._has_left, others)):
            time.sleep(LOOK_SECONDS / 20)

    def watch(self) -> None:
        """Ends this process when another one is lost; in a thread, since the main one may wait."""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while (lost := self.look()) is None:
            time.sleep(LOOK_SECONDS)
        line = f"[rank {self._rank}] error: {lost}; give the same command to go on from the last"
        tell(f"{line} checkpoint")
        os._exit(ProcessLost.exit_code)

    def _has_left(self, rank: int) -> bool:
        with suppress(RuntimeError):
            if self._store.check([f"left-{rank}"]):
                self._left.add(rank)
        return rank in self._left


def _process(pid: int) -> psutil.Process | None:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None


def _state(process: psutil.Process | None) -> str | None:
    """`died`, `is stopped`, or None of a process that lives."""
    try:
        if process is None or not process.is_running():
            return "died"
        status = process.status()
    except psutil.NoSuchProcess:
        return "died"
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return "died"
    return "is stopped" if status == psutil.STATUS_STOPPED else None
