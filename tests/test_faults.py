"""A few cases of each part of benchmarks/faults.py; the slow ones take every program."""

import importlib
import json
import sys
from itertools import islice
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import faults  # noqa: E402
from fault_matrix import programs, table  # noqa: E402
from fault_matrix.cases import Case, Verdict, run_part  # noqa: E402
from fault_matrix.digests import differing, digest  # noqa: E402

from lactchain.files import read_json_lines  # noqa: E402

SHORT = {
    "kills": (0.05, ["search_random", "train_dqn"], 4),
    "signals": (0.05, ["collect_rollouts", "train_dqn"], 2),
}
"""The parts, with the scale, the programs (None: all) and the most cases of the short test."""


def struck(part, folder, scale, names, most, monkeypatch):
    """The results of some cases of a part."""
    for name in set(programs.PROGRAMS) - set(names or programs.PROGRAMS):
        monkeypatch.delitem(programs.PROGRAMS, name)
    module = importlib.import_module(f"fault_matrix.{part}")
    (folder / "shared").mkdir()
    found = faults.of_programs(module.cases(folder / "shared", scale), names)
    run_part(part, islice(found, most), folder / "results.jsonl")
    return read_json_lines(folder / "results.jsonl")


@pytest.mark.parametrize("part", SHORT)
def test_no_fault_of_a_part_does_harm(part, tmp_path, monkeypatch):
    results = struck(part, tmp_path, *SHORT[part], monkeypatch)
    assert results and [r for r in results if not r["ok"]] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", SHORT)
def test_no_fault_of_a_part_does_harm_to_any_program(part, tmp_path, monkeypatch):
    results = struck(part, tmp_path, 0.02, None, None, monkeypatch)
    assert results and [r for r in results if not r["ok"]] == []


def case(name, strike):
    return Case(1, "none", name, strike)


def test_a_part_goes_on_where_it_was_and_a_fault_of_the_benchmark_does_not_end_it(tmp_path):
    struck_names = []

    def strike(folder):
        assert folder.is_dir() and not any(folder.iterdir())
        struck_names.append(folder)
        return Verdict(True, "equal")

    def broken(folder):
        raise KeyError("x")

    results = tmp_path / "part.jsonl"
    assert run_part("p", [case("a", strike), case("b", broken)], results) == {
        "equal": 1,
        "harness: KeyError": 1,
    }
    assert run_part("p", [case(n, strike) for n in "abc"], results) == {"equal": 1}
    assert [(r["name"], r["ok"]) for r in read_json_lines(results)] == [
        ("a", True), ("b", False), ("c", True),
    ]  # fmt: skip
    assert len(struck_names) == 2 and not any(folder.exists() for folder in struck_names)
    assert run_part("p", [case("d", strike)], results, minutes=0) == {}


def test_a_digest_sees_a_stray_a_flipped_bit_and_a_step_that_is_there_twice(tmp_path):
    for name in ("a", "b"):
        run_dir = tmp_path / name
        run_dir.mkdir()
        (run_dir / "weights.safetensors").write_bytes(b"1234")
        (run_dir / "config.yaml").write_text(f"run_dir: {run_dir}")
        (run_dir / "summary.json").write_text(json.dumps({"loss": 1, "time/seconds": ord(name)}))
        (run_dir / "metrics.jsonl").write_text('{"step": 1, "time": 2}\n')
    whole, other = digest(tmp_path / "a"), tmp_path / "b"
    assert differing(digest(other), whole) == []
    (other / ".x.tmp").touch()
    (other / "weights.safetensors").write_bytes(b"1235")
    (other / "metrics.jsonl").write_text('{"step": 1, "time": 2}\n{"step": 1, "time": 3}\n')
    (other / "summary.json").unlink()
    assert differing(digest(other), whole) == [
        "+.x.tmp", "-summary.json", "metrics.jsonl", "weights.safetensors",
    ]  # fmt: skip


def test_the_table_counts_endings_and_names_what_did_harm():
    def record(name, ok, ending):
        facts = {"part": "kills", "row": 1, "program": "train_dqn", "name": name}
        return {**facts, "ok": ok, "ending": ending, "detail": "a `b`"}

    text = table.matrix(
        [record("a", True, "equal"), record("b", True, "equal"), record("c", False, "hung")]
    )
    lines = text.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:27]] == [f"| {n}" for n in range(1, 26)]
    assert lines[2].split(" | ")[3:5] == ["2 × equal", "1"]
    assert lines[3].split(" | ")[3:5] == ["–", "–"]
    assert "| train_dqn | 2 of 3 |" in lines
    assert lines[-3:] == ["Harm was done by 1 of 3:", "", "- kills, c: hung: `a 'b'`"]
    page = f"before\n{table.BEGIN}old\n{table.END}behind\n"
    assert table.with_table(page, text) == f"before\n{table.BEGIN}{text}{table.END}behind\n"


def test_every_page_has_a_place_for_the_table():
    for page in table.PAGES:
        text = page.read_text("utf-8")
        assert text.count(table.BEGIN) == 1 and text.count(table.END) == 1


def test_every_script_that_makes_a_run_is_attacked():
    scripts = {path.stem for path in (ROOT / "scripts").glob("*.py")}
    without_a_run = {"doctor", "export", "play", "prepare_weights", "report", "serve"}
    assert {program.script for program in programs.PROGRAMS.values()} == scripts - without_a_run
    searches = [p for p in programs.PROGRAMS.values() if p.script == "search"]
    assert len(searches) == 4
