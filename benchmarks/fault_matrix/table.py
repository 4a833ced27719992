"""The matrix of faults as a table: what was done, how it ended, and which tests do the rest."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lactchain.files import read_json_lines

ROOT = Path(__file__).parent.parent.parent
PAGES = (ROOT / "benchmarks" / "RESULTS_ARCHIVE.md", ROOT / "docs" / "what_survives.md")
BEGIN = "<!-- made by benchmarks/faults.py table -->\n"
END = "<!-- end of the fault matrix -->\n"
Record = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A row of the matrix.

    Attributes:
        fault: what happens to a run.
        answer: what the run does then.
        tests: files of tests that attack it, beside the benchmark or in its place.
    """

    fault: str
    answer: str
    tests: tuple[str, ...] = ()


ROWS = {
    1: Row(
        "killed (SIGKILL) at any time",
        "the same command ends with the same bits",
        ("scripts_interrupted", "baseline_runs", "search_runs"),
    ),
    2: Row(
        "killed at any file operation, files half written, power lost",
        "each file is the old one or the new one",
        ("checkpoints", "files"),
    ),
    3: Row(
        "disk full or read-only, no inodes, quota",
        "one line with what is missing (exit 5); with room it goes on",
        ("disk_failures",),
    ),
    4: Row(
        "a file cut, flipped, missing, swapped",
        "refused or made again, by name",
        ("checkpoints", "read_back", "run_records"),
    ),
    5: Row(
        "stale folders, strays, two processes on one run",
        "left alone and named; the second process is refused",
        ("checkpoints", "run"),
    ),
    6: Row(
        "cut at every step, also within one and in evaluations",
        "the same bits",
        ("resume_exactness", "baseline_runs", "search_runs"),
    ),
    7: Row(
        "random states missing, other threads or processes",
        "refused, with what differs",
        ("trainers", "training_faults"),
    ),
    8: Row(
        "the configuration changed before going on",
        "harmless keys are told, others refused; any text is a line (exit 2)",
        ("run", "config"),
    ),
    9: Row(
        "NaN or infinite losses, gradients, rewards, observations",
        "all processes stop before the step (exit 4, in text worlds 6)",
        ("nonfinite", "training_faults"),
    ),
    10: Row(
        "episodes of one step or none, equal or huge returns",
        "figures stay finite",
        ("losses", "returns", "critic_targets"),
    ),
    11: Row(
        "SIGTERM or SIGINT at any time, once or twice",
        "saved within 10 seconds (exit 143, 130); goes on exactly",
        ("scripts_interrupted", "launch"),
    ),
    12: Row(
        "one of two processes killed, stopped, raising, leaving",
        "all end within 20 seconds and name it; nothing is lost",
        ("peers", "two_processes"),
    ),
    13: Row(
        "an environment hangs or raises",
        "a line with seed and action (exit 6); with a mended one it goes on",
        ("patience", "baseline_runs"),
    ),
    14: Row(
        "a tracker fails",
        "one warning; the local metrics are whole",
        ("trainer_guards", "baseline_runs"),
    ),
    15: Row(
        "an environment breaks the rules of its interface",
        "a line that names the rule",
        ("baseline_checks", "text_worlds"),
    ),
    16: Row("any text as an answer", "a chain or a reason, never an error", ("extractors",)),
    17: Row(
        "an illegal answer with legal words around it",
        "refused, nothing is put in its place",
        ("extractors",),
    ),
    18: Row(
        "broken Unicode, control characters, markup, special tokens",
        "kept letter for letter",
        ("prompting", "report_figures", "console"),
    ),
    19: Row("answers that never end", "cut and counted", ("decoding", "movement")),
    20: Row(
        "nothing to prefer: ties, equal answers",
        "left out and counted; a line where none is left",
        ("preferences", "training_rows"),
    ),
    21: Row("a damaged file of episodes", "named (exit 3), or made again", ("trajectory_files",)),
    22: Row(
        "actor, base, tokenizer, critic that do not belong together",
        "refused (exit 3)",
        ("loading", "run_records"),
    ),
    23: Row(
        "malicious files: pickles, paths, links, bombs, code",
        "refused; nothing is run, or written elsewhere",
        ("loading", "read_back"),
    ),
    24: Row(
        "HTML and scripts in texts and names",
        "shown as text",
        ("report_figures", "explorer", "types"),
    ),
    25: Row(
        "secrets in environment, command, URLs",
        "in no file, log or card",
        ("run_records", "model_cards"),
    ),
}


def write_table(folder: Path) -> str:
    """The matrix of the results in a folder, also put between its marks on the pages."""
    text = matrix(read_results(folder), read_plans(folder))
    for page in PAGES:
        page.write_text(with_table(page.read_text("utf-8"), text), "utf-8")
    return text


def read_results(folder: Path) -> list[Record]:
    """The results of all parts."""
    return [record for file in sorted(folder.glob("*.jsonl")) for record in read_json_lines(file)]


def read_plans(folder: Path) -> dict[str, int]:
    """How many cases each part has at its full scale."""
    return {file.stem: int(file.read_text()) for file in sorted(folder.glob("*.plan"))}


def matrix(records: Iterable[Record], plans: Mapping[str, int]) -> str:
    """The table of rows, that of programs, how much of it was done, and what did harm."""
    records = list(records)
    bad = [record for record in records if not record["ok"]]
    lines = [
        "| # | what happens to a run | what it does | done by the benchmark | harm | tests |",
        "|---|---|---|---|---|---|",
        *(row_line(n, row, [r for r in records if r["row"] == n]) for n, row in ROWS.items()),
        "",
        *program_lines(records),
    ]
    lines += ["", *done_lines(records, plans)] if records else []
    lines += ["", f"Harm was done by {len(bad)} of {len(records):,}{':' if bad else '.'}"]
    lines += ["", *map(bad_line, bad)] if bad else []
    return "\n".join(lines) + "\n"


def row_line(number: int, row: Row, records: list[Record]) -> str:
    """A line of the matrix."""
    endings = Counter(r["ending"] for r in records if r["ok"])
    counted = "; ".join(f"{count:,} × {ending}" for ending, count in endings.most_common()) or "–"
    harm = sum(not record["ok"] for record in records) if records else "–"
    tests = ", ".join(f"{name} ({num_tests(name)})" for name in row.tests)
    return f"| {number} | {row.fault} | {row.answer} | {counted} | {harm} | {tests} |"


def num_tests(name: str) -> int:
    """The tests in a file, without their parameters."""
    tree = ast.parse((ROOT / "tests" / f"test_{name}.py").read_text("utf-8"))
    functions = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return sum(name.startswith("test_") for name in functions)


def program_lines(records: list[Record]) -> list[str]:
    """A table of programs: how many cases of each part ended well."""
    parts = sorted({record["part"] for record in records})
    cells: dict[str, Counter[tuple[str, bool]]] = defaultdict(Counter)
    for record in records:
        cells[record["program"]][record["part"], record["ok"]] += 1
    if not parts:
        return []
    return [
        f"| without harm, of all | {' | '.join(parts)} |",
        f"|{'---|' * (len(parts) + 1)}",
        *(f"| {name} | {cells_of(parts, cells[name])} |" for name in sorted(cells)),
    ]


def cells_of(parts: list[str], counts: Counter[tuple[str, bool]]) -> str:
    """The cells of a program."""
    found = ((counts[part, True], counts[part, False]) for part in parts)
    return " | ".join(f"{good:,} of {good + bad:,}" if good + bad else "" for good, bad in found)


def done_lines(records: list[Record], plans: Mapping[str, int]) -> list[str]:
    """How much of its plan each part has done, and at which commits."""
    counts = Counter(record["part"] for record in records)
    done = (f"{part} {counts[part]:,} of {planned:,}" for part, planned in plans.items())
    found = dict.fromkeys(record.get("commit", "unknown") for record in records)
    commits = ", ".join(f"`{commit}`" for commit in found)
    return [
        f"Done of what is planned: {', '.join(done) or 'nobody knows'}.",
        f"At the commits {commits}; what was done at an earlier one is not done again at a later.",
    ]


def bad_line(record: Record) -> str:
    """What did harm, so that it can be found again."""
    detail = record["detail"].replace("`", "'")[:200]
    return f"- {record['part']}, {record['name']}: {record['ending']}: `{detail}`"


def with_table(page: str, text: str) -> str:
    """The page with another table between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{text}{END}{rest.partition(END)[2]}"
