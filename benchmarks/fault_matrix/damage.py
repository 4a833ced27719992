"""Files that a program reads back are damaged while it is away: flipped, cut, swapped, missing.

Each program is killed after a quarter, a half and three quarters of its files; or it has finished,
or is about to begin. Then a file of its run, or of the models and episodes that it reads, is
damaged, and the same command given: it refuses in one line, makes good what it names, or ends as if
nothing had been. What it never reads must be found out by whoever does.
"""

import os
import random
import re
import shutil
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fault_matrix import programs
from fault_matrix.cases import Case, Verdict
from fault_matrix.digests import Digest, differing
from fault_matrix.programs import PROGRAMS, Program
from lactchain.config import dump
from lactchain.errors import LactChainError
from lactchain.manifests import (
    MANIFEST,
    manifest_beside,
    read_manifest,
    read_with_manifest,
    verify_manifest,
)

TITLE = "files are flipped, cut, swapped, or missing"
MOST = 5000
MOMENTS = ("quarter", "half", "three quarters", "finished", "about to begin")
BARE = ("quarter", "half")
"""Moments of runs that began with models without manifests, as most models are."""
INPUTS = ("actor", "encoder", "episodes")
SEED = 1
"""Of the run that swapped files come from."""
FOR_PEOPLE = re.compile(r"(README\.md|report\.html|\.gif|lock)$|(^|/)(minari|datasets|export)/")
"""What no program reads back."""


def cases(shared: Path, scale: float) -> Iterator[Case]:
    """Damages in turn for each program."""
    for number in range(round(MOST * scale / len(PROGRAMS)) or 1):
        for program in PROGRAMS.values():
            yield Case(
                4, program.name, f"{program.name}-{number}", _Damage(shared, program, number)
            )


@dataclass(frozen=True)
class _Damage:
    """One damage to one file of a program that was left at some moment."""

    shared: Path
    program: Program
    number: int

    def __call__(self, folder: Path) -> Verdict:
        programs.prepare(self.shared)
        moment = MOMENTS[self.number % len(MOMENTS)]
        rng = random.Random(f"{self.program.name} {self.number}")
        run_dir, other = (place_of(self.program, self.shared), other_run(self.program, self.shared))
        shutil.rmtree(run_dir, ignore_errors=True)
        programs.log_of(run_dir).unlink(missing_ok=True)
        with _without_manifests(self.shared, moment in BARE):
            if moment != "about to begin":
                before = left_at(self.program, self.shared, moment)
                shutil.copytree(before, run_dir, symlinks=True)
            settings = dump(self.program.config(self.shared, run_dir))
            file = _chosen(run_dir, self.shared, settings, rng, self.number // len(MOMENTS))
            if file is None:
                return Verdict(True, "nothing to damage")
            kind = rng.choice(list(KINDS))
            inside = file.is_relative_to(run_dir)
            name = str(file.relative_to(run_dir if inside else self.shared))
            kept = _contents(file.parent)
            try:
                KINDS[kind](file, run_dir, other, rng)
                found = self._go_on(run_dir, file, kept, moment)
            finally:
                _put_back(file.parent, kept)
        return replace(found, detail=f"{kind} of {name}, {moment}; {found.detail}".strip("; "))

    def _go_on(self, run_dir: Path, file: Path, kept: dict[Path, bytes], moment: str) -> Verdict:
        damaged = _contents(file.parent)
        if damaged == kept:
            return Verdict(True, "no effect")
        process = programs.start(self.program, self.program.config(self.shared, run_dir))
        code = programs.ended(process)
        text = programs.log_of(run_dir).read_text(errors="replace")
        last = programs.last_line(run_dir)
        if "Traceback" in text:
            return Verdict(False, "stack trace", last)
        if code in (2, 3):
            one_line = last.startswith("error: ") and text.count("error: ") == 1
            return Verdict(one_line, "refused", last)
        if code != 0:
            return Verdict(False, f"exit {code}", last)
        places = self._differing(run_dir, moment)
        if not places:
            return Verdict(True, "repaired" if _is_named(file, run_dir, text) else "no effect")
        if damaged.items() <= _contents(file.parent).items() and is_found_out(file):
            _put_back(file.parent, kept)
            named = _is_named(file, run_dir, text)  # a page of a damaged run is not written
            if not set(self._differing(run_dir, moment)) - ({"-report.html"} if named else set()):
                return Verdict(True, "left for its reader to refuse")
        return Verdict(False, "silent", f"{', '.join(places)}; {last}"[:400])

    def _differing(self, run_dir: Path, moment: str) -> list[str]:
        """The places at which a run did not end as it should, but for what was set aside."""
        expected = expected_after(self.program, self.shared, moment)
        try:
            places = differing(self.program.digest(run_dir), expected)
        except Exception as error:  # noqa: BLE001  - a damaged file may be read in many ways
            return [f"unreadable: {error}"]
        return [place for place in places if "set-aside-" not in place]


def _is_named(file: Path, run_dir: Path, text: str) -> bool:
    """Whether the log names a file, or the folder that it is a part of."""
    places = {file, manifest_beside(file), file.parent} - {run_dir}
    return any(str(path) in text for path in places)


def _contents(folder: Path) -> dict[Path, bytes]:
    """The plain files of a folder."""
    return {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _put_back(folder: Path, contents: dict[Path, bytes]) -> None:
    """Lets the files that a folder had be in it again."""
    if folder.is_dir():
        for path, content in contents.items():
            path.write_bytes(content)


def is_found_out(file: Path) -> bool:
    """Whether whoever reads a damaged or missing file is told so."""
    folder = next((p for p in file.parents if (p / MANIFEST).is_file()), None)
    beside = manifest_beside(file)
    try:
        if file.suffix == ".manifest":
            read_manifest(file)
        elif beside.is_file():
            return not read_with_manifest(file)[2]
        elif folder is not None:
            verify_manifest(folder)
    except LactChainError:
        return True
    return not file.exists()


def _chosen(
    run_dir: Path, shared: Path, settings: str, rng: random.Random, number: int
) -> Path | None:
    """A file that is read back: kinds of files take turns, and one of each is drawn.

    None where there is none: a classic agent reads nothing before it begins.
    """
    kinds = defaultdict(list)
    read = (name for name in INPUTS if str(shared / name) in settings)
    inputs = [path for name in read for path in sorted((shared / name).rglob("*"))]
    for path in [*sorted(run_dir.rglob("*")), *inputs]:
        is_plain = path.is_file() and not path.is_symlink() and path.name[0] != "."
        if is_plain and not FOR_PEOPLE.search(path.as_posix()):
            base = run_dir if path.is_relative_to(run_dir) else shared
            kinds[re.sub(r"\d+", "0", str(path.relative_to(base)))].append(path)
    if not kinds:
        return None
    names = sorted(kinds)
    random.Random(0).shuffle(names)
    return rng.choice(kinds[names[number % len(names)]])


# --- kinds of damage ------------------------------------------------------------------------------


def _flip(file: Path, run_dir: Path, other: Path, rng: random.Random) -> None:
    content = bytearray(file.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def _cut(file: Path, run_dir: Path, other: Path, rng: random.Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content) or 1)])


def _remove(file: Path, run_dir: Path, other: Path, rng: random.Random) -> None:
    file.unlink()


def _swap(file: Path, run_dir: Path, other: Path, rng: random.Random) -> None:
    """Its content is that of another file of its kind, with the manifest beside it or without."""
    donors = _donors(file, run_dir, other)
    if not donors:
        return _flip(file, run_dir, other, rng)
    donor = rng.choice(donors)
    if rng.random() < 0.5 and manifest_beside(donor).is_file() and file.suffix != ".manifest":
        shutil.copyfile(manifest_beside(donor), manifest_beside(file))
    shutil.copyfile(donor, file)


def _swap_folder(file: Path, run_dir: Path, other: Path, rng: random.Random) -> None:
    """All of the folder, with its manifest, is another's."""
    folder = file.parent
    donors = [d.parent for d in _donors(file, run_dir, other) if (d.parent / MANIFEST).is_file()]
    if not (folder / MANIFEST).is_file() or not donors:
        return _swap(file, run_dir, other, rng)
    donor = rng.choice(donors)
    shutil.rmtree(folder)
    shutil.copytree(donor, folder)


KINDS: dict[str, Callable[[Path, Path, Path, random.Random], None]] = {
    "flip": _flip, "another flip": _flip, "cut": _cut, "swap": _swap, "swap of all": _swap_folder,
    "loss": _remove,
}  # fmt: skip


def _donors(file: Path, run_dir: Path, other: Path) -> list[Path]:
    """Files of the same kind, of another content: of the same run, and of another one."""
    if not file.is_relative_to(run_dir):
        return []
    kind = re.sub(r"\d+", "*", file.relative_to(run_dir).as_posix())
    found = [p for base in (run_dir, other) for p in sorted(base.glob(kind)) if p.is_file()]
    content = file.read_bytes()
    return [path for path in found if path.read_bytes() != content]


# --- runs that were left --------------------------------------------------------------------------


@dataclass
class StopAt:
    """Kills the process when it has given files their names so often; 0: counts them only."""

    number: int
    counter: Path
    count: int = 0

    def __call__(self) -> None:
        """From now on."""
        original = os.replace

        def replaced(*args: object, **kwargs: object) -> None:
            original(*args, **kwargs)
            self.count += 1
            if self.number == 0:
                self.counter.write_text(str(self.count))
            elif self.count == self.number:
                os.kill(os.getpid(), signal.SIGKILL)

        os.replace = replaced


def place_of(program: Program, shared: Path) -> Path:
    """Where the runs of a program are while they run: some write down where that is."""
    place = shared / "place" / program.name
    place.mkdir(parents=True, exist_ok=True)
    return place / "run"


@cache
def expected_after(program: Program, shared: Path, moment: str) -> Digest:
    """What a run ends with that is left at a moment and goes on, its files undamaged."""
    run_dir = place_of(program, shared)
    aside = run_dir.with_name("aside")
    if run_dir.exists():
        run_dir.rename(aside)
    if moment != "about to begin":
        shutil.copytree(left_at(program, shared, moment), run_dir, symlinks=True)
    programs.ended(programs.start(program, program.config(shared, run_dir)))
    found = program.digest(run_dir)
    shutil.rmtree(run_dir)
    if aside.exists():
        aside.rename(run_dir)
    return found


@cache
def left_at(program: Program, shared: Path, moment: str) -> Path:
    """The folder of a run that was killed at a moment, or has finished."""
    left = shared / "left" / program.name / moment.replace(" ", "_")
    number = max(2, _num_files(program, shared) * (MOMENTS.index(moment) + 1) // 4)
    stop = StopAt(0 if moment == "finished" else number, left.with_suffix(".count"))
    return _run_until(program, shared, left, stop)


def _run_until(program: Program, shared: Path, left: Path, stop: "StopAt", **changes: Any) -> Path:
    """A run that ends or is killed in its place, and then is moved to where it is left."""
    run_dir = place_of(program, shared)
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    left.parent.mkdir(parents=True, exist_ok=True)
    config = program.config(shared, run_dir)
    config = replace(config, run=replace(config.run, **changes))
    programs.ended(programs.start(program, config, before=stop))
    run_dir.rename(left)
    return left


@cache
def _num_files(program: Program, shared: Path) -> int:
    """How often a run gives a file its name."""
    counter = shared / f"{program.name}-count"
    whole = _run_until(
        program, shared, shared / "left" / program.name / "whole", StopAt(0, counter)
    )
    shutil.rmtree(whole)
    return int(counter.read_text())


@cache
def other_run(program: Program, shared: Path) -> Path:
    """A finished run of another seed."""
    other = shared / "left" / program.name / "other"
    return _run_until(program, shared, other, StopAt(0, other.with_suffix(".count")), seed=SEED)


class _without_manifests:  # noqa: N801  - read as a word
    """Takes the manifests of the models away, for as long as it lasts; most models have none."""

    def __init__(self, shared: Path, wanted: bool) -> None:
        self.files = [shared / name / MANIFEST for name in ("actor", "encoder") if wanted]

    def __enter__(self) -> None:
        for file in self.files:
            file.rename(file.with_name(".aside"))

    def __exit__(self, *_: object) -> None:
        for file in self.files:
            file.with_name(".aside").rename(file)
