"""Kills programs at any time and before any file operation; the same command must make it good."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from fault_matrix.cases import Case, Verdict, in_turns
from fault_matrix.done import done, kept
from fault_matrix.operations import Operations, recorded
from fault_matrix.programs import (
    PROGRAMS,
    Program,
    duration,
    ended,
    in_the_middle,
    kill,
    log_of,
    prepare,
    start,
    verdict,
    wait_until,
    worked,
)
from lactchain.config import dump

TITLE = "SIGKILL at random times, and before each kind of file operation; and of whole commands"
KILLS, COMMANDS = 56, 20
"""Of each program: as many at operations and as many at random times; and of whole commands."""
ANOTHER = 0.3
"""How likely the next attempt is killed, too."""
FEWER = 5
"""Operations that a run may do less than another one that nothing disturbs."""
SYNCED = ("fsync", "torch.save", "safetensors")


def cases(shared: Path, scale: float) -> Iterator[Case]:
    """The programs in turns, so that a part of the cases is one of every program."""
    prepare(shared)
    count = max(1, round(KILLS * scale))
    commands = round(COMMANDS * scale)
    kinds = [(kind, p, count) for kind in (at_operations, at_random) for p in PROGRAMS.values()]
    yield from in_turns(*(kind(program, shared, number) for kind, program, number in kinds))
    yield from in_turns(*(whole(program, shared, commands) for program in PROGRAMS.values()))


def at_operations(program: Program, shared: Path, count: int) -> Iterator[Case]:
    """Kills before file operations of every kind, and in the middle of each kind of writing."""
    for number, torn in chosen(operations(program, shared), count):
        name = f"{program.name}-operation-{number}{'-torn' * torn}"
        yield Case(2, program.name, name, partial(killed_at, program, shared, number, torn))


def at_random(program: Program, shared: Path, count: int) -> Iterator[Case]:
    """Kills after any time of work."""
    for number in range(count):
        name = f"{program.name}-random-{number}"
        yield Case(1, program.name, name, partial(killed_in_fork, program, shared, name))


def whole(program: Program, shared: Path, count: int) -> Iterator[Case]:
    """Kills commands that begin with an interpreter, as people give them."""
    for number in range(count):
        name = f"{program.name}-command-{number}"
        yield Case(1, program.name, name, partial(killed_command, program, shared, name))


@cache
def operations(program: Program, shared: Path) -> list[str]:
    """The kind of each file operation of a run that nothing disturbs."""
    run_dir = shared / "operations" / program.name / "run"
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    record = run_dir.with_suffix(".operations")
    before = Operations(str(run_dir), record=str(record))
    ended(start(program, program.config(shared, run_dir), before=before))
    return recorded(record)


def chosen(kinds: list[str], count: int) -> list[tuple[int, bool]]:
    """Numbers of operations, from 1 on, and whether they are torn: all kinds, then all over.

    Less than all kinds if `count` is less than a full one.
    """
    last = {kind: number for number, kind in enumerate(kinds, start=1)}
    each = [(number, False) for number in last.values()]
    each += [(number, True) for kind, number in last.items() if kind.startswith(SYNCED)]
    if count < KILLS:
        return spread(each, count)
    others = [(number, False) for number in range(1, len(kinds) + 1) if (number, False) not in each]
    return each + spread(others, count - len(each))


def spread(items: list, count: int) -> list:
    """So many of the items, at equal distances."""
    count = max(0, min(count, len(items)))
    return [items[i * len(items) // count] for i in range(count)]


def killed_at(program: Program, shared: Path, number: int, torn: bool, folder: Path) -> Verdict:
    """Killed before an operation, and perhaps again.

    A run may do a few operations less than the one in which they were counted.
    """
    run_dir = folder / "run"
    for earlier in range(FEWER):
        before = Operations(str(run_dir), number - earlier, torn)
        code = ended(start(program, program.config(shared, run_dir), before=before))
        if code != 0:
            break
        shutil.rmtree(run_dir)
    if code != -signal.SIGKILL:
        return Verdict(False, "not killed", f"exit code {code}")
    return to_its_end(program, shared, run_dir, random.Random(f"{program.name} {number} {torn}"))


def killed_in_fork(program: Program, shared: Path, name: str, folder: Path) -> Verdict:
    """Killed after a random time of work, and perhaps again."""
    run_dir, chance = folder / "run", random.Random(name)
    code = killed_in_the_middle(program, shared, run_dir, chance.uniform(0, 0.97))
    if code != -signal.SIGKILL:
        return verdict(program, shared, run_dir, code)
    return to_its_end(program, shared, run_dir, chance)


def killed_in_the_middle(program: Program, shared: Path, run_dir: Path, share: float) -> int | None:
    """Kills a run after a share of its time; its exit code."""
    while True:
        process = in_the_middle(program, shared, run_dir, share)
        kill(process)
        if process.exitcode != 0:
            return process.exitcode
        shutil.rmtree(run_dir)  # it has just ended
        share *= 0.8


def to_its_end(program: Program, shared: Path, run_dir: Path, chance: random.Random) -> Verdict:
    """The same command again, and again, until it is not killed; what it came to."""
    while True:
        before, process = done(run_dir), start(program, program.config(shared, run_dir))
        if chance.random() >= ANOTHER:
            return kept(before, run_dir, verdict(program, shared, run_dir, ended(process)))
        wait_until(process, chance.uniform(0, 1) * duration(program, shared))
        kill(process)
        if process.exitcode not in (0, -signal.SIGKILL):
            return verdict(program, shared, run_dir, process.exitcode)
        if not (found := kept(before, run_dir, Verdict(True, "killed again"))).ok:
            return found


@dataclass
class Command:
    """A command with an interpreter of its own; it has what `wait_until` and `kill` ask for."""

    popen: subprocess.Popen

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.popen.pid

    @property
    def exitcode(self) -> int | None:
        """None while it runs."""
        return self.popen.poll()

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.popen.poll() is None

    def join(self, timeout: float | None = None) -> None:
        """Waits for its end, or for so many seconds."""
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout)


def command(program: Program, shared: Path, run_dir: Path) -> Command:
    """Gives a whole command."""
    file = run_dir.with_suffix(".yaml")
    file.write_text(dump(program.config(shared, run_dir)))
    root = Path(__file__).parent.parent.parent
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    with open(log_of(run_dir), "a") as log:
        return Command(
            subprocess.Popen(
                [sys.executable, str(root / f"scripts/{program.script}.py"), "--config", str(file)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
            )
        )


@cache
def command_seconds(program: Program, shared: Path) -> float:
    """CPU seconds of a whole command that nothing disturbs, from when it has its folder on."""
    run_dir = shared / "commands" / program.name / "run"
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    process = command(program, shared, run_dir)
    seconds = begun = until_locked(process, run_dir)
    while process.is_alive():
        seconds = worked(process.pid) or seconds
        time.sleep(0.01)
    return seconds - begun


def until_locked(process: Command, run_dir: Path) -> float:
    """Waits until a command has its folder; how long it has worked by then."""
    while process.is_alive() and not (run_dir / "lock").exists():
        time.sleep(0.002)
    return worked(process.pid)


def killed_command(program: Program, shared: Path, name: str, folder: Path) -> Verdict:
    """A whole command, killed at a random time after it has its folder, and given again."""
    run_dir, share = folder / "run", random.Random(name).uniform(0, 0.97)
    process = command(program, shared, run_dir)
    begun = until_locked(process, run_dir)
    while not wait_until(process, begun + share * command_seconds(program, shared)):
        if process.exitcode != 0:
            return verdict(program, shared, run_dir, process.exitcode)
        shutil.rmtree(run_dir)
        share *= 0.8
        process = command(program, shared, run_dir)
        begun = until_locked(process, run_dir)
    kill(process)
    before, again = done(run_dir), command(program, shared, run_dir)
    return kept(before, run_dir, verdict(program, shared, run_dir, ended(again)))
