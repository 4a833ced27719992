"""Two processes that work together, one of which is lost.

Both end within 20 seconds, the one that is left with a line that names the other, and the same
command ends as if nothing had been. A run that was over before the fault came begins anew.
"""

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any

from fault_matrix.cases import Verdict, bad, good
from fault_matrix.digests import Digest, differing, digest, done, kept, whole
from fault_matrix.processes import PATIENCE, ended, kill, said, to_end, wait_until
from fault_matrix.programs import Program
from lactchain.runs.console import nothing_under_way
from lactchain.runs.distributed import Peers

WITHIN = 20.0
STRUCK = "struck"
"""File that says when the fault came."""


def _raise(number: int, frame: Any) -> None:
    raise RuntimeError("a planted error")


PLANTED = {
    "raises": _raise,
    "exits with 0": lambda number, frame: sys.exit(0),
    "ends with 0": lambda number, frame: os._exit(0),
}
SENT = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "asked": signal.SIGTERM}
CODES = {
    "killed": {-signal.SIGKILL},
    "stopped": {6, 0},  # once it goes on
    "raises": {1, 3, 5, 6},  # in the midst of a file or a world, it is taken for a fault of that
    "exits with 0": {6},
    "ends with 0": {0},
    "asked": {143, -signal.SIGTERM},
}
"""How the process ends that is at fault; the other with 6, or 143 where both were told."""


def lose(program: Program, number: int, folder: Path) -> Verdict:
    """One process is lost at a random time, by turns either; then the same command is given."""
    fault, rank = [*CODES][number % len(CODES)], number // len(CODES) % 2
    share = Random(f"{program.name} {number}").uniform(0.1, 0.95)
    for attempt in count():
        place = folder / str(attempt)
        place.mkdir()
        run_dir = place / "run"
        at = share * 0.8**attempt * two(program)[1][rank]
        plans = [partial(_prepare, place), partial(_prepare, place)]
        if fault in PLANTED:
            plans[rank] = partial(_prepare, place, fault, at)
        processes = start_two(program, run_dir, plans)
        seconds = _struck(processes[rank], processes[1 - rank], fault, at, place)
        codes, told = [process.exitcode for process in processes], said(run_dir, 1 - rank)
        if (place / STRUCK).exists():
            break
        if codes != [0, 0]:
            return bad("fails by itself", f"{codes} {told[-400:]}")
    if seconds > WITHIN:
        return bad("slow", f"{seconds:.0f} s: {codes} {told[-300:]}")
    if wrong := wrong_with(fault, rank, codes, run_dir, _have_met(place)):
        return bad(wrong, f"{codes} {told[-400:]}")
    before = done(run_dir)
    found = kept(before, run_dir, both_end(program, run_dir, stopped=fault == "asked"))
    return replace(found, ending=f"exit {codes[1 - rank]}, {'then ' * found.ok}{found.ending}")


def _struck(lost: BaseProcess, left: BaseProcess, fault: str, at: float, folder: Path) -> float:
    """Does it, unless both are done, and waits until both have ended; the seconds that this took.

    A process that has not met the other yet can only be told by the launcher.
    """
    if fault not in SENT:
        lost.join(PATIENCE)
    elif wait_until(lost, at):
        (folder / STRUCK).touch()
        os.kill(lost.pid, SENT[fault])
    began = time.monotonic()
    if fault == "stopped":
        left.join(WITHIN)
        if left.is_alive() and not _have_met(folder):
            began = time.monotonic()  # it was only slow to begin
        if lost.is_alive():
            os.kill(lost.pid, signal.SIGCONT)  # a launcher would kill it
    elif not _have_met(folder) and left.is_alive():
        lost.join(WITHIN)
        os.kill(left.pid, signal.SIGTERM)
    left.join(PATIENCE)
    lost.join(PATIENCE)
    seconds = time.monotonic() - began
    if fault in PLANTED and (folder / STRUCK).exists():
        seconds = time.time() - (folder / STRUCK).stat().st_mtime
    for process in (lost, left):
        kill(process)
    return seconds


def _have_met(folder: Path) -> bool:
    return all((folder / f"met-{rank}").exists() for rank in range(2))


def wrong_with(fault: str, rank: int, codes: list[int], run_dir: Path, met: bool) -> str | None:
    """What is wrong with how two processes ended."""
    told, code = said(run_dir, 1 - rank), codes[1 - rank]
    if "Traceback" in told or (fault != "raises" and "Traceback" in said(run_dir, rank)):
        return "stack trace"
    is_done = (run_dir / "summary.json").exists()
    # A library may catch what is raised in it, and go on in another way.
    was_done = fault in ("asked", "raises") and is_done and codes[rank] == 0
    if codes[rank] not in CODES[fault] and not was_done:
        return "other exit codes"
    if code == 0:
        return None if is_done else "claims to have ended"
    if code == 143 and fault == "asked":  # both have saved
        return None
    if code not in ((6, 143) if met else (6, 143, -signal.SIGTERM)):
        return "other exit codes"
    is_named = re.search(rf"(error: |since )rank {rank} ", told)
    return None if is_named or not met else "rank not named"


def both_end(program: Program, run_dir: Path, stopped: bool) -> Verdict:
    """Two processes of a run, to its end."""
    codes = [ended(process) for process in start_two(program, run_dir)]
    if codes != [0, 0]:
        return bad(f"exit {codes}", said(run_dir)[-400:])
    places = differing(digest(run_dir), two(program)[0], stopped)
    return bad("not equal", places) if places else good("equal")


@cache
def two(program: Program) -> tuple[Digest, list[float]]:
    """What two processes that nothing disturbs end with, and the CPU seconds of each."""
    run_dir = program.shared / "two" / program.name / "run"
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    processes = start_two(program, run_dir)
    seconds = to_end(processes)
    if any(ended(process) for process in processes):
        raise RuntimeError(f"{program.name}: {said(run_dir)[-400:]}")
    return whole(digest(run_dir)), seconds


def start_two(
    program: Program, run_dir: Path, plans: list[Callable[[], None] | None] | None = None
) -> list[BaseProcess]:
    """Two processes of a program that work together (gloo)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        program.start(run_dir, before=plan, RANK=rank, LOCAL_RANK=rank, **group)
        for rank, plan in zip("01", plans or [None, None], strict=True)
    ]


def _prepare(folder: Path, fault: str | None = None, cpu_seconds: float = 0.0) -> None:
    """Notes when this process has met the other, and has a fault happen after so much work."""
    watch = Peers._watch

    def noted(peers: Peers) -> None:
        (folder / f"met-{os.environ['RANK']}").touch()
        watch(peers)

    Peers._watch = noted
    if fault is not None:

        def plant(number: int, frame: Any) -> None:
            if not nothing_under_way():  # a process does what a stage is for
                (folder / STRUCK).touch()
                PLANTED[fault](number, frame)
            else:  # no code of others runs before
                signal.setitimer(signal.ITIMER_PROF, 0.01)

        signal.signal(signal.SIGPROF, plant)
        signal.setitimer(signal.ITIMER_PROF, max(cpu_seconds, 0.01))
