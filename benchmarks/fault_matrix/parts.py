"""The matrix: what is done to which programs, how often, and a table of how it ended."""

from collections import Counter
from pathlib import Path
from typing import Any

from measuring import ARCHIVE, ROOT, markdown, put_between

from fault_matrix import damage, kills, malice, ranks, signals, surroundings
from fault_matrix.cases import Kind
from lactchain.storage.files import read_json_lines

MALICE = (
    "train_critic", "train_simpo", "train_mc", "collect_rollouts", "make_preferences", "evaluate",
    "train_ppo", "train_cql", "search_evolution", "search_language",
)  # fmt: skip
RANKS = ("train_critic", "train_simpo", "collect_rollouts", "make_preferences", "train_bc")
PARTS = {
    "kills": (
        Kind(2, "operation", 56, kills.killed_at),
        Kind(1, "random", 76, kills.killed),
    ),
    "signals": (Kind(11, "signal", 28, signals.stopped),),
    "damage": (Kind(4, "damage", 278, damage.damaged),),
    "malice": (Kind(23, "trap", 40, malice.attacked, MALICE),),
    "power": (Kind(2, "loss", 56, kills.cut),),
    "disk": (Kind(3, "disk", 30, surroundings.limited),),
    "surroundings": (Kind(26, "odd", len(surroundings.SURROUNDINGS), surroundings.odd),),
    "ranks": (Kind(12, "rank", 12, ranks.lose, RANKS),),
}


# --- the table -----------------------------------------------------------------------------------

PAGES = (ARCHIVE, ROOT / "docs/what_survives.md")
BEGIN = "<!-- made by benchmarks/faults.py table -->"
END = "<!-- end of the fault matrix -->"
HEADS = ("#", "what happens to a run", "what it does", "done by the benchmark", "harm", "tests")
ROWS = Path(__file__).with_name("rows.txt").read_text("utf-8").splitlines()
"""Of each row the number, what happens to a run, what it does then, and files of tests that attack
it beside the benchmark or in its place."""
Record = dict[str, Any]


def write_table(folder: Path) -> str:
    """The matrix of the results in a folder, also put between its marks on the pages."""
    records = [
        record for file in sorted(folder.glob("*.jsonl")) for record in read_json_lines(file)
    ]
    lines = matrix(records)
    for page in PAGES:
        put_between(page, BEGIN, END, lines)
    return "\n".join(lines)


def matrix(records: list[Record]) -> list[str]:
    """The table of rows, how much of it was done at which commits, and what did harm."""
    bad = [record for record in records if not record["ok"]]
    done = Counter(record["part"] for record in records).items()
    commits = dict.fromkeys(record["commit"] for record in records)
    return [
        *markdown(HEADS, [cells_of(row, records) for row in ROWS]),
        "",
        f"Faults done: {', '.join(f'{part} {count:,}' for part, count in done)}.",
        f"At the commits {', '.join(f'`{name}`' for name in commits)}; what was done at an earlier "
        "one is not done again at a later.",
        "",
        f"Harm was done by {len(bad)} of {len(records):,}{':' if bad else '.'}",
        *(["", *map(bad_line, bad)] if bad else []),
    ]


def cells_of(row: str, records: list[Record]) -> list[object]:
    """A line of the matrix."""
    number, fault, answer, tests = row.split(" | ")
    found = [record for record in records if record["row"] == int(number)]
    endings = Counter(record["ending"] for record in found if record["ok"])
    counted = "; ".join(f"{count:,} × {ending}" for ending, count in endings.most_common()) or "–"
    harm = sum(not record["ok"] for record in found) if found else "–"
    return [number, fault, answer, counted, harm, ", ".join(tests.split())]


def bad_line(record: Record) -> str:
    """What did harm, so that it can be found again."""
    detail = record["detail"].replace("`", "'")[:200]
    return f"- {record['part']}, {record['name']}: {record['ending']}: `{detail}`"
