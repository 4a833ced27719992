"""Files that somebody has made to do harm, in the place of those that a program reads back.

Their manifests are forged, so that no checksum tells. An audit hook listens in the program's
process, and the file system tells what native code does: nothing of a file is run or imported, and
nothing is read or written outside of the run. A program that goes on over a bad file of its run
must end as if it had not been there; a model may say what it likes.
"""

import os
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from fault_matrix import programs
from fault_matrix.cases import Case, Verdict
from fault_matrix.damage import (
    beyond_ordinary,
    expected_after,
    inputs_of,
    is_forgiven,
    left_at,
    place_of,
)
from fault_matrix.digests import Digest, differing
from fault_matrix.evil import MODULE, Trap, traps
from fault_matrix.programs import PROGRAMS, Program
from fault_matrix.readers import is_named
from fault_matrix.watch import Watch
from lactchain.errors import LactChainError
from lactchain.manifests import (
    MANIFEST,
    manifest_beside,
    read_manifest,
    write_manifest,
    write_with_manifest,
)

TITLE = "files that were made to do harm"
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


def cases(shared: Path, scale: float) -> Iterator[Case]:
    """Every program in turn."""
    for number in range(round(A_PROGRAM * scale) or 1):
        for name in (name for name in ATTACKED if name in PROGRAMS):
            yield Case(23, name, f"{name}-{number}", _Attack(shared, PROGRAMS[name], number))


@dataclass(frozen=True)
class _Attack:
    """One bad file in a run that was left in the middle, or in a model that it reads."""

    shared: Path
    program: Program
    number: int

    def __call__(self, folder: Path) -> Verdict:
        programs.prepare(self.shared)
        left = left_at(self.program, self.shared, MOMENT)
        name, trap = _chosen(self.program, self.shared, left)[self.number]
        moment = MOMENT if (left / name).exists() else "about to begin"
        expected = expected_after(self.program, self.shared, moment)
        run_dir, outside = place_of(self.program, self.shared), _outside(folder)
        shutil.rmtree(run_dir, ignore_errors=True)
        programs.log_of(run_dir).unlink(missing_ok=True)
        base, kept = run_dir, None
        if moment == MOMENT:
            shutil.copytree(left, run_dir, symlinks=True)
        else:  # a run that is about to begin
            base, kept = self.shared, folder / "kept"
            shutil.copytree((base / name).parent, kept)
        try:
            _lay(base / name, trap, outside)
            laid = _identity(base / name)
            found = self._go_on(run_dir, outside, folder / "notes")
            if found.ending == "exit 0" and kept is None:
                found = self._as_if_nothing_had_been(base / name, laid, run_dir, expected)
        finally:
            if kept is not None:
                _put_back((base / name).parent, kept)
        return replace(found, detail=f"{trap.name}, {name}; {found.detail}".strip("; "))

    def _go_on(self, run_dir: Path, outside: Path, notes: Path) -> Verdict:
        before, around = _contents(outside), _around(self.shared, run_dir)
        _forget_reads(outside)
        watch = Watch(run_dir.parent, outside, notes, MODULE)
        config = self.program.config(self.shared, run_dir)
        code = programs.ended(programs.start(self.program, config, before=watch), PATIENCE)
        last = programs.last_line(run_dir)
        if told := notes.read_text(errors="replace") if notes.exists() else "":
            return Verdict(False, "broke out", told.splitlines()[0][:300])
        if seen := _reads(outside):
            return Verdict(False, "read outside", ", ".join(seen))
        if _contents(outside) != before:
            return Verdict(False, "wrote outside", str(_contents(outside).keys() - before.keys()))
        if other := _around(self.shared, run_dir).items() ^ around.items():
            return Verdict(False, "wrote elsewhere", str(sorted(other))[:300])
        if "Traceback" in programs.log_of(run_dir).read_text(errors="replace"):
            return Verdict(False, "stack trace", last)
        if code is None:
            return Verdict(False, "hung", last)
        if code == 0:
            return Verdict(True, "exit 0", "")
        is_told = code in (2, 3, 5) and last.startswith("error: ")
        return Verdict(is_told, "refused" if is_told else f"exit {code}", last)

    def _as_if_nothing_had_been(
        self, file: Path, laid: object, run_dir: Path, expected: Digest
    ) -> Verdict:
        """A bad file is forgiven where it stays, not one that was written over it."""
        text = programs.log_of(run_dir).read_text(errors="replace")
        named = is_named(file, run_dir, beyond_ordinary(self.program, self.shared, MOMENT, text))
        places = differing(self.program.digest(run_dir), expected)
        places = [place for place in places if not _is_of_trap(file, place, run_dir)]
        if _identity(file) == laid:
            places = [place for place in places if not is_forgiven(file, file, place, run_dir)]
        if not places or (named and places == ["-report.html"]):  # no page of a damaged run
            return Verdict(True, "named" if named else "did nothing")
        return Verdict(False, "changed the end", ", ".join(places)[:300])


def _is_of_trap(file: Path, place: str, run_dir: Path) -> bool:
    """Whether a place tells of what was laid beside a file, or of what was set aside.

    A manifest that is written anew lists the module that was laid there.
    """
    found = run_dir / place.lstrip("+")
    lists = found == file.parent / MANIFEST and (file.parent / f"{MODULE}.py").exists()
    is_beside = MODULE in place or found == file.with_name(f".{file.name}.tmp")
    return lists or is_beside or "set-aside-" in place


def _identity(file: Path) -> tuple[int, ...] | None:
    """Which file is at a place, whatever its kind."""
    if not os.path.lexists(file):
        return None
    status = file.lstat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _outside(folder: Path) -> Path:
    """What no program may look into."""
    outside = folder / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "secret.json").write_text("{}")
    return outside


def _contents(outside: Path) -> dict[str, bytes]:
    """The plain files."""
    files = (path for path in sorted(outside.rglob("*")) if path.is_file())
    return {path.relative_to(outside).as_posix(): path.read_bytes() for path in files}


def _forget_reads(outside: Path) -> None:
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


def _reads(outside: Path) -> list[str]:
    """What was read since, by whatever code."""
    files = (path for path in (outside / "secret.json", *outside.glob("folder/*")) if path.exists())
    return [path.name for path in files if path.lstat().st_atime != LONG_AGO]


def _around(shared: Path, run_dir: Path) -> dict[str, tuple[int, int]]:
    """Sizes and times of everything beside the place of the run."""
    found = {}
    for folder, folders, files in os.walk(shared):
        folders[:] = [name for name in folders if Path(folder, name) != run_dir.parent]
        for name in files:
            status = os.lstat(os.path.join(folder, name))
            found[os.path.join(folder, name)] = status.st_size, status.st_mtime_ns
    return found


def _put_back(folder: Path, kept: Path) -> None:
    """An input's folder as it was."""
    if folder.is_symlink():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(kept, folder)


def _lay(file: Path, trap: Trap, outside: Path) -> None:
    """Puts a bad file there, code beside it, and a manifest that says that it is good."""
    described = next((p for p in file.parents if (p / MANIFEST).is_file()), None)
    try:
        manifest = read_manifest(described / MANIFEST) if described else {}
        beside = read_manifest(manifest_beside(file)) if manifest_beside(file).is_file() else {}
    except LactChainError:
        manifest, beside = {}, {}
    trap.put(file, outside)
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
def _chosen(program: Program, shared: Path, left: Path) -> list[tuple[str, Trap]]:
    """Bad files for a program: each kind of file in turn gets each trap that fits it."""
    files = {}
    read = inputs_of(program, shared)
    for base, folder in [(left, left), *((shared, folder) for folder in read)]:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(base).as_posix()
            if path.is_file() and not path.is_symlink() and not NOT_READ.search(name):
                files.setdefault(re.sub(r"\d+", "0", name), (name, path))
    found = [
        (name, trap)
        for name, path in files.values()
        for trap in traps(path)
        if path.is_relative_to(left) or not trap.name.startswith("link")  # models are often links
    ]
    random.Random(program.name).shuffle(found)
    return found
