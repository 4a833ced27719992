"""Signals at any time; programs must save, end as they were asked to, and go on exactly."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from fault_matrix.cases import Verdict, bad, good
from fault_matrix.digests import Done, anew, done
from fault_matrix.processes import PATIENCE, ended, kill, wait_until, worked
from fault_matrix.programs import Program, in_the_middle, undisturbed
from lactchain.runs.progress import Step
from lactchain.runs.run import Run
from lactchain.storage.files import append_json_lines, read_json_lines

WITHIN = 10.0
"""Seconds until a process has ended, without those that it waited for a processor."""
LATE, SAVING = 0.2, 0.25
"""A run that was asked to stop may end if it does no more than this share of its work, or so many
CPU seconds, in which it writes its results, which is not cut."""
ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""By whoever ends it, a person, a terminal that closes, and a scheduler beforehand."""


def stopped(program: Program, number: int, folder: Path) -> Verdict:
    """Stopped once or twice, and then run to its end."""
    asked, run_dir = ASKED[number % len(ASKED)], folder / "run"
    chance, notes = Random(f"{program.name} {number}"), Notes(str(folder / "notes"))
    shares = [chance.uniform(0.05, 0.97) for _ in range(chance.choice((1, 1, 2)))]

    def processes() -> Iterator[BaseProcess]:
        yield in_the_middle(program, run_dir, shares[0], before=notes)
        for share in shares[1:]:
            process = program.start(run_dir, before=notes)
            wait_until(process, share * undisturbed(program).seconds)
            yield process

    return stops(program, run_dir, asked, notes, processes())


def stops(
    program: Program,
    run_dir: Path,
    asked: signal.Signals,
    notes: "Notes",
    processes: Iterable[BaseProcess],
) -> Verdict:
    """Asks processes of a run to stop, one after the other, and then lets it go to its end."""
    reached: dict[str, float] = {}
    codes = []
    for process in processes:
        before, wrong = ask_to_stop(program, run_dir, process, asked, notes)
        if wrong := wrong or begun_before(notes, reached) or anew(before, run_dir):
            return replace(wrong, detail=f"exit {process.exitcode}: {wrong.detail}")
        reached |= notes.furthest()
        codes.append(str(process.exitcode))
    left, code = done(run_dir), ended(program.start(run_dir, before=notes))
    found = program.verdict(run_dir, code, stopped=True)
    if wrong := found.ok and (begun_before(notes, reached) or anew(left, run_dir)):
        return wrong
    return good(f"exit {' and '.join(codes)}, then equal") if found.ok else found


def ask_to_stop(
    program: Program, run_dir: Path, process: BaseProcess, asked: signal.Signals, notes: "Notes"
) -> tuple[Done, Verdict | None]:
    """Asks a process to stop; what it had done by then, and what is bad about how it ended."""
    if asked == signal.SIGINT:  # whoever starts the processes has them ignore it at first
        while process.is_alive() and not _hears(asked, process.pid):
            time.sleep(0.001)
    asked_at, work = None, worked(process.pid)
    try:
        os.kill(process.pid, signal.SIGSTOP)  # so that what it has done is what it had done
        before = done(run_dir)
        os.kill(process.pid, asked)
        asked_at = time.monotonic()
        os.kill(process.pid, signal.SIGCONT)
        asked_at = time.monotonic()
    except ProcessLookupError:  # it ended at one of these lines
        before = done(run_dir)
    work, seconds = until_end(process, work)
    code, lock = process.exitcode, run_dir / "lock"
    has_begun = lock.is_file() and lock.read_text().strip() == str(process.pid)
    if seconds > WITHIN:
        return before, bad("slow", f"{seconds:.1f} s after {asked.name}")
    if code == 0 and asked_at is not None:
        most = max(LATE * undisturbed(program).seconds, SAVING)
        later = [note.place for note in notes.read() if note.time > asked_at]
        is_soon = work <= most and len(later) <= 1 and (run_dir / "summary.json").is_file()
        return before, None if is_soon else bad("deaf", f"went on for {work:.2f} s: {later}")
    if code == -asked and has_begun:
        return before, bad(f"exit {code}", "though it had begun, and could have saved")
    # A process that has not begun to listen is ended by the signal itself, or Ctrl-C by Python.
    early = {-asked, 1} if asked == signal.SIGINT and not has_begun else {-asked}
    return before, None if code in {0, 128 + asked, *early} else program.verdict(run_dir, code)


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


# --- how far a process was, as it told on its live line -------------------------------------------


class Note(NamedTuple):
    """How far the innermost run was with a step, whether from the start, and when."""

    place: str
    far: float
    is_resumed: bool
    time: float


@dataclass(frozen=True)
class Notes:
    """Has a process note in a file what it tells of its progress; called before the script."""

    file: str

    def __call__(self) -> None:
        """From now on; what another process has noted goes."""
        Path(self.file).unlink(missing_ok=True)
        runs: list[Run] = []

        def note(is_resumed: bool, step: Step, far: float) -> None:
            place = f"{runs[-1].directory if runs else ''} {step.label}"
            told = Note(place, far, is_resumed, time.monotonic())
            append_json_lines(self.file, [told._asdict()])

        _after(Run, "__init__", lambda run, *_: runs.append(run))
        _after(Run, "close", lambda run: runs.remove(run) if run in runs else None)
        _after(Step, "at", partial(note, False))
        _after(Step, "resumed", partial(note, True))

    def read(self) -> list[Note]:
        """What was noted."""
        return [Note(**note) for note in read_json_lines(self.file)]

    def furthest(self) -> dict[str, float]:
        """How far a process was at each place, when it was there for the last time."""
        found: dict[str, float] = {}
        for note in self.read():
            far = 0.0 if note.is_resumed else found.get(note.place, 0.0)
            found[note.place] = max(far, note.far)
        return found


def _after(kind: type, name: str, hear: Callable[..., None]) -> None:
    """Has a method of a class call something when it has done its work."""
    original = getattr(kind, name)

    @wraps(original)
    def heard(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        hear(*args, **kwargs)
        return result

    setattr(kind, name, heard)


def begun_before(notes: Notes, reached: dict[str, float]) -> Verdict | None:
    """Whether a process began behind what another had reached, and could have gone on from."""
    first = {note.place: note.far for note in reversed(notes.read()) if note.is_resumed}
    again = [
        f"{place}: from {far:g} instead of {reached[place]:g}"
        for place, far in first.items()
        if far < reached.get(place, 0)
    ]
    return bad("begun anew", again) if again else None
