"""A program is killed at any time or file operation, or power is lost; operations are recorded.

A kill leaves all that was done until then, and perhaps a file half written. Power leaves any state
that file systems allow: a write reaches the disk when the file is synced, a name when its folder
is. Until then a file may hold an older content, a part of the new one, or zeros in the place of
some of it; and of the names that were set and removed the last ones may be lost (with a journal),
or any. The same command must end as if nothing had been, and of a run that has ended all results
must be there.
"""

import os
import pickle
import shutil
import signal
import stat
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

from fault_matrix.cases import Verdict, bad, good
from fault_matrix.digests import done, kept
from fault_matrix.processes import ended, kill, wait_until
from fault_matrix.programs import BEGIN, Program, end_with

ANOTHER = 0.3
"""How likely the next attempt is killed, too."""
AT_THE_END = 7
"""One of so many losses comes when the run has ended."""
Name = tuple[int, str]
"""A folder's number, and a name in it."""
ROOT = 0
CHANGING = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "symlink", "link")
SECTOR = 512
FRESH_SECONDS = 0.05
"""Clocks of file systems are coarse: what was written so lately is read again."""


def killed(program: Program, number: int, folder: Path) -> Verdict:
    """A process is killed at any time, and perhaps again."""
    run_dir, chance = folder / "run", Random(f"{program.name} {number}")
    while True:
        process = program.in_the_middle(run_dir, chance.uniform(0, 0.97))
        kill(process)
        if process.exitcode == -signal.SIGKILL:
            return to_its_end(program, run_dir, chance)
        if process.exitcode != 0:
            return program.verdict(run_dir, process.exitcode)
        shutil.rmtree(run_dir)  # it has just ended


def to_its_end(program: Program, run_dir: Path, chance: Random) -> Verdict:
    """The same command again, and again, until it is not killed; what it came to."""
    while chance.random() < ANOTHER:
        before, process = done(run_dir), program.start(run_dir)
        wait_until(process, chance.uniform(0, 1) * program.undisturbed().seconds)
        kill(process)
        if process.exitcode not in (0, -signal.SIGKILL):
            return program.verdict(run_dir, process.exitcode)
        if not (found := kept(before, run_dir, good("killed again"))).ok:
            return found
    return program.goes_on(run_dir)


def cut(program: Program, number: int, folder: Path) -> Verdict:
    """One state after one loss, and the same command."""
    program.undisturbed()
    recorded, rng = recorded_run(program), Random(f"{program.name} {number}")
    at_the_end, end = number % AT_THE_END == 0, len(recorded.operations)
    run_dir = program.fresh(BEGIN)
    left = lost(recorded, end if at_the_end else rng.randrange(end), rng)
    materialise(left, recorded, run_dir)
    if at_the_end and (gone := recorded.results - done(run_dir).files.keys()):
        return bad("lost", sorted(map(str, gone)))
    return program.verdict(run_dir, ended(program.start(run_dir)))


def killed_at(program: Program, number: int, folder: Path) -> Verdict:
    """Killed behind an operation, every other time in the midst of a write, and perhaps again.

    The system goes on, so that all that was done is there, and the recording tells it.
    """
    program.undisturbed()
    recorded, rng = recorded_run(program), Random(f"{program.name} {number // 2}")
    end = rng.randrange(len(recorded.operations))
    names, contents = left_behind(recorded, end, lambda found: found[-1])
    written = [o.node for o in recorded.operations[:end] if isinstance(o, Write)]
    if number % 2 and written:
        *before, after = _versions(recorded, end, written[-1])
        kept = len(before[-1]) if before and after.startswith(before[-1]) else 0
        contents[written[-1]] = after[: (kept + len(after)) // 2] if before else after
    materialise((names, contents), recorded, program.fresh(BEGIN))
    return to_its_end(program, program.place, rng)


@cache
def recorded_run(program: Program) -> "Recording":
    run_dir, file = program.fresh(BEGIN), program.place.with_suffix(".recording")
    before = partial(record, run_dir, file)
    end_with(0, program.start(run_dir, before=before), run_dir)
    return pickle.loads(file.read_bytes())  # noqa: S301  - written a moment ago


def record(folder: Path, file: Path) -> Callable[[], None]:
    """Records what this process does in a folder; what is returned ends that, and writes it."""
    recorded = Recording(folder)
    stop = recorded.start()

    def end() -> None:
        stop()
        recorded.results = set(done(folder).files)
        file.write_bytes(pickle.dumps(recorded))

    return end


@dataclass(frozen=True)
class Write:
    """A file or link has a new content, which is not on the disk yet."""

    node: int
    content: bytes


@dataclass(frozen=True)
class Names:
    """Names that were set or (None) removed in one step."""

    changes: dict[Name, int | None]


@dataclass(frozen=True)
class Sync:
    """A file or folder has reached the disk."""

    node: int


@dataclass
class Recording:
    """The operations in a folder, in their order, whoever writes: Python, Rust or C++.

    Attributes:
        kinds: of each number: folder, file or link.
        results: the files of a run that are its results.
    """

    root: Path
    operations: list[Write | Names | Sync] = field(default_factory=list)
    kinds: dict[int, str] = field(default_factory=lambda: {ROOT: "folder"})
    results: set[Path] = field(default_factory=set)
    _names: dict[Name, int] = field(default_factory=dict)
    _contents: dict[int, bytes] = field(default_factory=dict)
    _stamps: dict[int, tuple] = field(default_factory=dict)
    _inodes: dict[int, int] = field(default_factory=dict)

    def start(self) -> Callable[[], None]:
        """Begins; what is returned ends it."""
        self._look()
        self.operations += map(Sync, self.kinds)  # what is there already is on the disk
        originals = {name: getattr(os, name) for name in (*CHANGING, "fsync")}

        def changing(name: str, *args: Any, **kwargs: Any) -> Any:
            self._look()
            try:
                return originals[name](*args, **kwargs)
            finally:
                self._look(at_once=True)

        def fsync(descriptor: Any) -> None:
            self._look()
            originals["fsync"](descriptor)
            inode = os.stat(getattr(descriptor, "fileno", lambda: descriptor)()).st_ino
            if inode in self._inodes:
                self.operations.append(Sync(self._inodes[inode]))

        def stop() -> None:
            for name, original in originals.items():
                setattr(os, name, original)
            self._look()

        for name in CHANGING:
            setattr(os, name, partial(changing, name))
        os.fsync = fsync
        return stop

    def _look(self, at_once: bool = False) -> None:
        """Notes what has changed since the last look; all names as one step, if so asked."""
        found: dict[Name, int] = {}
        inodes = {os.stat(self.root).st_ino: ROOT} if self.root.is_dir() else {}
        self._walk(self.root, ROOT, found, inodes)
        names = [*found, *self._names]
        changes = {n: found.get(n) for n in names if found.get(n) != self._names.get(n)}
        steps = [changes] if at_once else [{name: node} for name, node in changes.items()]
        self.operations += map(Names, filter(None, steps))
        self._names, self._inodes = found, inodes

    def _walk(self, folder: Path, number: int, found: dict, inodes: dict) -> None:
        entries = sorted(os.scandir(folder), key=lambda e: e.name) if folder.is_dir() else []
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            node = self._inodes.get(status.st_ino, inodes.get(status.st_ino, len(self.kinds)))
            is_folder, is_link = stat.S_ISDIR(status.st_mode), stat.S_ISLNK(status.st_mode)
            self.kinds.setdefault(node, "folder" if is_folder else "link" if is_link else "file")
            inodes[status.st_ino] = found[number, entry.name] = node
            if is_folder:
                self._walk(Path(entry.path), node, found, inodes)
            else:
                self._read(entry.path, node, status)

    def _read(self, path: str, node: int, status: os.stat_result) -> None:
        stamp = status.st_size, status.st_mtime_ns
        if self._stamps.get(node) == stamp and time.time() - status.st_mtime > FRESH_SECONDS:
            return
        is_link = self.kinds[node] == "link"
        content = os.readlink(path).encode() if is_link else Path(path).read_bytes()
        if content != self._contents.get(node):
            self.operations.append(Write(node, content))
        self._stamps[node], self._contents[node] = stamp, content


# --- states after a loss --------------------------------------------------------------------------


Choose = Callable[[list[bytes]], bytes]
State = tuple[dict[Name, int], dict[int, bytes]]
"""The names and contents of a folder."""


def lost(recorded: Recording, end: int, rng: Random) -> State:
    """What is left if power is lost behind the first `end` operations."""
    pending = _pending(recorded.operations[:end])
    some = [place for place in pending if rng.random() < 0.5]
    kept = rng.choice([pending, [], pending[: rng.randint(0, len(pending))], some])
    choose = rng.choice([lambda found: found[0], lambda found: found[-1], partial(_torn, rng)])
    return left_behind(recorded, end, choose, {*pending} - {*kept})


def left_behind(
    recorded: Recording, end: int, choose: Choose, missing: Collection[int] = ()
) -> State:
    """What `end` operations leave but for `missing` ones, and one of what each file may hold."""
    names: dict[Name, int | None] = {}
    for place, operation in enumerate(recorded.operations[:end]):
        if isinstance(operation, Names) and place not in missing:
            names |= operation.changes
    contents = {node: choose(_versions(recorded, end, node)) for node in recorded.kinds}
    return {name: node for name, node in names.items() if node is not None}, contents


def _pending(operations: Sequence[Any]) -> list[int]:
    """The places of names that are not sure to be there: their folder was not synced since."""
    synced: set[int] = set()
    found = []
    for place, operation in reversed([*enumerate(operations)]):
        if isinstance(operation, Sync):
            synced.add(operation.node)
        elif isinstance(operation, Names) and not synced & {f for f, _ in operation.changes}:
            found.insert(0, place)
    return found


def _versions(recorded: Recording, end: int, node: int) -> list[bytes]:
    """What a file may hold: what was synced last, and all that was written since."""
    found = [b""]
    for operation in recorded.operations[:end]:
        if isinstance(operation, Write) and operation.node == node:
            found.append(operation.content)
        elif isinstance(operation, Sync) and operation.node == node:
            found = found[-1:]
    return found[-1:] if recorded.kinds[node] == "link" else found  # a link is a name


def _torn(rng: Random, found: list[bytes]) -> bytes:
    """One of the contents that a file may have; what was appended to may lack a part of the end."""
    content, cut = rng.choice(found), rng.random()
    if len(found) == 1 or cut < 0.3:
        return content
    end = rng.randint(len(found[0]) if content.startswith(found[0]) else 0, len(content))
    if cut < 0.6:
        return content[:end]
    hole = min(len(content), (end // SECTOR + rng.randint(1, 4)) * SECTOR)
    return content[:end] + bytes(hole - end) + content[hole:]


def materialise(left: State, recorded: Recording, folder: Path, number: int = ROOT) -> None:
    """Makes such a folder, at another place perhaps."""
    folder.mkdir()
    names, contents = left
    inside = {name: node for (parent, name), node in names.items() if parent == number}
    for path, node in ((folder / name, node) for name, node in inside.items()):
        if recorded.kinds[node] == "folder":
            materialise(left, recorded, path, node)
        elif recorded.kinds[node] == "link":
            os.symlink(contents[node], path)
        else:
            path.write_bytes(contents[node])
