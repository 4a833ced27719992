"""A process that kills itself at the k-th file operation in a folder.

Operations are what can be seen in the folder after a kill: a file opened for writing, synced,
renamed or removed, a folder made or removed, and the weights that native code writes.
"""

import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


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
        os.fsync = self._before(os.fsync, "fsync")
        torch.save = self._after(torch.save, "torch.save")
        safetensors.serialize_file = self._after(safetensors.serialize_file, "safetensors")
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event in EVENTS:
            self._count(event, _in_folder(args))
        elif event == "open" and isinstance(args[2], int) and args[2] & WRITING:
            self._count(event, args[0])

    def _before(self, function: Callable[[int], None], event: str) -> Callable[[int], None]:
        @wraps(function)
        def counted(descriptor: int) -> None:
            self._count(event, f"/proc/self/fd/{descriptor}")
            function(descriptor)
            status = os.stat(descriptor)
            self.synced[status.st_ino] = status.st_size

        return counted

    def _after(self, function: Callable[..., Any], event: str) -> Callable[..., Any]:
        @wraps(function)
        def counted(content: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
            result = function(content, path, *args, **kwargs)
            self._count(event, path)
            return result

        return counted

    def _count(self, event: str, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        path = os.fsdecode(path)
        path = os.path.realpath(path) if path.startswith("/proc/self") else os.path.abspath(path)
        if not path.startswith(self.folder + os.sep):
            return
        self.number += 1
        if self.record is not None:
            self._note(f"{event} {os.path.relpath(path, self.folder)}\n")
        if self.number == self.kill_at:
            self._die(event, path)

    def _note(self, line: str) -> None:
        descriptor = os.open(self.record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line.encode())
        os.close(descriptor)

    def _die(self, event: str, path: str) -> None:
        if self.torn and os.path.isfile(path) and event in ("fsync", "torch.save", "safetensors"):
            status = os.stat(path)
            kept = min(self.synced.get(status.st_ino, 0), status.st_size)
            os.truncate(path, (kept + status.st_size) // 2)
        os.kill(os.getpid(), signal.SIGKILL)


def _in_folder(args: tuple[Any, ...]) -> Any:
    """The path of an event; that of removals in trees is relative to an open folder."""
    path, folder = args[0], args[-1]
    if isinstance(path, str) and isinstance(folder, int) and folder >= 0:
        return f"/proc/self/fd/{folder}/{path}"
    return path


def recorded(record: Path) -> list[str]:
    """The kind of each operation of a recorded run.

    Operations on files of equal names but for their numbers, in folders of equal names, are of one
    kind.
    """
    return [_kind(line) for line in record.read_text().splitlines()]


def _kind(line: str) -> str:
    event, path = line.split(" ", 1)
    return re.sub(r"\d+", "#", f"{event} {'/'.join(Path(path).parts[-2:])}")
