"""Who reads the files of a run, and whether they are told that one is damaged."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

from fault_matrix.cases import Verdict, bad, good
from fault_matrix.processes import ended, last_line, log_of, said, start
from fault_matrix.programs import PROGRAMS
from lactchain.errors import LactChainError
from lactchain.storage.manifests import (
    MANIFEST,
    manifest_beside,
    read_with_manifest,
    verify_manifest,
)

REPORT = "the report"
READ = (".parquet", ".safetensors")
"""Names of files end so that a stage is bound to read."""
NEXT = {
    "actor": ("evaluate", "model"), "values": ("evaluate", "values"),
    "critic": ("make_preferences", "critic"), "trajectories": ("train_mc", "trajectories"),
    "pairs": ("train_simpo", "pairs"),
}  # fmt: skip
"""Stages that read what others have written, by the name of the folder, and their setting."""


def refusal(code: int | None, text: str, file: Path, run_dir: Path) -> Verdict | None:
    """How a program that printed this has refused a damaged file; None where it ended with 0."""
    last = last_line(text)
    if "Traceback" in text:
        return bad("stack trace", last)
    if code == 0:
        return None
    if code not in (2, 3):
        return bad(f"exit {code}", last)
    if not (last.startswith("error: ") and text.count("error: ") == 1):
        return bad("refused in more than a line", last)
    named = is_named(file, run_dir, last)
    return good("refused") if named else bad("refused without its name", last)


def is_named(file: Path, run_dir: Path, text: str) -> bool:
    """Whether a text names a file, what its manifest describes, or the folder that it is in.

    That is by the whole path, or, of the models and data that a run reads, by the setting.
    """
    names = {file, *file.parent.glob(f"{file.stem}.*")}
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
            described = next(p for p in file.parent.glob(f"{file.stem}.*") if p != file)
            return not read_with_manifest(described)[2]
        if manifest_beside(file).is_file():
            return not read_with_manifest(file)[2]
        if folder is not None or file.name == MANIFEST:
            verify_manifest(folder or file.parent)
    except LactChainError:
        return True
    return False
