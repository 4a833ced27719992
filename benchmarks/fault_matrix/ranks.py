"""Two processes that work together, one of which is lost; and slow ones, which are waited for.

Both end within 20 seconds, the one that is left with a line that names the other, and the same
command ends as if nothing had been. A run that was over before the fault came begins anew.
"""

import functools
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from fault_matrix.cases import Case, Verdict
from fault_matrix.digests import Digest, differing, whole
from fault_matrix.done import begun_anew, done, lost
from fault_matrix.programs import PROGRAMS, Program, kill, log_of, prepare, start, worked
from lactchain.peers import Peers
from lactchain.stages.running import run_stage

TITLE = "two processes, one of which is lost"
NAMES = ("train_critic", "train_simpo", "collect_rollouts", "make_preferences", "train_bc")
ROUNDS = 12
WITHIN = 20.0
PATIENCE = 300.0
STRUCK = "struck"
"""File that says when the fault came."""
SLEEP = 0.02
"""Seconds that a slow disk takes for each file, and a slow process for each of its calls."""


def _raise(number: int, frame: Any) -> None:
    raise RuntimeError("a planted error")


def _exit(number: int, frame: Any) -> None:
    sys.exit(0)


def _end(number: int, frame: Any) -> None:
    os._exit(0)


PLANTED = {"raises": _raise, "exits with 0": _exit, "ends with 0": _end}
SENT = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "asked": signal.SIGTERM}
FAULTS = ("killed", "stopped", "raises", "exits with 0", "ends with 0", "asked")
CODES = {
    "killed": {-signal.SIGKILL},
    "stopped": {6, 0},  # once it goes on
    "raises": {1, 3, 5, 6},  # in the midst of a file or a world, it is taken for a fault of that
    "exits with 0": {6},
    "ends with 0": {0},
    "asked": {143, -signal.SIGTERM},
}
"""How the process ends that is at fault; the other with 6, or 143 where both were told."""


def cases(shared: Path, scale: float) -> Iterator[Case]:
    """Each program with each fault, by turns in both processes; and what is only slow."""
    prepare(shared)
    for number in range(max(1, round(ROUNDS * scale))):
        fault, rank = FAULTS[number % len(FAULTS)], number // len(FAULTS) % 2
        for name in filter(PROGRAMS.__contains__, NAMES):
            strike = partial(lose, PROGRAMS[name], shared, fault, rank, f"{name} {number}")
            yield Case(12, name, f"{name}-{fault}-{number}", strike)
    for slow in SLOW:
        for name in filter(PROGRAMS.__contains__, NAMES[: max(1, round(len(NAMES) * scale))]):
            yield Case(12, name, f"{name}-{slow}", partial(wait, PROGRAMS[name], shared, slow))


def lose(program: Program, shared: Path, fault: str, rank: int, seed: str, folder: Path) -> Verdict:
    """One process is lost at a random time; then the same command is given again."""
    share = Random(seed).uniform(0.1, 0.95)
    for attempt in count():
        place = folder / str(attempt)
        place.mkdir()
        run_dir = place / "run"
        config = program.config(shared, run_dir)
        at = share * 0.8**attempt * finished(program, shared)[1][rank]
        plans = [partial(_prepare, place), partial(_prepare, place)]
        if fault in PLANTED:
            plans[rank] = partial(_prepare, place, fault, at)
        processes = start_two(program, config, plans)
        seconds = _struck(processes[rank], processes[1 - rank], fault, at, place)
        codes, said = [process.exitcode for process in processes], _said(run_dir, 1 - rank)
        if (place / STRUCK).exists():
            break
        if codes != [0, 0]:
            return Verdict(False, "fails by itself", f"{codes} {said[-400:]}")
    if seconds > WITHIN:
        return Verdict(False, "slow", f"{seconds:.0f} s: {codes} {said[-300:]}")
    if wrong := _wrong(fault, rank, codes, run_dir, _have_met(place)):
        return Verdict(False, wrong, f"{codes} {said[-400:]}")
    found = _again(program, shared, config, fault == "asked")
    return replace(found, ending=f"exit {codes[1 - rank]}, {found.ending}")


def _struck(lost: BaseProcess, left: BaseProcess, fault: str, at: float, folder: Path) -> float:
    """Does it, unless both are done, and waits until both have ended; the seconds that this took.

    A process that has not met the other yet can only be told by the launcher.
    """
    if fault in SENT:
        while lost.is_alive() and worked(lost.pid) < at:
            time.sleep(0.002)
        if lost.is_alive():
            _note_fault(folder)
            os.kill(lost.pid, SENT[fault])
    else:
        lost.join(PATIENCE)
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


def _note_fault(folder: Path) -> None:
    """Notes that the fault has come."""
    (folder / STRUCK).touch()


def _have_met(folder: Path) -> bool:
    return all((folder / f"met-{rank}").exists() for rank in range(2))


def _wrong(fault: str, rank: int, codes: list[int], run_dir: Path, met: bool) -> str | None:
    """What is wrong with how two processes ended."""
    said, code = _said(run_dir, 1 - rank), codes[1 - rank]
    if "Traceback" in said or (fault != "raises" and "Traceback" in _said(run_dir, rank)):
        return "stack trace"
    # A library may catch what is raised in it, and go on in another way.
    was_done = fault in ("asked", "raises") and (run_dir / "summary.json").exists()
    if codes[rank] not in CODES[fault] and not (was_done and codes[rank] == 0):
        return "other exit codes"
    if code == 143 and fault == "asked":  # both have saved
        return None
    if code == 0:
        return None if (run_dir / "summary.json").exists() else "claims to have ended"
    if not met:
        return None if code in (6, 143, -signal.SIGTERM) else "other exit codes"
    if code not in (6, 143):
        return "other exit codes"
    return None if re.search(rf"(error: |since )rank {rank} ", said) else "rank not named"


def _again(program: Program, shared: Path, config: Any, stopped: bool) -> Verdict:
    """The same command, to its end."""
    run_dir = Path(config.run.run_dir)
    before, processes = done(run_dir), start_two(program, config)
    codes = [_end_of(process) for process in processes]
    if codes != [0, 0]:
        return Verdict(False, f"exit {codes}", _said(run_dir, 0)[-400:])
    if places := differing(program.digest(run_dir), finished(program, shared)[0], stopped):
        return Verdict(False, "not equal", ", ".join(places)[:500])
    if again := lost(before, done(run_dir)):
        return begun_anew(again)
    return Verdict(True, "then equal")


def _end_of(process: BaseProcess) -> int | None:
    process.join(PATIENCE)
    kill(process)
    return process.exitcode


@functools.cache
def finished(program: Program, shared: Path) -> tuple[Digest, list[float]]:
    """What two processes that nothing disturbs end with, and the CPU seconds of each."""
    run_dir = shared / "two" / program.name / "run"
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    processes = start_two(program, program.config(shared, run_dir))
    seconds = [0.0, 0.0]
    while any(process.is_alive() for process in processes):
        seconds = [worked(p.pid) or s for p, s in zip(processes, seconds, strict=True)]
        time.sleep(0.002)
    if [_end_of(process) for process in processes] != [0, 0]:
        raise RuntimeError(f"{program.name}: {_said(run_dir, 0)[-400:]}")
    return whole(program.digest(run_dir)), seconds


def start_two(
    program: Program, config: Any, before: list[Callable[[], None] | None] | None = None
) -> list[BaseProcess]:
    """Two processes of a program that work together (gloo)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        start(program, config, before=first, RANK=rank, LOCAL_RANK=rank, **group)
        for rank, first in zip("01", before or [None, None], strict=True)
    ]


def _prepare(folder: Path, fault: str | None = None, cpu_seconds: float = 0.0) -> None:
    """Notes when this process has met the other, and has a fault happen after so much work."""
    watch = Peers.watch

    def noted(peers: Peers) -> None:
        (folder / f"met-{os.environ['RANK']}").touch()
        watch(peers)

    Peers.watch = noted
    if fault is not None:

        def plant(number: int, frame: Any) -> None:
            if _is_at_work(frame):
                _note_fault(folder)
                PLANTED[fault](number, frame)
            else:  # no code of others runs before
                signal.setitimer(signal.ITIMER_PROF, 0.01)

        signal.signal(signal.SIGPROF, plant)
        signal.setitimer(signal.ITIMER_PROF, max(cpu_seconds, 0.01))


def _is_at_work(frame: FrameType | None) -> bool:
    """Whether a process does what a stage is for."""
    while frame is not None and frame.f_code is not run_stage.__code__:
        frame = frame.f_back
    return frame is not None


def _said(run_dir: Path, rank: int) -> str:
    log = log_of(run_dir, rank)
    return log.read_text(errors="replace") if log.exists() else ""


# --- what is slow ----------------------------------------------------------------------------


def wait(program: Program, shared: Path, slow: str, folder: Path) -> Verdict:
    """Two processes of which one is slow, or whose disk is: they go on to the same end."""
    config = program.config(shared, folder / "run")
    before = [SLOW[slow], SLOW[slow] if slow == "slow disk" else None]
    codes = [_end_of(process) for process in start_two(program, config, before)]
    if codes != [0, 0]:
        return Verdict(False, f"exit {codes}", _said(folder / "run", 0)[-400:])
    places = differing(program.digest(folder / "run"), finished(program, shared)[0])
    return Verdict(not places, "not equal" if places else "equal", ", ".join(places)[:500])


def _slow_disk() -> None:
    """Every file that is opened for writing, renamed or synced takes its time."""

    def audit(event: str, arguments: tuple) -> None:
        writes = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        if writes or event in ("os.rename", "os.remove", "os.mkdir"):
            time.sleep(SLEEP)

    sys.addaudithook(audit)
    sync = os.fsync
    os.fsync = lambda file: (time.sleep(SLEEP), sync(file))[1]


def _slow_process() -> None:
    """Every 50 ms of work, it waits for as long."""

    def doze(number: int, frame: Any) -> None:
        time.sleep(0.05)

    signal.signal(signal.SIGPROF, doze)
    signal.setitimer(signal.ITIMER_PROF, 0.05, 0.05)


SLOW = {"slow disk": _slow_disk, "slow process": _slow_process}
