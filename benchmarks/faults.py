"""Attacks every program with every fault of the matrix, and prints what came of it.

python benchmarks/faults.py kills signals --minutes 30
python benchmarks/faults.py kills --programs train_critic,search_evolution --scale 0.1
python benchmarks/faults.py table

Each part goes on where it was: what stands in its file of results is not done again. Everything
happens on this machine, in temporary folders (TMPDIR says where) and in the folder of results.
"""

import runpy
import shutil
import sys
from pathlib import Path

from measuring import ROOT, command_line

sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests"), str(ROOT)]


def main() -> None:
    runpy.run_path(str(ROOT / "tests" / "conftest.py"))  # no network, one thread
    from fault_matrix.parts import PARTS, write_table

    parser = command_line(__doc__)
    parser.add_argument("parts", nargs="+", choices=[*PARTS, "all", "table"])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full counts")
    parser.add_argument("--folder", type=Path, default=Path("runs/faults"))
    parser.add_argument("--minutes", type=float, default=1e9, help="for all parts together")
    parser.add_argument("--programs", help="only these, with commas between them")
    given = parser.parse_args()
    parts = [part for part in PARTS if part in given.parts or "all" in given.parts]
    programs = given.programs.split(",") if given.programs else None
    for part in parts:
        attack(part, given.folder.absolute(), given.scale, given.minutes / len(parts), programs)
    if "table" in given.parts:
        print(write_table(given.folder))


def attack(part: str, folder: Path, scale: float, minutes: float, names: list[str] | None) -> None:
    """Goes on with a part; its results are lines of FOLDER/PART.jsonl."""
    from fault_matrix.cases import cases_of, run_part
    from fault_matrix.parts import PARTS
    from fault_matrix.programs import prepared

    shared = folder / "shared" / part
    shutil.rmtree(shared, ignore_errors=True)  # made by the code as it was then
    shared.mkdir(parents=True)
    cases = cases_of(PARTS[part], prepared(shared, names), scale)
    print(f"{part}: {dict(run_part(part, cases, folder / f'{part}.jsonl', minutes))}", flush=True)


if __name__ == "__main__":
    main()
