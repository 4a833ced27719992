"""Attacks every program with every fault of the matrix, and prints what came of it.

python benchmarks/faults.py kills signals --minutes 30
python benchmarks/faults.py kills --programs train_critic,search_tpe --scale 0.1
python benchmarks/faults.py table

Each part goes on where it was: what stands in its file of results is not done again. Everything
happens on this machine, in temporary folders (TMPDIR says where) and in the folder of results.
"""

import argparse
import importlib
import runpy
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests"), str(ROOT)]
PARTS = (
    "kills", "signals", "damage", "malice", "power", "disk", "texts", "configurations", "worlds",
    "ranks",
)  # fmt: skip


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("parts", nargs="+", choices=[*PARTS, "all", "table"])
    arguments.add_argument("--scale", type=float, default=1.0, help="share of the full counts")
    arguments.add_argument("--folder", type=Path, default=Path("runs/faults"))
    arguments.add_argument("--minutes", type=float, default=1e9, help="for all parts together")
    arguments.add_argument("--programs", help="only these, with commas between them")
    given = arguments.parse_args()
    runpy.run_path(str(ROOT / "tests" / "conftest.py"))  # no network, one thread
    folder = given.folder.absolute()
    parts = PARTS if "all" in given.parts else given.parts
    programs = given.programs.split(",") if given.programs else None
    for part in parts:
        if part != "table":
            attack(part, folder, given.scale, given.minutes / len(parts), programs)
    if "table" in parts:
        from fault_matrix.table import write_table

        print(write_table(folder))


def attack(
    part: str, folder: Path, scale: float, minutes: float, programs: list[str] | None
) -> None:
    """Goes on with a part; its results are lines of FOLDER/PART.jsonl."""
    from fault_matrix.cases import run_part
    from fault_matrix.programs import PROGRAMS

    for name in set(PROGRAMS) - set(programs or PROGRAMS):
        del PROGRAMS[name]  # nothing of them is even prepared
    module = importlib.import_module(f"fault_matrix.{part}")
    print(f"{part}: {module.TITLE}", flush=True)
    shared = folder / "shared" / part
    shutil.rmtree(shared, ignore_errors=True)  # made by the code as it was then
    shared.mkdir(parents=True)
    if programs is None:
        (folder / f"{part}.plan").write_text(f"{sum(1 for _ in module.cases(shared, 1.0))}\n")
    cases = of_programs(module.cases(shared, scale), programs)
    endings = run_part(part, cases, folder / f"{part}.jsonl", minutes)
    print(f"{part}: {dict(endings)}", flush=True)


def of_programs(cases: Iterable, programs: list[str] | None) -> Iterator:
    """Those of some programs; None: of all."""
    return (case for case in cases if programs is None or case.program in programs)


if __name__ == "__main__":
    main()
