"""Asks programs to stop at any time; they must save, end with 130 or 143, and go on exactly."""

import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

from fault_matrix.cases import Case, Verdict, in_turns
from fault_matrix.done import (
    Done,
    Note,
    Notes,
    Place,
    begun_anew,
    begun_before,
    done,
    furthest,
    lost,
)
from fault_matrix.programs import (
    PATIENCE,
    PROGRAMS,
    Program,
    duration,
    ended,
    in_the_middle,
    kill,
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
"""Seconds until a process has ended, without those that it waited for a processor."""
LATE = 0.2
"""Which share of its whole work a run may still do that ends though it was asked to stop."""
SAVING = 0.1
"""CPU seconds that it may do so in any case: it writes its results, which is not cut."""
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


@dataclass(frozen=True)
class Stop:
    """How a process ended that was asked to stop.

    Attributes:
        code: its exit code.
        asked_at: by `time.monotonic`; None where it had ended before.
        worked: for how many seconds of CPU time it still worked.
        seconds: how long that took, without waiting for a processor.
        before: what it had done when it was asked.
        began: whether it had begun its run: it held the folder's lock, and could have saved.
        notes: what it told of its progress.
    """

    code: int | None
    asked_at: float | None
    worked: float
    seconds: float
    before: Done
    began: bool
    notes: list[Note]

    def __str__(self) -> str:
        """For a detail."""
        after = f"{self.seconds:.2f} s, {self.worked:.2f} s of work"
        return f"exit {self.code} after {after}, had {self.before}"


def stopped(
    program: Program, shared: Path, asked: signal.Signals, name: str, folder: Path
) -> Verdict:
    """Stopped once or twice, and then run to its end."""
    run_dir, chance = folder / "run", random.Random(name)
    notes = Notes(f"{run_dir}.notes")
    shares = [chance.uniform(0.05, 0.97) for _ in range(chance.choice((1, 1, 2)))]

    def processes() -> Iterator[BaseProcess]:
        yield in_the_middle(program, shared, run_dir, shares[0], before=notes)
        for share in shares[1:]:
            process = start(program, program.config(shared, run_dir), before=notes)
            wait_until(process, share * duration(program, shared))
            yield process

    return stops(program, shared, run_dir, asked, notes, processes())


def stops(
    program: Program,
    shared: Path,
    run_dir: Path,
    asked: signal.Signals,
    notes: Notes,
    processes: Iterable[BaseProcess],
) -> Verdict:
    """Asks processes of a run to stop, one after the other, and then lets it go to its end."""
    reached: dict[Place, float] = {}
    told: list[Stop] = []
    for process in processes:
        stop = ask_to_stop(run_dir, process, asked, notes)
        told.append(stop)
        again = begun_before(stop.notes, reached) or lost(stop.before, done(run_dir))
        bad = fault_of(stop, asked, program, shared, run_dir)
        if bad is not None or again:
            bad = bad or begun_anew(again)
            return replace(bad, detail=f"{bad.detail}; {stop}")
        reached |= furthest(stop.notes)
    left = done(run_dir)
    code = ended(start(program, program.config(shared, run_dir), before=notes))
    found = verdict(program, shared, run_dir, code, stopped=True)
    again = begun_before(list(notes.read()), reached) or lost(left, done(run_dir))
    if found.ok:
        codes = " and ".join(f"{stop.code}" for stop in told)
        found = begun_anew(again) if again else Verdict(True, f"exit {codes}, then equal")
    return replace(found, detail="; ".join(filter(None, [found.detail, *map(str, told)])))


def ask_to_stop(run_dir: Path, process: BaseProcess, asked: signal.Signals, notes: Notes) -> Stop:
    """Asks a process to stop, unless it has ended; waits for that."""
    if asked == signal.SIGINT:  # whoever starts the processes has them ignore it at first
        while process.is_alive() and not _hears(asked, process.pid):
            time.sleep(0.001)
    asked_at, worked_before = None, worked(process.pid)
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGSTOP)  # so that what it has done is what it had done
        before = done(run_dir)
        os.kill(process.pid, asked)
        os.kill(process.pid, signal.SIGCONT)
        asked_at = time.monotonic()
    if asked_at is None:
        before = done(run_dir)
    work, seconds = until_end(process, worked_before)
    lock = run_dir / "lock"
    began = lock.is_file() and lock.read_text().strip() == str(process.pid)
    return Stop(process.exitcode, asked_at, work, seconds, before, began, list(notes.read()))


def _hears(asked: signal.Signals, pid: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    with suppress(OSError):
        caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
        return bool(int(caught[1], 16) >> (asked - 1) & 1)
    return False


def fault_of(
    stop: Stop, asked: signal.Signals, program: Program, shared: Path, run_dir: Path
) -> Verdict | None:
    """What is bad about how a process ended, if anything."""
    if stop.code is None or stop.seconds > WITHIN:
        return Verdict(False, "slow", f"after {asked.name}")
    if stop.code == 0 and stop.asked_at is not None:
        return _deaf(stop, program, shared, run_dir)
    if stop.code == -signal.SIGTERM and stop.began:
        return Verdict(False, f"exit {stop.code}", "though it had begun")
    if stop.code not in (0, *AT_ONCE[asked]):
        return verdict(program, shared, run_dir, stop.code)
    return None


def _deaf(stop: Stop, program: Program, shared: Path, run_dir: Path) -> Verdict | None:
    """A process may end its run though it was asked to stop, if that was about to end."""
    later = Counter(note.place for note in stop.notes if note.time > stop.asked_at)
    most = max(LATE * duration(program, shared), SAVING)
    soon = stop.worked <= most and later.total() <= 1
    if soon and (run_dir / "summary.json").is_file():
        return None
    told = ", ".join(f"{count} x {place[-1]}" for place, count in later.items())
    return Verdict(False, "deaf", f"went on for {stop.worked:.2f} s: {told}")


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
