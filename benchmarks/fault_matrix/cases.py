"""Kinds of faults, their cases, and a file of results that goes on where it was."""

import json
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lactchain.storage.files import append_json_lines, read_json_lines


@dataclass(frozen=True)
class Verdict:
    """What came of a fault: a word that is counted, and for bad ones a line of what was seen."""

    ok: bool
    ending: str
    detail: str = ""


def good(ending: str) -> Verdict:
    return Verdict(True, ending)


def bad(ending: str, detail: object = "") -> Verdict:
    said = ", ".join(map(str, detail)) if isinstance(detail, list) else str(detail)
    return Verdict(False, ending, said[:500])


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        row: of the matrix.
        name: which cases have, beside their program and number.
        count: cases of each program in a whole round.
        strike: does it to a program; the number says where and when, and the folder is empty.
        programs: to which it is done; None: all.
    """

    row: int
    name: str
    count: int
    strike: Callable[[Any, int, Path], Verdict]
    programs: Collection[str] | None = None


@dataclass(frozen=True)
class Case:
    """One fault; its name is the only one in its part.

    `strike` does it in an empty folder of its own, which goes afterwards.
    """

    row: int
    program: str
    name: str
    strike: Callable[[Path], Verdict]


def cases_of(kinds: Sequence[Kind], programs: Mapping[str, Any], scale: float) -> Iterator[Case]:
    """Kinds and programs in turns, so that the first cases are some of everything."""
    counts = [max(1, round(kind.count * scale)) for kind in kinds]
    for number in range(max(counts)):
        for kind, count in zip(kinds, counts, strict=True):
            for name, program in programs.items() if number < count else ():
                if kind.programs is None or name in kind.programs:
                    strike = partial(kind.strike, program, number)
                    yield Case(kind.row, name, f"{name}-{kind.name}-{number}", strike)


def run_part(part: str, cases: Iterable[Case], results: Path, minutes: float = 1e9) -> Counter[str]:
    """Strikes each case that has no line in `results` yet, and counts how these ended.

    After so many minutes no further case begins.
    """
    done = {record["name"] for record in read_json_lines(results)}
    stop, endings = time.monotonic() + 60 * minutes, Counter()
    for case in (case for case in cases if case.name not in done):
        if (began := time.monotonic()) > stop:
            break
        verdict = struck(case)
        seconds = round(time.monotonic() - began, 2)
        facts = {"row": case.row, "program": case.program, "name": case.name, **asdict(verdict)}
        line = {"part": part, **facts, "seconds": seconds, "commit": commit()}
        append_json_lines(results, [line])
        endings[verdict.ending] += 1
        if not verdict.ok:
            print(json.dumps(facts), flush=True)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[2K{part}: {dict(endings)}")
    return endings


@cache
def commit() -> str:
    """The commit whose code is attacked; `-dirty` behind it where files differ from it."""
    git = ("git", "-C", str(Path(__file__).parent))
    command = (*git, "describe", "--always", "--dirty", "--exclude=*")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def struck(case: Case) -> Verdict:
    """What came of a case; a fault of the benchmark itself is a bad end, too."""
    with TemporaryDirectory(prefix="fault-", ignore_cleanup_errors=True) as folder:
        try:
            return case.strike(Path(folder))
        except Exception as error:  # noqa: BLE001  - it is told, and the next case comes
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            return bad(f"harness: {type(error).__name__}", f"{where}: {error}")
