"""Workers of Ray that make the shards of a run, on this machine or on those of a cluster.

A worker is an actor of Ray's. What makes the shards, the models included, is sent to each of them
once, and then one piece of work after the other. The rows come back, and this process writes them:
no folder has to be shared, and the rows are those of one process, since what a shard holds follows
from its number alone. Where a worker dies, Ray starts another one and gives it the piece again.
"""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RaySystemError, RayTaskError

from lactchain.environments.registry import import_modules, modules_of
from lactchain.errors import ConfigError, Interrupted, ProcessLost
from lactchain.runs import distributed
from lactchain.runs.console import console

RETRIES = 3
"""So often a piece is given again whose worker has died: it may be the piece that kills them."""
CONNECT_SECONDS = 10.0
"""How long a cluster may take to answer; Ray itself asks for minutes where nobody is."""

Make = Callable[[Any, int], Any]
Sent = tuple[ray.ObjectRef, int, list[str]]
"""A reference to what makes pieces, which a worker that was begun anew reads again; the threads
that it takes; and the modules that it needs."""


class Workers:
    """N workers, which begin with the first piece of work, and stay for the next work."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._idle: list[Any] = []
        self._busy: dict[ray.ObjectRef, tuple[Any, int]] = {}

    def __call__(
        self, make: Make, pieces: Iterable[tuple[Any, int]], look: Callable[[], None]
    ) -> Iterator[tuple[int, Any]]:
        """As `distributed.made_here`, each piece as soon as it is done.

        Raises:
            ConfigError: there is no such cluster, or what makes the pieces cannot be sent to it.
            ProcessLost: a piece has cost several workers their lives, or nothing comes any more.
        """
        try:
            yield from self._made(make, iter(pieces), look)
        except BaseException:  # what is under way is nobody's any more
            self.end()
            raise

    def end(self) -> None:
        """Ends all workers at once."""
        for actor in (*self._idle, *(actor for actor, _ in self._busy.values())):
            ray.kill(actor)
        self._idle, self._busy = [], {}

    def _made(
        self, make: Make, pieces: Iterator[tuple[Any, int]], look: Callable[[], None]
    ) -> Iterator[tuple[int, Any]]:
        sent, last = (), time.monotonic()
        while True:
            for piece, number in islice(pieces, self._count - len(self._busy)):
                if not (self._idle or self._busy):
                    self._idle = self._begun()
                sent = sent or (_sent(make), torch.get_num_threads(), modules_of())
                actor = self._idle.pop()
                self._busy[actor.make.remote(sent, piece, number)] = actor, number
            if not self._busy:
                return
            done, _ = ray.wait([*self._busy], timeout=distributed.LOOK_SECONDS)
            look()
            for call in done:
                made, cpu_seconds = _result(call, self._busy[call][1])
                actor, number = self._busy.pop(call)
                self._idle.append(actor)
                distributed.cpu_elsewhere += cpu_seconds
                last = time.monotonic()
                yield number, made
            if time.monotonic() - last > distributed.timeout.total_seconds():
                what = f"nothing came of {len(self._busy)} of them within {distributed.timeout}"
                look = "see whether the cluster still has its machines"
                mend = "raise --run.timeout_minutes, and give the same command to go on"
                raise ProcessLost(f"--workers: {what}; {look}, or {mend}")

    def _begun(self) -> list[Any]:
        """The actors; each takes the threads of this process, and a GPU where this one has any."""
        threads, gpus = torch.get_num_threads(), int(torch.cuda.is_available())
        if not ray.is_initialized():
            _join(self._count * threads)
        has = ray.cluster_resources()
        most = min(has.get("CPU", 0) // threads, has.get("GPU", 0) if gpus else self._count)
        if most < self._count:
            each = f"{threads} CPUs and {gpus} GPUs, which is what the cluster has"
            what = f"expected at most {most:.0f} workers of {each}, got {self._count}"
            raise ConfigError(f"--workers: {what}; lower the number")
        needs = {"num_cpus": threads, "num_gpus": gpus}
        kind = ray.remote(max_restarts=-1, max_task_retries=RETRIES, **needs)(_Worker)
        return [kind.remote() for _ in range(self._count)]


the_workers = cache(Workers)


class _Worker:
    """What works in the processes of the cluster."""

    def __init__(self) -> None:
        console.quiet = True
        self._sent: Sent | None = None
        self._cpu_seconds = 0.0

    def make(self, sent: Sent, piece: Any, number: int) -> tuple[Any, float]:
        """What is made of a piece, and the seconds of CPU since the last one."""
        if sent != self._sent:
            make, threads, modules = sent
            torch.set_num_threads(threads)
            import_modules(modules)
            self._make, self._sent = ray.get(make), sent
        made, before = self._make(piece, number), self._cpu_seconds
        self._cpu_seconds = time.process_time()
        return made, self._cpu_seconds - before


def _join(cpus: int) -> None:
    """Joins the cluster at RAY_ADDRESS, or begins one here, which ends with this process."""
    address, on_term = os.environ.get("RAY_ADDRESS"), signal.getsignal(signal.SIGTERM)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    begin = {"num_cpus": cpus, "include_dashboard": False}
    try:
        if address and ":" in address:
            host, _, port = address.rpartition("/")[2].rpartition(":")
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        ray.init(address or "local", logging_level="ERROR", **({} if address else begin))
    except SystemExit as end:  # by Ray's own handler, until ours is back
        raise Interrupted(signal.SIGTERM, "stopped; give the same command to go on") from end
    except Exception as error:  # of several kinds, the plain one among them
        where = f"no cluster of Ray at {address or 'this machine'} ({error})"
        raise ConfigError(f"--workers: {where}; start one, or set or unset RAY_ADDRESS") from error
    finally:
        with suppress(ValueError):  # threads may set none
            signal.signal(signal.SIGTERM, on_term)


def _sent(make: Make) -> ray.ObjectRef:
    try:
        return ray.put(make)
    except TypeError as error:
        what = f"what plays cannot be sent to other processes ({str(error)[:200]})"
        raise ConfigError(f"--workers: {what}; leave --workers out") from error


def _result(call: ray.ObjectRef, number: int) -> tuple[Any, float]:
    """What a call returned; of errors in it, those themselves are raised."""
    try:
        return ray.get(call)
    except RayTaskError as error:
        if not isinstance(error.cause, RaySystemError):
            raise error.cause from error
        reason = str(error.cause).strip().splitlines()[-1]
        what = f"a worker cannot read what plays ({reason}); install there what is here"
        raise ConfigError(f"--workers: {what}") from error
    except RayError as error:
        died = f"{RETRIES + 1} of them have died at piece {number} ({str(error)[:300]})"
        mend = "see Ray's logs, and give the same command to go on"
        raise ProcessLost(f"--workers: {died}; {mend}") from error
