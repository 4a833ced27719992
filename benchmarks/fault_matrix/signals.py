"""Asks programs to stop at any time; they must save, end with 130 or 143, and go on exactly."""

import os
import random
import signal
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

from fault_matrix.cases import Case, Verdict, in_turns
from fault_matrix.programs import (
    PROGRAMS,
    Program,
    duration,
    ended,
    in_the_middle,
    prepare,
    start,
    verdict,
    wait_until,
    worked,
)

TITLE = "SIGTERM and SIGINT at random times"
SIGNALS = 28
"""Of each program."""
WITHIN = 10.0
"""Seconds until a process has ended: of its own work, where others keep the machine busy."""
AT_ONCE = {signal.SIGTERM: (143, -signal.SIGTERM), signal.SIGINT: (130,)}
"""Exit codes; a process that has not begun to listen is ended by SIGTERM itself."""


def cases(shared: Path, scale: float) -> Iterator[Case]:
    """The programs in turns."""
    prepare(shared)
    count = max(1, round(SIGNALS * scale))
    yield from in_turns(*(of_program(p, shared, count) for p in PROGRAMS.values()))


def of_program(program: Program, shared: Path, count: int) -> Iterator[Case]:
    """Both signals by turns."""
    for number in range(count):
        asked = (signal.SIGTERM, signal.SIGINT)[number % 2]
        name = f"{program.name}-{asked.name}-{number}"
        yield Case(11, program.name, name, partial(stopped, program, shared, asked, name))


def stopped(
    program: Program, shared: Path, asked: signal.Signals, name: str, folder: Path
) -> Verdict:
    """Stopped once or twice, and then run to its end."""
    run_dir, chance = folder / "run", random.Random(name)
    process = in_the_middle(program, shared, run_dir, chance.uniform(0.05, 0.97))
    for again in chance.choice(((False,), (False,), (False, True))):
        if again:
            process = start(program, program.config(shared, run_dir))
            wait_until(process, chance.uniform(0.05, 0.97) * duration(program, shared))
        if bad := asked_to_stop(program, shared, run_dir, process, asked):
            return bad
    code = ended(start(program, program.config(shared, run_dir)))
    return verdict(program, shared, run_dir, code)


def asked_to_stop(
    program: Program, shared: Path, run_dir: Path, process: BaseProcess, asked: signal.Signals
) -> Verdict | None:
    """Asks a process to stop; what was bad about its end, if anything."""
    began, worked_before = time.monotonic(), worked(process.pid)
    if process.is_alive():
        os.kill(process.pid, asked)
    seconds = work_until_end(process, worked_before)
    if min(seconds, time.monotonic() - began) > WITHIN:
        return Verdict(False, "slow", f"{seconds:.1f} s of work after {asked.name}")
    if process.exitcode not in (0, *AT_ONCE[asked]):
        return verdict(program, shared, run_dir, process.exitcode)
    return None


def work_until_end(process: BaseProcess, worked_before: float) -> float:
    """How long a process still works after it was asked to stop."""
    seconds = 0.0
    while process.is_alive():
        seconds = max(seconds, worked(process.pid) - worked_before)
        time.sleep(0.005)
    process.join()
    return seconds
