"""Files that a program reads back are flipped, cut, swapped or missing while it is away.

Each program is killed after a quarter, a half and three quarters of its files; or it has finished,
or is about to begin. Then a file of its run, or of the models and episodes that it reads, is
damaged, and the same command given: it refuses in one line that names the file, makes good what it
names, or ends as if nothing had been. What it leaves as it is must be refused by whoever reads it:
the next stage, the report, or, where no program reads it again, its manifest.
"""

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random

from fault_matrix.cases import Verdict, bad, good
from fault_matrix.digests import STATE, Digest, differing, digest
from fault_matrix.processes import ended, last_line, log_of, said, start
from fault_matrix.programs import BEGIN, FINISHED, MOMENTS, PROGRAMS, Program, end_of, put_back
from lactchain.errors import LactChainError
from lactchain.runs.folder import has_produced
from lactchain.storage import manifests
from lactchain.storage.manifests import MANIFEST, RUN_FILE, manifest_beside

BARE = ("half", "three quarters")
"""Moments of runs that began with models without manifests, as most models are."""
OF_WHOLE_RUNS = ("-report.html", "-episode.gif")
"""Pages and pictures, which are not made of a damaged run."""
FOR_PEOPLE = re.compile(r"(README\.md|report\.html|\.gif|lock)$|(^|/)(minari|datasets|export)/")
"""What no program reads back."""
REPORT = "the report"
READ = (".parquet", ".safetensors")
"""Names of files end so that a stage is bound to read."""
NEXT = {
    "actor": ("evaluate", "model"), "values": ("evaluate", "values"),
    "critic": ("make_preferences", "critic"), "trajectories": ("train_mc", "trajectories"),
    "pairs": ("train_simpo", "pairs"),
}  # fmt: skip
"""Stages that read what others have written, by the name of the folder, and their setting."""
KINDS = ("flip", "another flip", "cut", "swap", "swap of all", "loss")


def damaged(program: Program, number: int, folder: Path) -> Verdict:
    """One damage to one file of a program that was left at some moment."""
    inputs = program.inputs
    moments = MOMENTS if inputs else MOMENTS[:-1]
    moment, turn = moments[number % len(moments)], number // len(moments)
    other, rng = other_run(program), Random(f"{program.name} {number}")
    with _without_manifests(program.shared, moment in BARE):
        expected = program.undisturbed(moment).digest
        run_dir = program.fresh(moment)
        if moment in BARE and not has_produced(run_dir):
            inputs = []  # it begins anew, and with what there is then
        kinds = files_by_kind([(run_dir, run_dir), *((i.parent, i) for i in inputs)], FOR_PEOPLE)
        names = sorted(kinds)
        Random(0).shuffle(names)
        file = rng.choice(kinds[names[turn % len(names)]])
        inside = file.is_relative_to(run_dir)
        name = file.relative_to(run_dir if inside else program.shared)
        with nullcontext() if inside else put_back(file.parent, folder / "aside"):
            donors = _donors(file, run_dir, other) if inside else []
            kind, touched = _damage(file, donors, rng)
            found = go_on(program, file, touched, moment, expected)
    return replace(found, detail=f"{kind} of {name}, {moment}; {found.detail}".strip("; "))


def go_on(program: Program, file: Path, touched: Path, moment: str, expected: Digest) -> Verdict:
    """What a program makes of a damaged file, or of a folder that was touched with it."""
    run_dir, laid = program.place, identity(file)
    code, text = ended(program.start(run_dir)), said(run_dir)
    if refused := refusal(code, text, file, run_dir):
        return refused
    if found := made_of(program, file, touched, laid, moment, expected):
        return found
    if not file.is_relative_to(run_dir) or not file.parent.exists():
        return good("no effect")
    return told_by_readers(file, run_dir, program.shared)


def made_of(
    program: Program, file: Path, touched: Path, laid: object, moment: str, expected: Digest
) -> Verdict | None:
    """What a program that went on has made of a bad file; None: it left it, and said nothing.

    Args:
        laid: the identity of the bad file; what stays where it was is forgiven.
    """
    run_dir = program.place
    usual = set(program.undisturbed(moment).log.splitlines())  # which names files as well
    told = "\n".join(line for line in said(run_dir).splitlines() if line not in usual)
    named = is_named(file, run_dir, told)
    is_same = identity(file) == laid
    places = [p for p in differing(digest(run_dir), expected) if "set-aside-" not in p]
    others = [p for p in places if not is_of(touched, p, run_dir)]
    others = [p for p in others if not is_named_by(file, p, run_dir)]
    is_in = file.is_relative_to(run_dir) and file.relative_to(run_dir).as_posix() in expected
    is_left = is_same and not (is_in and others == places)
    if is_left:  # what was written anew must be as it should
        places = others
    if named:
        places = [place for place in places if place not in OF_WHOLE_RUNS]
        if file.name == RUN_FILE:  # what a run had read is not known any more
            places = [place for place in places if run_dir / place != file]
    if places:
        return bad("silent", [*places, last_line(said(run_dir))])
    if not is_left:
        return good("repaired" if named else "no effect" if is_same else "written anew")
    return good("named, and left as it is") if named else None


def identity(file: Path) -> tuple[int, ...] | None:
    """Which file is at a place, whatever its kind."""
    if not os.path.lexists(file):
        return None
    status = file.lstat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def is_of(file: Path, place: str, run_dir: Path) -> bool:
    """Whether a place of a digest tells of the file itself.

    That is so of manifests and checkpoints that it is a part of, of what lies under its temporary
    name, and of `environment.json`, where a run notes the models and data that it read.
    """
    if not file.is_relative_to(run_dir):
        return place.endswith(RUN_FILE)
    folder, found = place.lstrip("+-").partition(STATE)[0], run_dir / place.lstrip("+-")
    is_beside = found in (manifest_beside(file), file.with_name("_summary.manifest"))
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


def files_by_kind(
    folders: Iterable[tuple[Path, Path]], left_out: re.Pattern
) -> dict[str, list[Path]]:
    """The plain files below folders, each with what its names count from; digits make no kind."""
    kinds = defaultdict(list)
    for base, folder in folders:
        for path in sorted(folder.rglob("*")):
            is_plain = path.is_file() and not path.is_symlink() and path.name[0] != "."
            if is_plain and not left_out.search(path.relative_to(base).as_posix()):
                kinds[_kind(path, base, "0")].append(path)
    return kinds


def _kind(path: Path, base: Path, digits: str) -> str:
    return re.sub(r"\d+", digits, path.relative_to(base).as_posix())


@cache
def other_run(program: Program) -> Path:
    """A finished run of another seed, and one of the same, which are made with all manifests."""
    program.left_at(FINISHED)
    program.undisturbed(BEGIN)
    return program.run_until("other", 0, seed=1)


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


def _donors(file: Path, run_dir: Path, other: Path) -> list[Path]:
    """Files of the same kind, of another content: of the same run, and of another one."""
    kind, content = _kind(file, run_dir, "*"), file.read_bytes()
    found = [p for base in (run_dir, other) for p in sorted(base.glob(kind)) if p.is_file()]
    return [path for path in found if path.read_bytes() != content]


def _damage(file: Path, donors: list[Path], rng: Random) -> tuple[str, Path]:
    """Damages a file, so that it is another one afterwards; the kind, and what was touched."""
    before = file.read_bytes()
    wholes = [d for d in donors if all((f.parent / MANIFEST).is_file() for f in (d, file))]
    while file.is_file() and file.read_bytes() == before:
        kind, size = rng.choice(KINDS), len(before)
        if kind == "loss":
            file.unlink()
        elif kind == "cut":
            file.write_bytes(before[: rng.randrange(size or 1)])
        elif kind == "swap of all" and wholes:  # the folder, with its manifest, is another's
            donor = rng.choice(wholes).parent
            shutil.rmtree(file.parent)
            shutil.copytree(donor, file.parent)
            return kind, file.parent
        elif kind.startswith("swap") and donors:  # with the manifest beside it, or without
            donor = rng.choice(donors)
            beside = manifest_beside(donor)
            if rng.random() < 0.5 and beside.is_file() and file.suffix != ".manifest":
                shutil.copyfile(beside, manifest_beside(file))
            shutil.copyfile(donor, file)
        elif size:
            place = rng.randrange(size)
            flipped = bytes([before[place] ^ 1 << rng.randrange(8)])
            file.write_bytes(before[:place] + flipped + before[place + 1 :])
    return kind, file


# --- who reads the files of a run -----------------------------------------------------------------


def refusal(code: int | None, text: str, file: Path, run_dir: Path) -> Verdict | None:
    """How a program that printed this has refused a damaged file; None where it ended with 0."""
    if (wrong := end_of(text, code, (0, 2, 3))) or code == 0:
        return wrong
    last = last_line(text)
    if text.count("error: ") != 1:
        return bad("refused in more than a line", last)
    named = is_named(file, run_dir, last)
    return good("refused") if named else bad("refused without its name", last)


def is_named(file: Path, run_dir: Path, text: str) -> bool:
    """Whether a text names a file, what its manifest describes, or the folder that it is in.

    That is by the whole path, or, of the models and data that a run reads, by the setting.
    """
    names = {file, *file.parent.glob(f"{file.stem.removeprefix('_')}.*")}
    if file.parent != run_dir:
        names.add(file.parent)
    is_there = any(re.search(rf"{re.escape(str(name))}($|[\s:;,/)])", text) for name in names)
    return is_there or f"{file.name} of " in text


def told_by_readers(file: Path, run_dir: Path, shared: Path) -> Verdict:
    """Whether whoever reads a damaged file of a run is told: a program, or else its manifest."""
    place = shared / "reading"
    for name, process in _readers(file, run_dir, shared, place):
        code, text = ended(process), said(place)
        shutil.rmtree(place, ignore_errors=True)
        log_of(place).unlink()
        if found := refusal(code, text, file, run_dir):
            return replace(found, ending=f"{found.ending} by {name}")
        if is_named(file, run_dir, text):
            return good(f"named by {name}")
        if name != REPORT and file.suffix in READ:
            return bad(f"believed by {name}", last_line(text))
    if _is_found_out(file):
        return good("left as it is, its manifest tells")
    return bad("believed", "nobody says that it is damaged")


def _readers(
    file: Path, run_dir: Path, shared: Path, place: Path
) -> Iterator[tuple[str, BaseProcess]]:
    """Programs that read a file of a run, each begun when it is asked for.

    A stage's checkpoints are read by nobody but the stage.
    """
    for folder in file.parents:
        is_of_next = "checkpoints" not in file.relative_to(folder).parts
        if folder.name in NEXT and folder.is_relative_to(run_dir) and is_of_next:
            yield "the next stage", _next_stage(folder, shared, place)
    page = ["--run_dir", str(run_dir), "--output", f"{place}.html"]
    yield REPORT, start("report", page, log_of(place))


def _next_stage(folder: Path, shared: Path, place: Path) -> BaseProcess:
    name, setting = NEXT[folder.name]
    program = replace(PROGRAMS[name], shared=shared)
    config, read = program.config(place), str(folder)
    if name == "evaluate":  # an actor may be whole, or an adapter, and values guide one
        setting = "adapter" if (folder / "adapter_config.json").exists() else setting
        return program.start(place, replace(config, actor=replace(config.actor, **{setting: read})))
    return program.start(place, replace(config, **{setting: read}))


def _is_found_out(file: Path) -> bool:
    """Whether the checksums of a file say that it is damaged, or that it is missing."""
    folder = next((p for p in file.parents if (p / MANIFEST).is_file()), None)
    try:
        if file.suffix == ".manifest":
            described = next(file.parent.glob(f"{file.stem.removeprefix('_')}.*"))
            return not manifests.read_with_manifest(described)[2]
        if manifest_beside(file).is_file():
            return not manifests.read_with_manifest(file)[2]
        if folder is not None or file.name == MANIFEST:
            manifests.verify_manifest(folder or file.parent)
    except LactChainError:
        return True
    return False
