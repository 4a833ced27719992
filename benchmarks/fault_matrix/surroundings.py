"""Surroundings in which nobody would choose to work: consoles, languages, limits, homes.

A run ends as elsewhere, or by an error of one line; the same command then goes on to the same end.
"""

import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from fault_matrix.cases import Verdict
from fault_matrix.done import done, kept
from fault_matrix.processes import ended, said
from fault_matrix.programs import BEGIN, Program, end_of, fresh

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
    surrounding, run_dir = SURROUNDINGS[name], fresh(program, BEGIN)
    how = {"whole": True} if surrounding.variables else {}
    with _variables(surrounding.variables):
        process = program.start(run_dir, before=surrounding.before, **how)
    code = ended(process)
    if code == 0:
        return replace(program.verdict(run_dir, code), detail=name)
    if wrong := end_of(said(run_dir), code, surrounding.codes):
        return replace(wrong, detail=f"{name}: {wrong.detail}")
    before, again = done(run_dir), ended(program.start(run_dir))
    found = kept(before, run_dir, program.verdict(run_dir, again))
    return replace(found, ending=f"exit {code}, then {found.ending}", detail=name)


@contextmanager
def _variables(variables: dict[str, str]) -> Iterator[None]:
    """A process inherits them that is started meanwhile."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
