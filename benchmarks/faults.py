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
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests"), str(ROOT)]
PARTS = (
    "kills", "signals", "damage", "malice", "power", "disk", "configurations", "worlds", "ranks",
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
    parts = [part for part in PARTS if part in given.parts or "all" in given.parts]
    programs = given.programs.split(",") if given.programs else None
    for part in parts:
        attack(part, given.folder.absolute(), given.scale, given.minutes / len(parts), programs)
    if "table" in given.parts:
        from fault_matrix.table import write_table

        print(write_table(given.folder))


def attack(part: str, folder: Path, scale: float, minutes: float, names: list[str] | None) -> None:
    """Goes on with a part; its results are lines of FOLDER/PART.jsonl."""
    from fault_matrix.cases import run_part

    module = importlib.import_module(f"fault_matrix.{part}")
    print(f"{part}: {module.__doc__.splitlines()[0]}", flush=True)
    shared = folder / "shared" / part
    shutil.rmtree(shared, ignore_errors=True)  # made by the code as it was then
    shared.mkdir(parents=True)
    if names is None:
        (folder / f"{part}.plan").write_text(f"{sum(1 for _ in module.cases(shared, 1.0))}\n")
    cases = module.cases(shared, scale, names)
    print(f"{part}: {dict(run_part(part, cases, folder / f'{part}.jsonl', minutes))}", flush=True)


if __name__ == "__main__":
    main()
