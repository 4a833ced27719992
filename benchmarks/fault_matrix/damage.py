"""Files that a program reads back are damaged while it is away: flipped, cut, swapped, missing.

Each program is killed after a quarter, a half and three quarters of its files; or it has finished,
or is about to begin. Then a file of its run, or of the models and episodes that it reads, is
damaged, and the same command given: it refuses in one line that names the file, makes good what it
names, or ends as if nothing had been. What it leaves as it is must be refused by whoever reads it:
the next stage, the report, or, where no program reads it again, its manifest.
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
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fault_matrix import programs
from fault_matrix.cases import Case, Verdict
from fault_matrix.digests import STATE, Digest, differing, whole
from fault_matrix.programs import PROGRAMS, Program
from fault_matrix.readers import is_named, last_line, refusal, told_by_readers
from lactchain.config import dump
from lactchain.manifests import MANIFEST, RUN_FILE, manifest_beside
from lactchain.run_folder import has_produced

TITLE = "files are flipped, cut, swapped, or missing"
MOST = 5000
MOMENTS = ("quarter", "half", "three quarters", "finished", "about to begin")
BARE = ("half", "three quarters")
"""Moments of runs that began with models without manifests, as most models are."""
INPUTS = ("actor", "encoder", "episodes")
SEED = 1
"""Of the run that swapped files come from."""
OF_WHOLE_RUNS = ("-report.html", "-episode.gif")
"""Pages and pictures, which are not made of a damaged run."""
FOR_PEOPLE = re.compile(r"(README\.md|report\.html|\.gif|lock)$|(^|/)(minari|datasets|export)/")
"""What no program reads back."""


def moments_of(program: Program, shared: Path) -> tuple[str, ...]:
    """When files of a program can be damaged: what reads nothing has none before it begins."""
    return MOMENTS if inputs_of(program, shared) else MOMENTS[:-1]


def inputs_of(program: Program, shared: Path) -> list[Path]:
    """Folders that a program reads."""
    settings = dump(program.config(shared, place_of(program, shared)))
    return [shared / name for name in INPUTS if str(shared / name) in settings]


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
        moments = moments_of(self.program, self.shared)
        moment, turn = moments[self.number % len(moments)], self.number // len(moments)
        rng = random.Random(f"{self.program.name} {self.number}")
        run_dir, other = (place_of(self.program, self.shared), other_run(self.program, self.shared))
        shutil.rmtree(run_dir, ignore_errors=True)
        programs.log_of(run_dir).unlink(missing_ok=True)
        with _without_manifests(self.shared, moment in BARE):
            expected = expected_after(self.program, self.shared, moment)
            programs.log_of(run_dir).unlink(missing_ok=True)
            if moment != "about to begin":
                before = left_at(self.program, self.shared, moment)
                shutil.copytree(before, run_dir, symlinks=True)
            inputs = inputs_of(self.program, self.shared)
            if moment in BARE and not has_produced(run_dir):
                inputs = []  # it begins anew, and with what there is then
            file = _chosen(run_dir, inputs, rng, turn)
            inside = file.is_relative_to(run_dir)
            name = str(file.relative_to(run_dir if inside else self.shared))
            kept = _contents(file.parent)
            try:
                kind = _damage(file, run_dir, other, rng)
                touched = file.parent if kind == SWAP_OF_ALL else file
                found = self._go_on(run_dir, file, touched, moment, expected)
            finally:
                _put_back(file.parent, kept)
        return replace(found, detail=f"{kind} of {name}, {moment}; {found.detail}".strip("; "))

    def _go_on(
        self, run_dir: Path, file: Path, touched: Path, moment: str, expected: Digest
    ) -> Verdict:
        damaged = _content(file)
        config = self.program.config(self.shared, run_dir)
        code = programs.ended(programs.start(self.program, config))
        text = programs.log_of(run_dir).read_text(errors="replace")
        refused = refusal(code, text, file, run_dir)
        if refused is not None:
            return refused
        told = beyond_ordinary(self.program, self.shared, moment, text)
        named, is_same = is_named(file, run_dir, told), _content(file) == damaged
        places = self._differing(run_dir, expected)
        others = [place for place in places if not is_forgiven(file, touched, place, run_dir)]
        is_as_it_should_be = _is_in(expected, file, run_dir) and others == places
        is_left = is_same and not is_as_it_should_be
        if is_left:  # what was written anew must be as it should
            places = others
        if named:
            places = [place for place in places if place not in OF_WHOLE_RUNS]
            if file.name == RUN_FILE:  # what a run had read is not known any more
                places = [place for place in places if run_dir / place != file]
        if places:
            return Verdict(False, "silent", f"{', '.join(places)}; {last_line(text)}"[:400])
        if not is_left:
            return Verdict(
                True, "repaired" if named else "no effect" if is_same else "written anew"
            )
        if named:
            return Verdict(True, "named, and left as it is")
        if not file.is_relative_to(run_dir) or not file.parent.exists():
            return Verdict(True, "no effect")
        return told_by_readers(file, run_dir, self.shared)

    def _differing(self, run_dir: Path, expected: Digest) -> list[str]:
        """The places at which a run did not end as it should, but for what was set aside."""
        places = differing(self.program.digest(run_dir), expected)
        return [place for place in places if "set-aside-" not in place]


def _is_in(found: Digest, file: Path, run_dir: Path) -> bool:
    return file.is_relative_to(run_dir) and file.relative_to(run_dir).as_posix() in found


def beyond_ordinary(program: Program, shared: Path, moment: str, text: str) -> str:
    """What a run printed beyond one that nothing disturbed, whose lines name files as well."""
    ordinary = _ordinary_log(program, shared, moment).read_text(errors="replace")
    usual = set(ordinary.splitlines())
    return "\n".join(line for line in text.splitlines() if line not in usual)


def _ordinary_log(program: Program, shared: Path, moment: str) -> Path:
    """What a run printed that went on from a moment, its files undamaged; see `expected_after`."""
    return place_of(program, shared).with_name(f"{moment}.log")


def is_forgiven(file: Path, touched: Path, place: str, run_dir: Path) -> bool:
    """Whether a place of a digest may differ where a damaged file was left as it is.

    Args:
        touched: the file, or the folder that was damaged with it.
    """
    return is_of(touched, place, run_dir) or is_named_by(file, place, run_dir)


def is_of(file: Path, place: str, run_dir: Path) -> bool:
    """Whether a place of a digest tells of the file itself.

    That is so of manifests and checkpoints that it is a part of, of what lies under its temporary
    name, and of `environment.json`, where a run notes the models and data that it read.
    """
    if not file.is_relative_to(run_dir):
        return place.endswith("environment.json")
    name = file.relative_to(run_dir).as_posix()
    folder, found = place.lstrip("+-").partition(STATE)[0], run_dir / place.lstrip("+-")
    is_beside = found in (manifest_beside(file), file.with_name("summary.manifest"))
    is_above = file.is_relative_to(found.parent) and found.name == MANIFEST
    vouches = _is_manifest(found) and (is_beside or is_above)
    if found.is_relative_to(file) or found == file.with_name(f".{file.name}.tmp") or vouches:
        return True
    checkpoint = f"{folder}/checkpoint-{place.rpartition(' ')[2]}/"
    return STATE in place and f"{name}/".startswith(checkpoint)


def is_named_by(file: Path, place: str, run_dir: Path) -> bool:
    """Whether a manifest at a place holds in the run only that a file names: in the innermost."""
    found = run_dir / place.lstrip("+-")
    is_in_run = file.name == RUN_FILE and found.is_relative_to(file.parent)
    between = [p for p in found.parents if p.is_relative_to(file.parent) and p != file.parent]
    is_of_another = any((folder / RUN_FILE).is_file() for folder in between)
    return is_in_run and not is_of_another and _is_manifest(found)


def _is_manifest(path: Path) -> bool:
    return path.name == MANIFEST or path.suffix == ".manifest"


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def _contents(folder: Path) -> dict[Path, bytes]:
    """The plain files of a folder."""
    return {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _put_back(folder: Path, contents: dict[Path, bytes]) -> None:
    """Lets the files that a folder had be in it again."""
    if folder.is_dir():
        for path, content in contents.items():
            path.write_bytes(content)


def _chosen(run_dir: Path, inputs: list[Path], rng: random.Random, number: int) -> Path:
    """A file that is read back: kinds of files take turns, and one of each is drawn."""
    kinds = defaultdict(list)
    for base in (run_dir, *inputs):
        for path in sorted(base.rglob("*")):
            is_plain = path.is_file() and not path.is_symlink() and path.name[0] != "."
            if is_plain and not FOR_PEOPLE.search(path.as_posix()):
                name = path.relative_to(run_dir if base == run_dir else base.parent)
                kinds[re.sub(r"\d+", "0", str(name))].append(path)
    names = sorted(kinds)
    random.Random(0).shuffle(names)
    return rng.choice(kinds[names[number % len(names)]])


# --- kinds of damage ------------------------------------------------------------------------------


def _damage(file: Path, run_dir: Path, other: Path, rng: random.Random) -> str:
    """Damages a file, so that it is another one afterwards; the kind."""
    before = _content(file)
    while True:
        kind = rng.choice(list(KINDS))
        KINDS[kind](file, run_dir, other, rng)
        if _content(file) != before:
            return kind


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


SWAP_OF_ALL = "swap of all"
KINDS: dict[str, Callable[[Path, Path, Path, random.Random], None]] = {
    "flip": _flip, "another flip": _flip, "cut": _cut, "swap": _swap, SWAP_OF_ALL: _swap_folder,
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
    programs.log_of(run_dir).unlink(missing_ok=True)
    _end_with(0, program, programs.start(program, program.config(shared, run_dir)), run_dir)
    found = whole(program.digest(run_dir))
    programs.log_of(run_dir).replace(_ordinary_log(program, shared, moment))
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
    process = programs.start(program, config, before=stop)
    _end_with(-signal.SIGKILL if stop.number else 0, program, process, run_dir)
    run_dir.rename(left)
    return left


def _end_with(code: int, program: Program, process: BaseProcess, run_dir: Path) -> None:
    """Waits for an end that is expected; any other is a fault of what prepares a case."""
    found = programs.ended(process)
    if found != code:
        raise RuntimeError(
            f"{program.name}: expected exit {code}, got {found}: {programs.last_line(run_dir)}"
        )


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
