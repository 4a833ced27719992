"""Files that somebody has made to do harm, in the place of those that a program reads back.

Their manifests are forged, so that no checksum tells. An audit hook listens in the program's
process, and the file system tells what native code does: nothing of a file is run or imported, and
nothing is read or written outside of the run. A program that goes on over a bad file of its run
must end as if it had not been there; a model may say what it likes.
"""

import os
import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random

from fault_matrix.cases import Case, Verdict, bad, good
from fault_matrix.damage import beyond_ordinary, is_forgiven
from fault_matrix.digests import Digest, differing, digest
from fault_matrix.evil import MODULE, Put, traps
from fault_matrix.processes import ended, last_line, said
from fault_matrix.programs import (
    BEGIN,
    Program,
    fresh,
    inputs_of,
    left_at,
    prepared,
    put_back,
    undisturbed,
)
from fault_matrix.readers import is_named
from fault_matrix.watch import Watch
from lactchain.errors import LactChainError
from lactchain.storage.manifests import (
    MANIFEST,
    manifest_beside,
    read_manifest,
    write_manifest,
    write_with_manifest,
)

PATIENCE = 40.0
MOMENT = "half"
ATTACKED = (
    "train_critic", "train_simpo", "train_mc", "collect_rollouts", "make_preferences", "evaluate",
    "train_ppo", "train_cql", "search_evolution", "search_random", "search_language",
)  # fmt: skip
LONG_AGO = 1e9
A_PROGRAM = 40
"""Cases of each, at most."""
NOT_READ = re.compile(r"(README\.md|report\.html|\.gif)$|(^|/)(minari|datasets)/")
OWN = {"schema_version", "run_id", "place", "files", "size", "sha256"}


def cases(shared: Path, scale: float, names: list[str] | None = None) -> Iterator[Case]:
    """Every program in turn."""
    programs = prepared(shared, names)
    for number in range(round(A_PROGRAM * scale) or 1):
        for name in filter(programs.__contains__, ATTACKED):
            yield Case(23, name, f"{name}-{number}", partial(attacked, programs[name], number))


def attacked(program: Program, number: int, folder: Path) -> Verdict:
    """One bad file in a run that was left in the middle, or in a model that it reads."""
    name, trap, put = chosen(program)[number]
    is_own = (left_at(program, MOMENT) / name).exists()
    moment = MOMENT if is_own else BEGIN
    expected = undisturbed(program, moment).digest
    run_dir, outside = fresh(program, moment), outside_of(folder)
    file = (run_dir if is_own else program.shared) / name
    with nullcontext() if is_own else put_back(file.parent, folder / "aside"):
        lay(file, put, outside)
        laid = identity(file)
        found = go_on(program, outside, folder / "notes")
        if found.ending == "exit 0" and is_own:
            found = as_if_nothing_had_been(program, file, laid, expected)
    return replace(found, detail=f"{trap}, {name}; {found.detail}".strip("; "))


def go_on(program: Program, outside: Path, notes: Path) -> Verdict:
    """Whether a program does what it may not, and how it ends."""
    run_dir = program.place
    before, around = contents(outside), around_of(program)
    forget_reads(outside)
    process = program.start(run_dir, before=Watch(run_dir.parent, outside, notes, MODULE))
    code, text = ended(process, PATIENCE), said(run_dir)
    if told := notes.read_text(errors="replace") if notes.exists() else "":
        return bad("broke out", told.splitlines()[0])
    if seen := reads(outside):
        return bad("read outside", seen)
    if contents(outside) != before:
        return bad("wrote outside", contents(outside).keys() - before.keys())
    if other := around_of(program).items() ^ around.items():
        return bad("wrote elsewhere", sorted(other))
    if "Traceback" in text:
        return bad("stack trace", last_line(text))
    if code == 0:
        return good("exit 0")
    is_told = code in (2, 3, 5) and last_line(text).startswith("error: ")
    ending = "hung" if code is None else f"exit {code}"
    return good("refused") if is_told else bad(ending, last_line(text))


def as_if_nothing_had_been(program: Program, file: Path, laid: object, expected: Digest) -> Verdict:
    """A bad file is forgiven where it stays, not one that was written over it."""
    run_dir = program.place
    named = is_named(file, run_dir, beyond_ordinary(program, MOMENT, said(run_dir)))
    places = differing(digest(run_dir), expected)
    places = [place for place in places if not is_of_trap(file, place, run_dir)]
    if identity(file) == laid:
        places = [place for place in places if not is_forgiven(file, file, place, run_dir)]
    if not places or (named and places == ["-report.html"]):  # no page of a damaged run
        return good("named" if named else "did nothing")
    return bad("changed the end", places)


def is_of_trap(file: Path, place: str, run_dir: Path) -> bool:
    """Whether a place tells of what was laid beside a file, or of what was set aside.

    A manifest that is written anew lists the module that was laid there.
    """
    found = run_dir / place.lstrip("+")
    lists = found == file.parent / MANIFEST and (file.parent / f"{MODULE}.py").exists()
    is_beside = MODULE in place or found == file.with_name(f".{file.name}.tmp")
    return lists or is_beside or "set-aside-" in place


def identity(file: Path) -> tuple[int, ...] | None:
    """Which file is at a place, whatever its kind."""
    if not os.path.lexists(file):
        return None
    status = file.lstat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def outside_of(folder: Path) -> Path:
    """What no program may look into."""
    outside = folder / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "secret.json").write_text("{}")
    return outside


def contents(outside: Path) -> dict[str, bytes]:
    """The plain files."""
    return {str(path): path.read_bytes() for path in outside.rglob("*") if path.is_file()}


def forget_reads(outside: Path) -> None:
    """Sets the times of the last reading back so far that the next one is noted."""
    probe = outside.with_name("probe")
    probe.touch()
    os.utime(probe, (LONG_AGO, LONG_AGO))
    probe.read_bytes()
    if probe.stat().st_atime == LONG_AGO:
        raise RuntimeError(
            f"{outside}: nothing notes reads there; let TMPDIR name a folder of a"
            " file system that is mounted with relatime"
        )
    for path in (outside, *outside.rglob("*")):
        os.utime(path, (LONG_AGO, LONG_AGO), follow_symlinks=False)


def reads(outside: Path) -> list[str]:
    """What was read since, by whatever code."""
    files = (path for path in (outside / "secret.json", *outside.glob("folder/*")) if path.exists())
    return [path.name for path in files if path.lstat().st_atime != LONG_AGO]


def around_of(program: Program) -> dict[str, tuple[int, int]]:
    """Sizes and times of everything beside the place of a run."""
    found = {}
    for folder, folders, files in os.walk(program.shared):
        folders[:] = [name for name in folders if Path(folder, name) != program.place.parent]
        for path in (os.path.join(folder, name) for name in files):
            found[path] = os.lstat(path).st_size, os.lstat(path).st_mtime_ns
    return found


def lay(file: Path, put: Put, outside: Path) -> None:
    """Puts a bad file there, code beside it, and a manifest that says that it is good."""
    described = next((p for p in file.parents if (p / MANIFEST).is_file()), None)
    try:
        manifest = read_manifest(described / MANIFEST) if described else {}
        beside = read_manifest(manifest_beside(file)) if manifest_beside(file).is_file() else {}
    except LactChainError:
        manifest, beside = {}, {}
    put(file, outside)
    if not file.is_file() or file.is_symlink() or file.parent.is_symlink():
        return
    if beside and file.suffix != ".manifest":
        facts = {key: value for key, value in beside.items() if key not in OWN}
        write_with_manifest(file, file.read_bytes(), facts)
    elif manifest and file.name != MANIFEST:
        if file.parent == described:
            code = f"open({str(outside / 'executed')!r}, 'w')\nclass Evil: pass\n"
            (described / f"{MODULE}.py").write_text(code)
        write_manifest(described, {k: v for k, v in manifest.items() if k not in OWN})


@cache
def chosen(program: Program) -> list[tuple[str, str, Put]]:
    """Bad files for a program: each kind of file in turn gets each trap that fits it."""
    left, files = left_at(program, MOMENT), {}
    for base, folder in [(left, left), *((program.shared, read) for read in inputs_of(program))]:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(base).as_posix()
            if path.is_file() and not path.is_symlink() and not NOT_READ.search(name):
                files.setdefault(re.sub(r"\d+", "0", name), (name, path))
    found = [
        (name, trap, put)
        for name, path in files.values()
        for trap, put in traps(path)
        if path.is_relative_to(left) or not trap.startswith("link")  # models are often links
    ]
    Random(program.name).shuffle(found)
    return found
