"""What a power loss may leave of a folder: the file operations in it, and the states they allow.

A write reaches the disk when the file is synced, a name when its folder is. Until then a file may
hold an older content, a part of the new one, or zeros in the place of some of it; and of the names
that were set and removed any may be lost (`loose`), or, on file systems with a journal, the last
ones (`journal`), where whatever is synced takes all earlier names with it.
"""

import os
import random
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Name = tuple[int, str]
"""A folder's number, and a name in it."""

ROOT = 0
CHANGING = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "symlink", "link")
SECTOR = 512
FRESH_SECONDS = 0.05
"""Clocks of file systems are coarse: what was written so lately is read again."""


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


Operation = Write | Names | Sync


@dataclass
class Recording:
    """The operations in a folder, in their order.

    Attributes:
        kinds: of each number: folder, file or link.
    """

    root: Path
    operations: list[Operation] = field(default_factory=list)
    kinds: dict[int, str] = field(default_factory=lambda: {ROOT: "folder"})
    _names: dict[Name, int] = field(default_factory=dict)
    _contents: dict[int, bytes] = field(default_factory=dict)
    _stamps: dict[int, tuple] = field(default_factory=dict)
    _inodes: dict[int, int] = field(default_factory=dict)

    def look(self, at_once: bool = False) -> None:
        """Notes what has changed since the last look; all names as one step, if so asked."""
        found: dict[Name, int] = {}
        inodes = {os.stat(self.root).st_ino: ROOT} if self.root.is_dir() else {}
        self._walk(self.root, ROOT, found, inodes)
        changes = {
            name: found.get(name)
            for name in [*found, *self._names]
            if found.get(name) != self._names.get(name)
        }
        if changes:
            steps = [changes] if at_once else [{name: node} for name, node in changes.items()]
            self.operations += map(Names, steps)
        self._names, self._inodes = found, inodes

    def synced(self, inode: int) -> None:
        """Notes that a file or folder, if it is one of these, has reached the disk."""
        if inode in self._inodes:
            self.operations.append(Sync(self._inodes[inode]))

    def _walk(self, folder: Path, number: int, found: dict, inodes: dict) -> None:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            node = self._inodes.get(status.st_ino, inodes.get(status.st_ino, len(self.kinds)))
            self.kinds.setdefault(node, _kind(status.st_mode))
            inodes[status.st_ino] = found[number, entry.name] = node
            if self.kinds[node] == "folder":
                self._walk(Path(entry.path), node, found, inodes)
            else:
                self._read(entry.path, node, status)

    def _read(self, path: str, node: int, status: os.stat_result) -> None:
        stamp = status.st_size, status.st_mtime_ns
        if self._stamps.get(node) == stamp and time.time() - status.st_mtime > FRESH_SECONDS:
            return
        is_link = self.kinds[node] == "link"
        content = os.readlink(path).encode() if is_link else Path(path).read_bytes()
        if content != self._contents.get(node, None):
            self.operations.append(Write(node, content))
        self._stamps[node], self._contents[node] = stamp, content


def _kind(mode: int) -> str:
    return "folder" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "file"


@contextmanager
def recording(root: Path) -> Iterator[Recording]:
    """Records what this process does in a folder, whoever writes: Python, Rust or C++."""
    recorded = Recording(root)
    recorded.look()
    recorded.operations += map(Sync, recorded.kinds)  # what is there already is on the disk
    originals = {name: getattr(os, name) for name in (*CHANGING, "fsync")}

    def changing(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            recorded.look()
            try:
                return originals[name](*args, **kwargs)
            finally:
                recorded.look(at_once=True)

        return call

    def fsync(descriptor: Any) -> None:
        recorded.look()
        originals["fsync"](descriptor)
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        recorded.synced(os.fstat(number).st_ino)

    try:
        for name in CHANGING:
            setattr(os, name, changing(name))
        os.fsync = fsync
        yield recorded
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
        recorded.look()


@dataclass(frozen=True)
class State:
    """A folder after a power loss: its names, and what is in each file."""

    names: dict[Name, int]
    contents: dict[int, bytes]


Model = Literal["loose", "journal"]


def states(
    recorded: Recording, end: int, model: Model, most: int, rng: random.Random
) -> Iterator[State]:
    """Different states after a power loss behind the first `end` operations, `most` at most.

    The first ones are the extremes: everything lost, everything there, and all names without data.
    """
    done = recorded.operations[:end]
    pending = _pending(done, model)
    versions = {node: _versions(done, node, recorded.kinds[node]) for node in _nodes(done)}
    seen = set()
    for attempt in range(4 * most):
        lost = set(pending) - _chosen(pending, model, attempt, rng)
        contents = {n: _version(found, attempt, rng) for n, found in versions.items()}
        names = _names(done, lost)
        key = tuple(sorted(names.items())), tuple(contents[n] for n in sorted(contents))
        if key not in seen:
            seen.add(key)
            yield State(names, contents)
        if len(seen) >= most:
            return


def _nodes(done: Sequence[Operation]) -> list[int]:
    return list(dict.fromkeys(o.node for o in done if isinstance(o, Write)))


def _pending(done: Sequence[Operation], model: Model) -> list[int]:
    """The places of names that are not sure to be on the disk."""
    synced: set[int] = set()
    found = []
    for place in reversed(range(len(done))):
        operation = done[place]
        if isinstance(operation, Sync):
            synced.add(operation.node)
        elif isinstance(operation, Names):
            is_sure = synced if model == "journal" else synced & {f for f, _ in operation.changes}
            if not is_sure:
                found.append(place)
    return found[::-1]


def _versions(done: Sequence[Operation], node: int, kind: str) -> list[bytes]:
    """What a file may hold: what was synced last, and all that was written since."""
    found = [b""]
    for operation in done:
        if isinstance(operation, Write) and operation.node == node:
            found.append(operation.content)
        elif isinstance(operation, Sync) and operation.node == node:
            found = found[-1:]
    return found[-1:] if kind == "link" else found  # a link is a name


def _chosen(pending: list[int], model: Model, attempt: int, rng: random.Random) -> set[int]:
    """Which of the pending names have reached the disk."""
    if attempt < 3:
        return set(pending) if attempt else set()
    if model == "journal":
        return set(pending[: rng.randint(0, len(pending))])
    if attempt % 3 == 0 and pending:  # all but one, or one alone: what is likeliest to be missed
        one = {rng.choice(pending)}
        return one if rng.random() < 0.5 else set(pending) - one
    return {place for place in pending if rng.random() < 0.5}


def _version(found: list[bytes], attempt: int, rng: random.Random) -> bytes:
    """One of the contents that a file may have; what was appended to may lack a part of the end."""
    if len(found) == 1 or attempt in (0, 2):
        return found[0]
    if attempt == 1:
        return found[-1]
    content, cut = rng.choice(found), rng.random()
    if cut < 0.5:
        return content
    kept = len(found[0]) if content.startswith(found[0]) else 0
    end = rng.randint(kept, len(content))
    if cut < 0.7:
        return content[:end]
    hole = min(len(content), (end // SECTOR + rng.randint(1, 4)) * SECTOR)
    return content[:end] + bytes(hole - end) + content[hole:]


def _names(done: Sequence[Operation], lost: set[int]) -> dict[Name, int]:
    """The names after all steps but those that were lost."""
    names: dict[Name, int] = {}
    for place, operation in enumerate(done):
        if isinstance(operation, Names) and place not in lost:
            for name, node in operation.changes.items():
                names.pop(name, None)
                if node is not None:
                    names[name] = node
    return names


def materialise(state: State, recorded: Recording, folder: Path) -> None:
    """Makes such a folder, at another place perhaps."""
    _fill(state, recorded, ROOT, folder)


def _fill(state: State, recorded: Recording, number: int, folder: Path) -> None:
    folder.mkdir()
    for (parent, name), node in state.names.items():
        if parent != number:
            continue
        if recorded.kinds[node] == "folder":
            _fill(state, recorded, node, folder / name)
        elif recorded.kinds[node] == "link":
            os.symlink(state.contents[node], folder / name)
        else:
            (folder / name).write_bytes(state.contents.get(node, b""))
