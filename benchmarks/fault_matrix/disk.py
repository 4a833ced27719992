"""Disks that are full, read-only, out of inodes or of quota; the same command goes on with room.

A run lives on a real file system of a few kilobytes more or less than it needs, which takes root:
where nobody may mount one, these cases are left out, and a limit on the size of files stands in.
"""

import errno
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fault_matrix import programs
from fault_matrix.cases import Case, Verdict
from fault_matrix.damage import expected_after, left_at, place_of
from fault_matrix.digests import Digest, differing
from fault_matrix.done import begun_anew, done, lost
from fault_matrix.operations import WRITING
from fault_matrix.programs import PROGRAMS, Program

TITLE = "disks without room"
MOST = 540
KINDS = (
    "size", "inodes", "size", "quota", "size", "read-only", "size", "read-only when it goes on",
    "size", "size",
)  # fmt: skip
BLOCK = 4096
LOG = 8192
"""Bytes that a quota leaves for what a program prints, which is a file here."""

PAGES = {"-report.html": ": the page is left as it was: ", "-episode.gif": "no episode.gif: "}
"""Pages and pictures, by what a run says that has not written them; no work depends on them."""


def cases(shared: Path, scale: float) -> Iterator[Case]:
    """Disks in turn for each program."""
    kinds = KINDS if can_mount() else ("quota", "read-only")
    for number in range(round(MOST * scale / len(PROGRAMS)) or 1):
        for program in PROGRAMS.values():
            kind = kinds[number % len(kinds)]
            name = f"{program.name}-{number}"
            yield Case(3, program.name, name, _Disk(shared, program, kind, number))


@dataclass(frozen=True)
class _Disk:
    """A run on a disk that will not do, and then on one that will."""

    shared: Path
    program: Program
    kind: str
    number: int

    def __call__(self, folder: Path) -> Verdict:
        programs.prepare(self.shared)
        expected = expected_after(self.program, self.shared, "about to begin")
        rng = random.Random(f"{self.program.name} {self.number}")
        run_dir, share = place_of(self.program, self.shared), rng.uniform(0.02, 1.1)
        shutil.rmtree(run_dir, ignore_errors=True)
        programs.log_of(run_dir).unlink(missing_ok=True)
        with self._disk(run_dir, share) as (limit, mend):
            found = self._twice(run_dir, limit, mend, expected)
        shutil.rmtree(run_dir, ignore_errors=True)
        return replace(found, detail=f"{self.kind} {share:.3f}; {found.detail}")

    def _twice(
        self,
        run_dir: Path,
        limit: Callable[[], None] | None,
        mend: Callable[[], None],
        expected: Digest,
    ) -> Verdict:
        """Without room, and with it; who claims to have ended must have done so without."""
        first = self._run(run_dir, limit)
        if not first.ok:
            return first
        if first.ending == "exit 0" and (places := self._missed(run_dir, expected)):
            return Verdict(False, "claims to have ended", ", ".join(places)[:400])
        before = done(run_dir)
        mend()
        again = self._run(run_dir, None)
        if again.ending != "exit 0":
            return replace(again, ok=False)
        if places := differing(self.program.digest(run_dir), expected):
            return Verdict(False, "not equal", ", ".join(places)[:400])
        if anew := lost(before, done(run_dir)):
            return begun_anew(anew)
        return first

    def _missed(self, run_dir: Path, expected: Digest) -> list[str]:
        """Where a run has ended otherwise than with room, but for pages that it says are missing.

        They cost a warning, and the same command writes them.
        """
        text = programs.log_of(run_dir).read_text(errors="replace")
        told = {place for place, warning in PAGES.items() if warning in text}
        places = differing(self.program.digest(run_dir), expected)
        return [place for place in places if place not in told]

    def _run(self, run_dir: Path, limit: Callable[[], None] | None) -> Verdict:
        config = self.program.config(self.shared, run_dir)
        code = programs.ended(programs.start(self.program, config, before=limit))
        last = programs.last_line(run_dir)
        if "Traceback" in programs.log_of(run_dir).read_text(errors="replace"):
            return Verdict(False, "stack trace", last)
        told = code == 0 or (code == 5 and last.startswith("error: "))
        return Verdict(told, f"exit {code}", last)

    @contextmanager
    def _disk(self, run_dir: Path, share: float) -> Iterator[tuple[Any, Callable[[], None]]]:
        """The limit that the process sets itself, if any, and what gives it room."""
        if self.kind in ("quota", "read-only"):
            num_bytes, num_names = _needs(self.program, self.shared)
            largest = max(LOG, int(share * _largest(self.program, self.shared)))
            limit = Quota(largest) if self.kind == "quota" else ReadOnly(int(share * num_names))
            yield limit, lambda: None
            return
        if self.kind == "read-only when it goes on":
            yield from self._left_read_only(run_dir)
            return
        num_bytes, num_names = _needs(self.program, self.shared)
        option = f"size={max(1, int(share * num_bytes / BLOCK)) * BLOCK}"
        if self.kind == "inodes":
            option = f"nr_inodes={max(2, int(share * num_names))}"
        with mounted(run_dir, option):
            yield None, lambda: _mount("-o", "remount,size=1g,nr_inodes=100000", str(run_dir))

    def _left_read_only(self, run_dir: Path) -> Iterator[tuple[None, Callable[[], None]]]:
        left = left_at(self.program, self.shared, "half") if self.number % 2 else None
        with mounted(run_dir, "size=1g"):
            if left is not None:
                shutil.copytree(left, run_dir, symlinks=True, dirs_exist_ok=True)
            _mount("-o", "remount,ro", str(run_dir))
            yield None, lambda: _mount("-o", "remount,rw", str(run_dir))


@dataclass
class Quota:
    """No file of this process may be longer."""

    num_bytes: int

    def __call__(self) -> None:
        """From now on."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.num_bytes, self.num_bytes))


@dataclass
class ReadOnly:
    """The disk cannot be written any more after so many names were given to files.

    A real one cannot be made so while a file on it is open: what Python does is refused instead.
    """

    number: int
    count: int = 0

    def __call__(self) -> None:
        """From now on."""

        def hear(event: str, args: tuple[Any, ...]) -> None:
            writes = event == "open" and isinstance(args[0], str) and (args[2] or 0) & WRITING
            changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink")
            if not (writes or changes) or str(args[0]).startswith("/dev/"):
                return
            self.count += 1
            if self.count > self.number:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), args[0])

        sys.addaudithook(hear)


@cache
def _needs(program: Program, shared: Path) -> tuple[int, int]:
    """About how many bytes, in whole blocks, and how many names a run takes."""
    paths = list(left_at(program, shared, "finished").rglob("*"))
    blocks = sum(-(-path.lstat().st_size // BLOCK) for path in paths)
    return (blocks + len(paths) // 8) * BLOCK * 5 // 4, len(paths) * 5 // 4 + 2


@cache
def _largest(program: Program, shared: Path) -> int:
    """Bytes of the longest file of a run."""
    files = left_at(program, shared, "finished").rglob("*")
    return max(path.lstat().st_size for path in files if path.is_file())


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
    return os.geteuid() == 0 and shutil.which("mount") is not None and _may_mount()


def _may_mount() -> bool:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as place:
        try:
            with mounted(Path(place) / "disk", "size=64k"):
                return True
        except subprocess.CalledProcessError:
            return False


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)
