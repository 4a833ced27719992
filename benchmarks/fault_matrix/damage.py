"""Files that a program reads back are flipped, cut, swapped or missing while it is away.

Each program is killed after a quarter, a half and three quarters of its files; or it has finished,
or is about to begin. Then a file of its run, or of the models and episodes that it reads, is
damaged, and the same command given: it refuses in one line that names the file, makes good what it
names, or ends as if nothing had been. What it leaves as it is must be refused by whoever reads it:
the next stage, the report, or, where no program reads it again, its manifest.
"""

import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random

from fault_matrix.cases import Case, Verdict, bad, good
from fault_matrix.digests import STATE, Digest, differing, digest
from fault_matrix.processes import ended, last_line, said
from fault_matrix.programs import (
    BEGIN,
    FINISHED,
    MOMENTS,
    Program,
    fresh,
    inputs_of,
    left_at,
    prepared,
    put_back,
    run_until,
    undisturbed,
)
from fault_matrix.readers import is_named, refusal, told_by_readers
from lactchain.runs.folder import has_produced
from lactchain.storage.manifests import MANIFEST, RUN_FILE, manifest_beside

A_PROGRAM = 278
"""Cases of each."""
BARE = ("half", "three quarters")
"""Moments of runs that began with models without manifests, as most models are."""
OF_WHOLE_RUNS = ("-report.html", "-episode.gif")
"""Pages and pictures, which are not made of a damaged run."""
FOR_PEOPLE = re.compile(r"(README\.md|report\.html|\.gif|lock)$|(^|/)(minari|datasets|export)/")
"""What no program reads back."""


def cases(shared: Path, scale: float, names: list[str] | None = None) -> Iterator[Case]:
    """Damages in turn for each program."""
    programs = prepared(shared, names)
    for number in range(round(A_PROGRAM * scale) or 1):
        for name, program in programs.items():
            yield Case(4, name, f"{name}-{number}", partial(damaged, program, number))


def damaged(program: Program, number: int, folder: Path) -> Verdict:
    """One damage to one file of a program that was left at some moment."""
    inputs = inputs_of(program)
    moments = MOMENTS if inputs else MOMENTS[:-1]
    moment, turn = moments[number % len(moments)], number // len(moments)
    other, rng = other_run(program), Random(f"{program.name} {number}")
    with _without_manifests(program.shared, moment in BARE):
        expected = undisturbed(program, moment).digest
        run_dir = fresh(program, moment)
        if moment in BARE and not has_produced(run_dir):
            inputs = []  # it begins anew, and with what there is then
        file = _chosen(run_dir, inputs, rng, turn)
        inside = file.is_relative_to(run_dir)
        name = file.relative_to(run_dir if inside else program.shared)
        with nullcontext() if inside else put_back(file.parent, folder / "aside"):
            kind = _damage(file, run_dir, other, rng)
            touched = file.parent if KINDS[kind] == _swap_folder else file
            found = go_on(program, file, touched, moment, expected)
    return replace(found, detail=f"{kind} of {name}, {moment}; {found.detail}".strip("; "))


def go_on(program: Program, file: Path, touched: Path, moment: str, expected: Digest) -> Verdict:
    """What a program makes of a damaged file, or of a folder that was touched with it."""
    run_dir, content = program.place, _content(file)
    code, text = ended(program.start(run_dir)), said(run_dir)
    if refused := refusal(code, text, file, run_dir):
        return refused
    named = is_named(file, run_dir, beyond_ordinary(program, moment, text))
    is_same = _content(file) == content
    places = [p for p in differing(digest(run_dir), expected) if "set-aside-" not in p]
    others = [place for place in places if not is_forgiven(file, touched, place, run_dir)]
    is_in = file.is_relative_to(run_dir) and file.relative_to(run_dir).as_posix() in expected
    is_left = is_same and not (is_in and others == places)
    if is_left:  # what was written anew must be as it should
        places = others
    if named:
        places = [place for place in places if place not in OF_WHOLE_RUNS]
        if file.name == RUN_FILE:  # what a run had read is not known any more
            places = [place for place in places if run_dir / place != file]
    if places:
        return bad("silent", [*places, last_line(text)])
    if not is_left:
        return good("repaired" if named else "no effect" if is_same else "written anew")
    if named:
        return good("named, and left as it is")
    if not file.is_relative_to(run_dir) or not file.parent.exists():
        return good("no effect")
    return told_by_readers(file, run_dir, program.shared)


def beyond_ordinary(program: Program, moment: str, text: str) -> str:
    """What a run printed beyond one that nothing disturbed, whose lines name files as well."""
    usual = set(undisturbed(program, moment).log.splitlines())
    return "\n".join(line for line in text.splitlines() if line not in usual)


def is_forgiven(file: Path, touched: Path, place: str, run_dir: Path) -> bool:
    """Whether a place of a digest may differ where a damaged file was left as it is."""
    return is_of(touched, place, run_dir) or is_named_by(file, place, run_dir)


def is_of(file: Path, place: str, run_dir: Path) -> bool:
    """Whether a place of a digest tells of the file itself.

    That is so of manifests and checkpoints that it is a part of, of what lies under its temporary
    name, and of `environment.json`, where a run notes the models and data that it read.
    """
    if not file.is_relative_to(run_dir):
        return place.endswith(RUN_FILE)
    folder, found = place.lstrip("+-").partition(STATE)[0], run_dir / place.lstrip("+-")
    is_beside = found in (manifest_beside(file), file.with_name("summary.manifest"))
    is_above = file.is_relative_to(found.parent) and found.name == MANIFEST
    vouches = _is_manifest(found) and (is_beside or is_above)
    if found.is_relative_to(file) or found == file.with_name(f".{file.name}.tmp") or vouches:
        return True
    checkpoint = run_dir / folder / f"checkpoint-{place.rpartition(' ')[2]}"
    return STATE in place and file.is_relative_to(checkpoint)


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


def _chosen(run_dir: Path, inputs: list[Path], rng: Random, number: int) -> Path:
    """A file that is read back: kinds of files take turns, and one of each is drawn."""
    kinds = defaultdict(list)
    for base in (run_dir, *inputs):
        for path in sorted(base.rglob("*")):
            is_plain = path.is_file() and not path.is_symlink() and path.name[0] != "."
            if is_plain and not FOR_PEOPLE.search(path.as_posix()):
                name = path.relative_to(run_dir if base == run_dir else base.parent)
                kinds[re.sub(r"\d+", "0", str(name))].append(path)
    names = sorted(kinds)
    Random(0).shuffle(names)
    return rng.choice(kinds[names[number % len(names)]])


@cache
def other_run(program: Program) -> Path:
    """A finished run of another seed, and one of the same, which are made with all manifests."""
    left_at(program, FINISHED)
    undisturbed(program, BEGIN)
    return run_until(program, "other", 0, seed=1)


@contextmanager
def _without_manifests(shared: Path, wanted: bool) -> Iterator[None]:
    """Takes the manifests of the models away, for as long as it lasts; most models have none."""
    files = [shared / name / MANIFEST for name in ("actor", "encoder") if wanted]
    for file in files:
        file.rename(file.with_name(".aside"))
    try:
        yield
    finally:
        for file in files:
            file.with_name(".aside").rename(file)


# --- kinds of damage ------------------------------------------------------------------------------


def _damage(file: Path, run_dir: Path, other: Path, rng: Random) -> str:
    """Damages a file, so that it is another one afterwards; the kind."""
    before = _content(file)
    while True:
        kind = rng.choice(list(KINDS))
        KINDS[kind](file, run_dir, other, rng)
        if _content(file) != before:
            return kind


def _flip(file: Path, run_dir: Path, other: Path, rng: Random) -> None:
    content = bytearray(file.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def _cut(file: Path, run_dir: Path, other: Path, rng: Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content) or 1)])


def _remove(file: Path, run_dir: Path, other: Path, rng: Random) -> None:
    file.unlink()


def _swap(file: Path, run_dir: Path, other: Path, rng: Random) -> None:
    """Its content is that of another file of its kind, with the manifest beside it or without."""
    donors = _donors(file, run_dir, other)
    if not donors:
        return _flip(file, run_dir, other, rng)
    donor = rng.choice(donors)
    if rng.random() < 0.5 and manifest_beside(donor).is_file() and file.suffix != ".manifest":
        shutil.copyfile(manifest_beside(donor), manifest_beside(file))
    shutil.copyfile(donor, file)


def _swap_folder(file: Path, run_dir: Path, other: Path, rng: Random) -> None:
    """All of the folder, with its manifest, is another's."""
    folder = file.parent
    donors = [d.parent for d in _donors(file, run_dir, other) if (d.parent / MANIFEST).is_file()]
    if not (folder / MANIFEST).is_file() or not donors:
        return _swap(file, run_dir, other, rng)
    donor = rng.choice(donors)
    shutil.rmtree(folder)
    shutil.copytree(donor, folder)


KINDS: dict[str, Callable[[Path, Path, Path, Random], None]] = {
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
