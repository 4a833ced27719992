"""Files that somebody has made to do harm, in the place of those that a program reads back.

Their manifests are forged, so that no checksum tells. An audit hook listens in the program's
process, and the file system tells what native code writes: nothing of a file is run or imported,
and nothing is read or written outside of the run. A program that goes on over a bad file of its run
must end as if it had not been there; a model may say what it likes.
"""

import re
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

from fault_matrix.cases import Verdict, bad, good
from fault_matrix.damage import files_by_kind, identity, made_of
from fault_matrix.digests import CANARY
from fault_matrix.evil import Put, traps
from fault_matrix.processes import ended, said
from fault_matrix.programs import BEGIN, Program, end_of, put_back
from fault_matrix.watch import Watch
from lactchain.errors import LactChainError
from lactchain.storage import manifests
from lactchain.storage.manifests import MANIFEST, manifest_beside, read_manifest

PATIENCE = 40.0
MOMENT = "half"
NOT_READ = re.compile(r"(README\.md|report\.html|\.gif)$|(^|/)(minari|datasets)/")
OWN = {"schema_version", "run_id", "place", "files", "size", "sha256"}


def attacked(program: Program, number: int, folder: Path) -> Verdict:
    """One bad file in a run that was left in the middle, or in a model that it reads."""
    name, trap, put = chosen(program)[number]
    is_own = (program.left_at(MOMENT) / name).exists()
    moment = MOMENT if is_own else BEGIN
    expected = program.undisturbed(moment).digest
    run_dir, outside = program.fresh(moment), folder / "outside"  # which no program may look into
    (outside / "folder").mkdir(parents=True)
    (outside / "secret.json").write_text("{}")
    file = (run_dir if is_own else program.shared) / name
    with nullcontext() if is_own else put_back(file.parent, folder / "aside"):
        lay(file, put, outside)
        laid, temporary = identity(file), file.with_name(f".{file.name}.tmp")
        found = go_on(program, outside, folder / "notes")
        if temporary.is_symlink():
            temporary.unlink()
        if found.ending == "exit 0" and is_own:
            made = made_of(program, file, file, laid, MOMENT, expected)
            found = made or good("did nothing")
    return replace(found, detail=f"{trap}, {name}; {found.detail}".strip("; "))


def go_on(program: Program, outside: Path, notes: Path) -> Verdict:
    """Whether a program does what it may not, and how it ends."""
    run_dir = program.place
    around = stamps(outside) | stamps(program.shared, run_dir.parent)
    process = program.start(run_dir, before=Watch(run_dir.parent, outside, notes, CANARY))
    code, text = ended(process, PATIENCE), said(run_dir)
    if told := notes.read_text(errors="replace") if notes.exists() else "":
        return bad("broke out", told.splitlines()[0])
    after = stamps(outside) | stamps(program.shared, run_dir.parent)
    if other := after.items() ^ around.items():
        return bad("wrote elsewhere", sorted(other))
    found = good("exit 0" if code == 0 else "refused")
    return end_of(text, code, (0, 2, 3, 5)) or found


def stamps(top: Path, left_out: Path | None = None) -> dict[str, tuple[int, ...]]:
    """Sizes and times of all files below a folder, but for those below another."""
    found = (path for path in top.rglob("*") if left_out not in path.parents)
    return {str(path): identity(path)[1:] for path in found if not path.is_dir()}


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
        manifests.write_with_manifest(file, file.read_bytes(), facts)
    elif manifest and file.name != MANIFEST:
        if file.parent == described:
            code = f"open({str(outside / 'executed')!r}, 'w')\nclass Evil: pass\n"
            (described / f"{CANARY}.py").write_text(code)
        manifests.write_manifest(described, {k: v for k, v in manifest.items() if k not in OWN})


@cache
def chosen(program: Program) -> list[tuple[str, str, Put]]:
    """Bad files for a program: each kind of file in turn gets each trap that fits it."""
    left = program.left_at(MOMENT)
    read = [(left, left), *((program.shared, folder) for folder in program.inputs)]
    found = []
    for path, *_ in files_by_kind(read, NOT_READ).values():
        is_own = path.is_relative_to(left)
        name = path.relative_to(left if is_own else program.shared).as_posix()
        for trap, put in traps(path):
            if is_own or not trap.startswith("link"):  # models are often links
                found.append((name, trap, put))
    Random(program.name).shuffle(found)
    return found
