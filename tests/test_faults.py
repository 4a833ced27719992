"""Each part of benchmarks/faults.py reports a fault that does harm, and no other."""

import random
import runpy
import shutil
import signal
import sys
import time
from io import BytesIO
from itertools import islice
from multiprocessing import forkserver
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from fault_matrix import damage, kills, parts, processes, programs, ranks, signals  # noqa: E402
from fault_matrix.cases import Case, cases_of, good, run_part  # noqa: E402
from fault_matrix.digests import differing, digest, whole  # noqa: E402

from lactchain.baselines.state_files import save_checkpoint  # noqa: E402
from lactchain.config.settings import RunConfig  # noqa: E402
from lactchain.runs.run import Run  # noqa: E402
from lactchain.storage.files import read_json_lines  # noqa: E402
from lactchain.storage.manifests import write_manifest, write_with_manifest  # noqa: E402

SHORT = {
    "kills": ("search_evolution", 2), "signals": ("train_dqn", 1),
    "damage": ("search_evolution", 3), "malice": ("search_evolution", 2),
    "power": ("train_dqn", 3), "disk": ("search_evolution", 2),
}  # fmt: skip
"""The parts that take little time, with a program and the most cases of the short test."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A folder for what cases share, and a server of processes that knows the benchmark's world.

    Python has one server at a time: that of another file's tests would have imported other things.
    """
    forkserver._forkserver._stop()
    return tmp_path_factory.mktemp("shared")


def bad_results(part, shared, folder, scale, names, most):
    cases = cases_of(parts.PARTS[part], programs.prepared(shared, names), scale)
    run_part(part, islice(cases, most), folder / "results.jsonl")
    results = read_json_lines(folder / "results.jsonl")
    assert results
    return [record for record in results if not record["ok"]]


@pytest.mark.parametrize("part", SHORT)
def test_no_fault_of_a_part_does_harm(part, shared, tmp_path):
    assert bad_results(part, shared, tmp_path, 0.01, [SHORT[part][0]], SHORT[part][1]) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", parts.PARTS)
def test_no_fault_of_a_part_does_harm_to_any_program(part, tmp_path):
    (tmp_path / "shared").mkdir()
    assert bad_results(part, tmp_path / "shared", tmp_path, 0.02, None, None) == []


def test_a_part_goes_on_where_it_was_and_a_fault_of_the_benchmark_does_not_end_it(tmp_path):
    folders, results = [], tmp_path / "part.jsonl"

    def strike(folder):
        assert not any(folder.iterdir())
        folders.append(folder)
        return good("equal")

    first = [Case(1, "none", "a", strike), Case(1, "none", "b", lambda folder: {}["x"])]
    assert run_part("p", first, results) == {"equal": 1, "harness: KeyError": 1}
    again = [Case(1, "none", name, strike) for name in "abc"]
    assert run_part("p", again, results) == {"equal": 1}
    assert len(folders) == 2 and not any(folder.exists() for folder in folders)
    assert run_part("p", [Case(1, "none", "d", strike)], results, minutes=0) == {}


SHARD = "00000-of-00001.parquet"


def parquet(number=1):
    file = BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"x": [number]}), file)
    return file.getvalue()


def ends(run_dir):
    """A small run, with a finished shard and checkpoints; it goes on where it was."""
    with Run.open(run_dir, RunConfig()) as run:
        if not run.path(SHARD).exists():
            write_with_manifest(run.path(SHARD), parquet(), {"tally": {"seconds": 1}})
            run.log({"loss": 1.0}, step=2)
            for step in (2, 4):
                mark = run.mark_metrics()
                save_checkpoint(run.path("checkpoints"), step, {"step": step}, mark)
        run.finish({"loss": 1.0})
    return run_dir


def with_text(name, text):
    return lambda run_dir: (run_dir / name).write_text(text)


def later(run_dir, step=5):
    save_checkpoint(run_dir / "checkpoints", step, {"step": step}, {"size": 0})


def copy_of_first(run_dir, step):
    path = shutil.copytree(run_dir / FIRST, run_dir / f"checkpoints/checkpoint-{step}")
    write_manifest(path, {"step": step, "metrics": {"size": 0}})


FIRST, LAST = "checkpoints/checkpoint-2", "checkpoints/checkpoint-4"
NEW_LAST = ["+checkpoints/checkpoint-5/manifest.json", "+checkpoints/state after step 5"]
OLD_LAST = ["-checkpoints/checkpoint-4/manifest.json", "-checkpoints/state after step 4"]


@pytest.mark.parametrize("change, found", [
    (lambda run_dir: shutil.rmtree(run_dir / "checkpoints"), OLD_LAST),
    (lambda run_dir: write_manifest(run_dir / LAST, {"step": 5}), [f"{LAST}/manifest.json"]),
    (with_text(f"{FIRST}/state.json", "{}"), [f"+{FIRST}/manifest.json"]),
    (lambda run_dir: [copy_of_first(run_dir, step) for step in (1, 3)], ["+checkpoints/too many"]),
    (with_text("_00000-of-00001.manifest", "{}"), ["_00000-of-00001.manifest"]),
    (with_text("metrics.jsonl", '{"step": 2}\n' * 2), ["_summary.manifest", "metrics.jsonl"]),
    (with_text(".x.tmp", ""), ["+.x.tmp"]),
    (later, sorted(NEW_LAST + OLD_LAST)),
])  # fmt: skip
def test_a_digest_sees_what_is_not_as_it_should_be(change, found, tmp_path):
    expected, run_dir = digest(ends(tmp_path / "a/run")), ends(tmp_path / "b/run")
    assert differing(digest(run_dir), expected) == []
    change(run_dir)
    assert differing(digest(run_dir), expected) == found
    if change is later:  # which is as good behind a stop
        assert differing(digest(run_dir), expected, stopped=True) == []
    if any("checkpoint-2" in place for place in found):
        with pytest.raises(RuntimeError, match="checkpoint-2/manifest.json: damaged"):
            whole(digest(run_dir))


ANEW = ("# begins", "\n    shutil.rmtree(folder, ignore_errors=True)")


def paused(folder, changes, **before):
    """Such a program, and a process of it that waits after its eleventh update."""
    text = (ROOT / "tests/counting.py").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "script.py").write_text(text)
    config = runpy.run_path(str(folder / "script.py"))["Counting"]
    make = lambda _, run_dir: config(RunConfig(run_dir=str(run_dir)))  # noqa: E731
    program = programs.Program("counting", str(folder / "script"), make, folder)
    process = program.start(folder / "run", PAUSE="1", **before)
    while process.is_alive() and ") T " not in Path(f"/proc/{process.pid}/stat").read_text():
        time.sleep(0.01)
    return program, process


@pytest.mark.parametrize("changes, ending", [([], "equal"), ([ANEW], "begun anew")])
def test_a_program_that_begins_anew_after_a_kill_is_found(changes, ending, tmp_path):
    program, process = paused(tmp_path, changes)
    processes.kill(process)
    found = kills.to_its_end(program, tmp_path / "run", random.Random(0))
    assert (found.ending, found.ok) == (ending, ending == "equal"), found


@pytest.mark.parametrize("changes, ending", [
    ([], "exit 143, then equal"),
    ([("stop_requested()  # listens", "0")], "deaf"),
    ([("stopped or number % 8 == 0:  # saves", "number % 8 == 0:")], "begun anew"),
    ([("# begins", "\n    signal.signal(signal.SIGTERM, signal.SIG_DFL)")], "exit -15"),
])  # fmt: skip
def test_a_program_that_does_not_stop_as_it_should_is_found(changes, ending, tmp_path):
    notes = signals.Notes(str(tmp_path / "notes"))
    program, process = paused(tmp_path, changes, before=notes)
    found = signals.stops(program, tmp_path / "run", signal.SIGTERM, notes, [process])
    assert found.ending == ending and found.ok == ending.endswith("equal"), found


@pytest.mark.parametrize("code, said, ending", [
    (0, "done", None),
    (3, "error: FILE: damaged", "refused"),
    (3, "error: FOLDER: damaged", "refused"),
    (3, "error: something is damaged", "refused without its name"),
    (3, "error: FILE: damaged\nerror: and more", "refused in more than a line"),
    (3, "Traceback (most recent call last):\nerror: FILE", "stack trace"),
    (1, "error: FILE: damaged", "exit 1"),
])  # fmt: skip
def test_a_damaged_file_is_refused_in_one_line_that_names_it(code, said, ending, tmp_path):
    file = tmp_path / "shards/3.parquet"
    said = said.replace("FILE", str(file)).replace("FOLDER", str(file.parent))
    found = damage.refusal(code, said, file, tmp_path)
    assert (found and found.ending) == ending and (not found or found.ok == (ending == "refused"))


@pytest.mark.parametrize("fault, codes, said, is_there, wrong", [
    ("killed", [-9, 6], "error: rank 0 (process 3) died", False, None),
    ("killed", [-9, 6], "error: a process has ended", False, "rank not named"),
    ("killed", [-9, 1], "error: rank 0 (process 3) died", False, "other exit codes"),
    ("killed", [-9, 0], "", False, "claims to have ended"),
    ("killed", [-9, 0], "", True, None),
    ("ends with 0", [0, 0], "", False, "claims to have ended"),
    ("asked", [143, 143], "", False, None),
])  # fmt: skip
def test_how_two_processes_end_is_judged(fault, codes, said, is_there, wrong, tmp_path):
    programs.log_of(tmp_path / "run", 1).write_text(said)
    (tmp_path / "run").mkdir()
    if is_there:
        (tmp_path / "run/summary.json").touch()
    assert ranks.wrong_with(fault, 0, codes, tmp_path / "run", True) == wrong


def test_the_table_counts_endings_and_names_what_did_harm():
    facts = {"part": "kills", "row": 1, "program": "train_dqn", "commit": "1f", "detail": "a `b`"}
    records = [{**facts, "name": name, "ok": True, "ending": "equal"} for name in "ab"]
    lines = parts.matrix([*records, {**facts, "name": "c", "ok": False, "ending": "hung"}], {})
    assert [line.split(" | ")[0] for line in lines[2:27]] == [f"| {n}" for n in range(1, 26)]
    assert lines[2].split(" | ")[3:5] == ["2 × equal", "1"]
    assert lines[3].split(" | ")[3:5] == ["–", "–"]
    assert lines[-3:] == ["Harm was done by 1 of 3:", "", "- kills, c: hung: `a 'b'`"]
    for page in (page.read_text("utf-8") for page in parts.PAGES):
        assert 0 < page.index(parts.BEGIN) < page.index(parts.END)


def test_every_script_that_makes_a_run_is_attacked():
    scripts = {path.stem for path in (ROOT / "scripts").glob("*.py")}
    without_a_run = {
        "compare", "doctor", "export", "panel", "play", "prepare_weights", "report", "serve",
    }  # fmt: skip
    assert {program.script for program in programs.PROGRAMS.values()} == scripts - without_a_run
