"""SIGKILL at any time and before any file operation; the same command must make it good.

Operations are what can be seen in the folder of a run after a kill: a file opened for writing,
synced, renamed or removed, a folder made or removed, and the weights that native code writes.
"""

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

from fault_matrix.cases import Case, Verdict, bad, good, in_turns
from fault_matrix.done import done, kept
from fault_matrix.processes import ended, kill, wait_until
from fault_matrix.programs import Program, end_with, in_the_middle, prepared, undisturbed

KILLS, COMMANDS = 56, 20
"""Of each program: as many at operations and as many at random times; and of whole commands."""
ANOTHER = 0.3
"""How likely the next attempt is killed, too."""
FEWER = 5
"""Operations that a run may do less than another one that nothing disturbs."""
SYNCED = ("fsync", "torch.save", "safetensors")
EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def cases(shared: Path, scale: float, names: list[str] | None = None) -> Iterator[Case]:
    """The programs in turns, so that a part of the cases is one of every program."""
    programs, count = prepared(shared, names).values(), max(1, round(KILLS * scale))
    kinds = (lambda p: at_operations(p, count), lambda p: at_random(p, "random", count))
    yield from in_turns(*(kind(program) for kind in kinds for program in programs))
    commands = round(COMMANDS * scale)
    yield from in_turns(*(at_random(program, "command", commands) for program in programs))


def at_operations(program: Program, count: int) -> Iterator[Case]:
    """Kills before file operations of every kind, and in the middle of each kind of writing."""
    for number, torn in chosen(operations(program), count):
        name = f"{program.name}-operation-{number}{'-torn' * torn}"
        yield Case(2, program.name, name, partial(killed_at, program, number, torn))


def at_random(program: Program, kind: str, count: int) -> Iterator[Case]:
    """Kills after any time of work: of forks, or of commands with an interpreter of their own."""
    for number in range(count):
        name = f"{program.name}-{kind}-{number}"
        yield Case(1, program.name, name, partial(killed, program, name, kind == "command"))


@cache
def operations(program: Program) -> list[str]:
    """The kind of each file operation of a run that nothing disturbs.

    Operations on files of equal names but for their numbers, in folders of equal names, are of one
    kind.
    """
    run_dir = program.shared / "operations" / program.name / "run"
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    record = run_dir.with_suffix(".operations")
    end_with(
        0, program.start(run_dir, before=Operations(str(run_dir), record=str(record))), run_dir
    )
    found = (line.partition(" ") for line in record.read_text().splitlines())
    return [re.sub(r"\d+", "#", f"{e} {'/'.join(Path(path).parts[-2:])}") for e, _, path in found]


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


def killed_at(program: Program, number: int, torn: bool, folder: Path) -> Verdict:
    """Killed before an operation, and perhaps again.

    A run may do a few operations less than the one in which they were counted.
    """
    run_dir = folder / "run"
    for earlier in range(FEWER):
        before = Operations(str(run_dir), number - earlier, torn)
        if code := ended(program.start(run_dir, before=before)):
            break
        shutil.rmtree(run_dir)
    if code != -signal.SIGKILL:
        return bad("not killed", f"exit code {code}")
    return to_its_end(program, run_dir, Random(f"{program.name} {number} {torn}"))


def killed(program: Program, name: str, whole: bool, folder: Path) -> Verdict:
    """Killed after a random time of work, and perhaps again."""
    run_dir, chance = folder / "run", Random(name)
    process = in_the_middle(program, run_dir, chance.uniform(0, 0.97), whole=whole)
    kill(process)
    if process.exitcode == 0:  # it has just ended
        shutil.rmtree(run_dir)
        return killed(program, f"{name}, again", whole, folder)
    if process.exitcode != -signal.SIGKILL:
        return program.verdict(run_dir, process.exitcode)
    return to_its_end(program, run_dir, chance, whole)


def to_its_end(program: Program, run_dir: Path, chance: Random, whole: bool = False) -> Verdict:
    """The same command again, and again, until it is not killed; what it came to."""
    while True:
        before, process = done(run_dir), program.start(run_dir, whole=whole)
        if whole or chance.random() >= ANOTHER:
            return kept(before, run_dir, program.verdict(run_dir, ended(process)))
        wait_until(process, chance.uniform(0, 1) * undisturbed(program).seconds)
        kill(process)
        if process.exitcode not in (0, -signal.SIGKILL):
            return program.verdict(run_dir, process.exitcode)
        if not (found := kept(before, run_dir, good("killed again"))).ok:
            return found


@dataclass
class Operations:
    """Counts the operations of this process in a folder; to be called in it before the script.

    Attributes:
        folder: what lies elsewhere is not counted.
        kill_at: number of the operation before which the process ends, from 1 on; 0: none.
        torn: half of what was written since the last sync, or just now, is missing then.
        record: receives a line for each operation.
    """

    folder: str
    kill_at: int = 0
    torn: bool = False
    record: str | None = None

    def __call__(self) -> None:
        """Begins to count."""
        import torch
        from safetensors import torch as safetensors

        self.number = 0
        self.synced: dict[int, int] = {}  # what has reached the disk stays, by inode
        sync = os.fsync

        def fsync(descriptor: int) -> None:
            self._count("fsync", f"/proc/self/fd/{descriptor}")
            sync(descriptor)
            status = os.stat(descriptor)
            self.synced[status.st_ino] = status.st_size

        os.fsync = fsync
        torch.save = self._counted(torch.save, "torch.save")
        safetensors.serialize_file = self._counted(safetensors.serialize_file, "safetensors")
        sys.addaudithook(self._hear)

    def _counted(self, function: Callable[..., Any], event: str) -> Callable[..., Any]:
        def call(content: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
            result = function(content, path, *args, **kwargs)
            self._count(event, path)
            return result

        return call

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[2], int) and args[2] & WRITING:
            self._count(event, args[0])
        elif event in EVENTS:
            path, folder = args[0], args[-1]
            is_relative = isinstance(path, str) and isinstance(folder, int) and folder >= 0
            self._count(event, f"/proc/self/fd/{folder}/{path}" if is_relative else path)

    def _count(self, event: str, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        path = os.fsdecode(path)
        path = os.path.realpath(path) if path.startswith("/proc/self") else os.path.abspath(path)
        if not path.startswith(self.folder + os.sep):
            return
        self.number += 1
        if self.record is not None:
            descriptor = os.open(self.record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(descriptor, f"{event} {os.path.relpath(path, self.folder)}\n".encode())
            os.close(descriptor)
        if self.number == self.kill_at:
            self._die(event, path)

    def _die(self, event: str, path: str) -> None:
        if self.torn and os.path.isfile(path) and event in SYNCED:
            status = os.stat(path)
            kept = min(self.synced.get(status.st_ino, 0), status.st_size)
            os.truncate(path, (kept + status.st_size) // 2)
        os.kill(os.getpid(), signal.SIGKILL)
