"""Signals at any time; programs must save, end as they were asked to, and go on exactly."""

import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random

from fault_matrix.cases import Verdict, bad, good
from fault_matrix.digests import Done, done, kept
from fault_matrix.processes import PATIENCE, ended, kill, wait_until, worked
from fault_matrix.programs import Program

WITHIN = 10.0
"""Seconds until a process has ended, without those that it waited for a processor."""
LATE, SAVING = 0.2, 0.25
"""A run that was asked to stop may end if it does no more than this share of its work, or so many
CPU seconds, in which it writes its results, which is not cut."""
ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""By whoever ends it, a person, a terminal that closes, and a scheduler beforehand."""


def stopped(program: Program, number: int, folder: Path) -> Verdict:
    """Stopped once or twice, and then run to its end."""
    asked, run_dir, codes = ASKED[number % len(ASKED)], folder / "run", []
    chance = Random(f"{program.name} {number}")
    shares = [chance.uniform(0.05, 0.97) for _ in range(chance.choice((1, 1, 2)))]
    for share in shares:
        if codes:
            process = program.start(run_dir)
            wait_until(process, share * program.undisturbed().seconds)
        else:
            process = program.in_the_middle(run_dir, share)
        before, found = ask_to_stop(program, run_dir, process, asked)
        if not (found := kept(before, run_dir, found)).ok:
            return replace(found, detail=f"exit {process.exitcode}: {found.detail}")
        codes.append(str(process.exitcode))
    left, code = done(run_dir), ended(program.start(run_dir))
    found = kept(left, run_dir, program.verdict(run_dir, code, stopped=True))
    return good(f"exit {' and '.join(codes)}, then equal") if found.ok else found


def ask_to_stop(
    program: Program, run_dir: Path, process: BaseProcess, asked: signal.Signals
) -> tuple[Done, Verdict]:
    """Asks a process to stop; what it had done by then, and how it ended."""
    if asked == signal.SIGINT:  # whoever starts the processes has them ignore it at first
        while process.is_alive() and not _hears(asked, process.pid):
            time.sleep(0.001)
    is_asked, work = False, worked(process.pid)
    try:
        os.kill(process.pid, signal.SIGSTOP)  # so that what it has done is what it had done
        before = done(run_dir)
        os.kill(process.pid, asked)
        is_asked = True
        os.kill(process.pid, signal.SIGCONT)
    except ProcessLookupError:  # it ended at one of these lines
        before = done(run_dir)
    work, seconds = until_end(process, work)
    code, lock = process.exitcode, run_dir / "lock"
    has_begun = lock.is_file() and lock.read_text().strip() == str(process.pid)
    if seconds > WITHIN:
        return before, bad("slow", f"{seconds:.1f} s after {asked.name}")
    if code == 0 and is_asked:
        most = max(LATE * program.undisturbed().seconds, SAVING)
        is_soon = work <= most and (run_dir / "summary.json").is_file()
        return before, good("ended") if is_soon else bad("deaf", f"went on for {work:.2f} s")
    if code == -asked and has_begun:
        return before, bad(f"exit {code}", "though it had begun, and could have saved")
    # A process that has not begun to listen is ended by the signal itself, or Ctrl-C by Python.
    early = {-asked, 1} if asked == signal.SIGINT and not has_begun else {-asked}
    is_as_asked = code in {0, 128 + asked, *early}
    return before, good("stopped") if is_as_asked else program.verdict(run_dir, code)


def _hears(asked: signal.Signals, pid: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    with suppress(OSError):
        caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
        return bool(int(caught[1], 16) >> (asked - 1) & 1)
    return False


def until_end(process: BaseProcess, worked_before: float) -> tuple[float, float]:
    """How long a process still works, and lives, but for waiting for a processor.

    It is killed when that is far too long: one that sleeps, or waits for a lock, is slow as well.
    """
    work = seconds = waited = 0.0
    began, waited_before = time.monotonic(), waited_for_processor(process.pid)
    while process.is_alive() and seconds <= WITHIN and time.monotonic() < began + PATIENCE:
        work = max(work, worked(process.pid) - worked_before)
        waited = max(waited, waited_for_processor(process.pid) - waited_before)
        seconds = time.monotonic() - began - waited
        time.sleep(0.005)
    kill(process)
    return work, seconds


def waited_for_processor(pid: int) -> float:
    """Seconds that the threads of a process could have worked, had others not been at it."""
    seconds = 0.0
    with suppress(OSError, IndexError):  # it may end meanwhile
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            seconds += int(file.read_text().split()[1]) / 1e9
    return seconds
