"""Surroundings in which nobody would choose to work: disks, consoles, languages, limits, homes.

A run ends as elsewhere, or by an error of one line; the same command then goes on to the same end.
Disks are full, out of inodes, or read-only when a run goes on: it lives on a real file system of a
few kilobytes more or less than it needs, which takes root.
"""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from unittest import mock

from fault_matrix.cases import Verdict, bad, good
from fault_matrix.digests import differing, digest
from fault_matrix.processes import ended, said
from fault_matrix.programs import BEGIN, FINISHED, Program, end_of

LATER = "read-only when it goes on"
KINDS = ("size", "inodes", "size", LATER)
"""Of disks that will not do."""
BLOCK = 4096
PAGES = {"-report.html": ": the page is left as it was: ", "-episode.gif": "no episode.gif: "}
"""Pages and pictures, by what a run says that has not written them; no work depends on them."""


def limited(program: Program, number: int, folder: Path) -> Verdict:
    """A run on a disk that will not do, and then on one that will."""
    if not can_mount():
        return good("no disk could be mounted")
    kind, share = KINDS[number % len(KINDS)], Random(f"{program.name} {number}").uniform(0.02, 1.1)
    program.undisturbed()
    option, run_dir = disk_of(program, kind, share), program.fresh(BEGIN)
    with mounted(run_dir, option):
        if kind == LATER:
            shutil.copytree(program.left_at("half"), run_dir, symlinks=True, dirs_exist_ok=True)
            _mount("-o", "remount,ro", str(run_dir))
        found = twice(program, "rw" if kind == LATER else "size=1g,nr_inodes=100000")
    return replace(found, detail=f"{kind} {share:.3f}; {found.detail}")


def disk_of(program: Program, kind: str, share: float) -> str:
    """The option of one that has a share of what a run takes: whole blocks, or names; a quarter on.

    That of one which is read-only later leaves room for all.
    """
    if kind == LATER:
        return "size=1g"
    paths = list(program.left_at(FINISHED).rglob("*"))
    if kind == "inodes":
        return f"nr_inodes={max(2, int(share * len(paths) * 5 / 4))}"
    blocks = sum(-(-path.lstat().st_size // BLOCK) for path in paths) + len(paths) // 8
    return f"size={max(1, int(share * blocks * 5 / 4)) * BLOCK}"


def twice(program: Program, mended: str) -> Verdict:
    """Without room, and with it; who claims to have ended must have done so without."""
    run_dir, expected = program.place, program.undisturbed().digest
    code, text = ended(program.start(run_dir)), said(run_dir)
    if wrong := end_of(text, code, (0, 5)):
        return wrong
    if code == 0:
        # Pages that a run says are missing cost a warning, and the same command writes them.
        told = {place for place, warning in PAGES.items() if warning in text}
        if places := [p for p in differing(digest(run_dir), expected) if p not in told]:
            return bad("claims to have ended", places)
    _mount("-o", f"remount,{mended}", str(run_dir))
    again = program.goes_on(run_dir)
    return good(f"exit {code}") if again.ok else again


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


# --- consoles, languages, limits -----------------------------------------------------------------

PLAIN = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@dataclass(frozen=True)
class Surrounding:
    """What is odd about a process.

    Attributes:
        before: is called in it before the script.
        variables: of its environment; with any, it has an interpreter of its own.
        codes: how it may end.
    """

    before: Callable[[], None] | None = None
    variables: dict[str, str] = field(default_factory=dict)
    codes: tuple[int, ...] = (0,)


def full(*streams: int) -> None:
    """What is printed goes to a disk without room."""
    _print_into(os.open("/dev/full", os.O_WRONLY), streams)


def unread(*streams: int) -> None:
    """What is printed goes into a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    _print_into(writer, streams)


def closed(*streams: int) -> None:
    """There is nowhere to print."""
    for stream in streams:
        os.close(stream)


def _print_into(file: int, streams: tuple[int, ...]) -> None:
    for stream in streams:
        os.dup2(file, stream)
    sys.__stdout__, sys.__stderr__ = (os.fdopen(n, "w", 1, closefd=False) for n in (1, 2))
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


def for_its_owner() -> None:
    """Nobody else may read what is written."""
    os.umask(0o077)


def few_files(number: int) -> None:
    """No more than so many files may be open at a time."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


def little_memory(megabytes: int) -> None:
    """So much more memory than the process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


SURROUNDINGS = {
    "stdout on a full disk": Surrounding(partial(full, 1)),
    "stdout and stderr on a full disk": Surrounding(partial(full, 1, 2)),
    "stdout into a closed pipe": Surrounding(partial(unread, 1)),
    "stdout and stderr into a closed pipe": Surrounding(partial(unread, 1, 2)),
    "locale C": Surrounding(variables={"LC_ALL": "C", **PLAIN}),
    "locale tr_TR": Surrounding(variables={"LC_ALL": "tr_TR.ISO-8859-9", **PLAIN}),
    "a console of ASCII": Surrounding(variables={"PYTHONIOENCODING": "ascii:strict"}),
    "no home": Surrounding(variables={"HOME": "/nowhere", "XDG_CACHE_HOME": "/nowhere"}),
    "umask 077": Surrounding(for_its_owner),
    "stdin is closed": Surrounding(partial(closed, 0)),
    "8 MB of memory": Surrounding(partial(little_memory, 8), codes=(0, 2)),
    "32 MB of memory": Surrounding(partial(little_memory, 32), codes=(0, 2)),
    "128 MB of memory": Surrounding(partial(little_memory, 128), codes=(0, 2)),
    "16 open files": Surrounding(partial(few_files, 16), codes=(0, 5)),
    "32 open files": Surrounding(partial(few_files, 32), codes=(0, 5)),
}


def odd(program: Program, number: int, _: Path) -> Verdict:
    """A run in odd surroundings, and, where it could not end there, the same command elsewhere."""
    name = [*SURROUNDINGS][number % len(SURROUNDINGS)]
    surrounding, run_dir = SURROUNDINGS[name], program.fresh(BEGIN)
    how = {"whole": True} if surrounding.variables else {}
    with mock.patch.dict(os.environ, surrounding.variables):  # inherited
        process = program.start(run_dir, before=surrounding.before, **how)
    code = ended(process)
    if code == 0:
        return replace(program.verdict(run_dir, code), detail=name)
    if wrong := end_of(said(run_dir), code, surrounding.codes):
        return replace(wrong, detail=f"{name}: {wrong.detail}")
    found = program.goes_on(run_dir)
    return replace(found, ending=f"exit {code}, then {found.ending}", detail=name)
