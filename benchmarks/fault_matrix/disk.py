"""Disks that are full, read-only, out of inodes or of quota; the same command goes on with room.

A run lives on a real file system of a few kilobytes more or less than it needs, which takes root:
where nobody may mount one, these cases are left out, and a limit on the size of files stands in.
"""

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from fault_matrix.cases import Verdict, bad, good
from fault_matrix.digests import differing, digest
from fault_matrix.done import done, kept
from fault_matrix.processes import ended, said
from fault_matrix.programs import BEGIN, FINISHED, Program, end_of, fresh, left_at, undisturbed
from fault_matrix.watch import NAMING, WRITING

KINDS = (
    "size", "inodes", "size", "quota", "size", "read-only", "size", "read-only when it goes on",
    "size", "size",
)  # fmt: skip
BLOCK = 4096
LOG = 8192
"""Bytes that a quota leaves for what a program prints, which is a file here."""
PAGES = {"-report.html": ": the page is left as it was: ", "-episode.gif": "no episode.gif: "}
"""Pages and pictures, by what a run says that has not written them; no work depends on them."""


def limited(program: Program, number: int, folder: Path) -> Verdict:
    """A run on a disk that will not do, and then on one that will."""
    kinds = KINDS if can_mount() else ("quota", "read-only")
    kind, share = kinds[number % len(kinds)], Random(f"{program.name} {number}").uniform(0.02, 1.1)
    undisturbed(program)
    disk, run_dir = disk_of(program, kind, share, number), fresh(program, BEGIN)
    with mounted(run_dir, disk.option) if disk.option else nullcontext():
        if disk.left is not None:
            shutil.copytree(disk.left, run_dir, symlinks=True, dirs_exist_ok=True)
        disk.remount(run_dir, disk.spoilt)
        found = twice(program, disk)
    return replace(found, detail=f"{kind} {share:.3f}; {found.detail}")


@dataclass(frozen=True)
class Disk:
    """A disk that will not do: its process limits itself, or it is a file system of its own.

    Attributes:
        option: of the file system; what changes when a run has been `left` there; and what mends.
    """

    limit: Callable[[], None] | None = None
    option: str = ""
    spoilt: str = ""
    mended: str = ""
    left: Path | None = None

    def remount(self, run_dir: Path, option: str) -> None:
        """Changes the file system."""
        if option:
            _mount("-o", f"remount,{option}", str(run_dir))


def disk_of(program: Program, kind: str, share: float, number: int) -> Disk:
    """One that has a share of what a run takes: bytes in whole blocks, or names, and a quarter."""
    paths = list(left_at(program, FINISHED).rglob("*"))
    sizes, num_names = [path.lstat().st_size for path in paths], int(share * len(paths) * 5 / 4)
    if kind == "quota":
        return Disk(partial(quota, max(LOG, int(share * max(sizes)))))
    if kind == "read-only":
        return Disk(partial(read_only, num_names))
    if kind == "read-only when it goes on":
        left = left_at(program, "half") if number % 2 else None
        return Disk(None, "size=1g", "ro", "rw", left)
    blocks = (sum(-(-size // BLOCK) for size in sizes) + len(paths) // 8) * 5 / 4
    size = f"size={max(1, int(share * blocks)) * BLOCK}"
    option = size if kind == "size" else f"nr_inodes={max(2, num_names)}"
    return Disk(option=option, mended="size=1g,nr_inodes=100000")


def twice(program: Program, disk: Disk) -> Verdict:
    """Without room, and with it; who claims to have ended must have done so without."""
    run_dir, expected = program.place, undisturbed(program).digest
    first = run(program, disk.limit)
    if first.ending == "exit 0":
        # Pages that a run says are missing cost a warning, and the same command writes them.
        told = {place for place, warning in PAGES.items() if warning in said(run_dir)}
        if places := [p for p in differing(digest(run_dir), expected) if p not in told]:
            return bad("claims to have ended", places)
    if not first.ok:
        return first
    before = done(run_dir)
    disk.remount(run_dir, disk.mended)
    again = run(program, None)
    if again.ending != "exit 0":
        return replace(again, ok=False)
    places = differing(digest(run_dir), expected)
    return bad("not equal", places) if places else kept(before, run_dir, first)


def run(program: Program, limit: Callable[[], None] | None) -> Verdict:
    """How a run ends."""
    code = ended(program.start(program.place, before=limit))
    return end_of(said(program.place), code, (0, 5)) or good(f"exit {code}")


def quota(num_bytes: int) -> None:
    """No file of this process may be longer from now on."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def read_only(number: int) -> None:
    """The disk cannot be written any more after so many names were given to files.

    A real one cannot be made so while a file on it is open: what Python does is refused instead.
    """
    numbers = count(1)

    def hear(event: str, args: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(args[0], str) and (args[2] or 0) & WRITING
        is_here = not str(args[0] if args else "").startswith("/dev/")
        if (writes or event in NAMING) and is_here and next(numbers) > number:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), args[0])

    sys.addaudithook(hear)


@contextmanager
def mounted(place: Path, option: str) -> Iterator[None]:
    """A small file system of its own."""
    place.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", option, "tmpfs", str(place))
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)  # helpers may linger


@cache
def can_mount() -> bool:
    """Whether this process may mount a file system."""
    errors = OSError, subprocess.CalledProcessError
    with suppress(*errors), TemporaryDirectory() as at, mounted(Path(at) / "disk", "size=64k"):
        return True
    return False


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)
