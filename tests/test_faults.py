"""Each part of benchmarks/faults.py reports a fault that does harm, and no other."""

import os
import shutil
from io import BytesIO
from itertools import islice
from multiprocessing import forkserver

import pyarrow
import pyarrow.parquet
import pytest
from fault_matrix import kills, parts, programs, ranks
from fault_matrix.cases import cases_of, run_part
from fault_matrix.digests import differing, digest, whole
from run_setups import ROOT, start
from torch.distributed import HashStore

from lactchain import Run, RunConfig
from lactchain.baselines.state_files import save_checkpoint, save_state
from lactchain.runs.distributed import Peers
from lactchain.storage.checkpoints import prune_checkpoints
from lactchain.storage.files import read_json_lines
from lactchain.storage.manifests import write_manifest, write_with_manifest

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


def test_a_process_of_the_matrix_notes_that_it_has_met_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr(Peers, "_watch", lambda peers: None)
    monkeypatch.setenv("RANK", "0")
    ranks._prepare(tmp_path)
    Peers(0, 1, HashStore()).watcher.run()
    assert (tmp_path / "met-0").exists()


SHARD = "00000-of-00001.parquet"


def ends(run_dir):
    """A small run, with a finished shard and checkpoints; it goes on where it was."""
    with Run.open(run_dir, RunConfig()) as run:
        if not run.path(SHARD).exists():
            pyarrow.parquet.write_table(pyarrow.table({"x": [1]}), file := BytesIO())
            write_with_manifest(run.path(SHARD), file.getvalue(), {"tally": {"seconds": 1}})
            run.log({"loss": 1.0}, step=2)
            for step in (2, 4):
                save_checkpoint(run, step, {"step": step})
        run.finish({"loss": 1.0})
    return run_dir


def with_text(name, text):
    return lambda run_dir: (run_dir / name).write_text(text)


def later(run_dir, step=5):
    facts = {"step": step, "metrics": {"size": 0}}
    save_state(run_dir / f"checkpoints/checkpoint-{step}", {"step": step}, facts)
    prune_checkpoints(run_dir / "checkpoints")


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


def test_every_script_that_makes_a_run_is_attacked():
    scripts = {path.stem for path in (ROOT / "scripts").glob("*.py")}
    without_a_run = {
        "compare", "doctor", "export", "panel", "play", "prepare_weights", "report", "serve",
    }  # fmt: skip
    assert {program.script for program in programs.PROGRAMS.values()} == scripts - without_a_run


SPRUNG = """
import pickle, sys
from pathlib import Path
from fault_matrix.digests import CANARY
from fault_matrix.evil import _pickled
from fault_matrix.watch import Watch
inside, outside = Path(sys.argv[1]), Path(sys.argv[2])
trap = _pickled(outside)
Watch(inside, outside, inside / "notes", CANARY)()
(inside / "mine").write_text("x")
pickle.loads(trap)
open(outside / "secret.json").close()
(outside / "written").write_text("x")
__import__(CANARY)
"""


def test_a_trap_that_is_sprung_is_noticed(tmp_path, monkeypatch):
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "outside/secret.json").write_text("{}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "benchmarks"), prepend=os.pathsep)
    start(SPRUNG, tmp_path / "inside", tmp_path / "outside").communicate()
    notes = (tmp_path / "inside/notes").read_text()
    events = [line.partition(":")[0] for line in notes.splitlines()]
    assert events == ["pickle.find_class", "os.system", "open", "open", "import"]
    assert (tmp_path / "outside/executed").exists()


@pytest.mark.parametrize("synced, ending", [(True, "equal"), (False, "lost")])
def test_a_result_whose_name_was_not_synced_is_found_lost(synced, ending, tmp_path, monkeypatch):
    program = programs.Program("p", "p", lambda *_: None, tmp_path)

    def finish(run_dir):
        with Run.open(run_dir, RunConfig()) as run:
            run.finish({"loss": 1.0})

    end = kills.record(program.place, tmp_path / "recording")
    if not synced:  # the program syncs nothing
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    finish(program.place)
    end()
    found = kills.pickle.loads((tmp_path / "recording").read_bytes())  # noqa: S301  - just written
    undisturbed = programs.Undisturbed(programs.digest(program.place), "", 0.0)
    monkeypatch.setattr(kills, "recorded_run", lambda _: found)
    monkeypatch.setattr(programs.Program, "undisturbed", lambda *_: undisturbed)
    monkeypatch.setattr(programs.Program, "start", lambda program, run_dir: finish(run_dir))
    monkeypatch.setattr(kills, "ended", lambda _: 0)
    endings = {kills.cut(program, 7 * seed, tmp_path).ending for seed in range(8)}
    assert ending in endings and (not synced or endings == {"equal"})


def test_the_files_of_tests_that_the_matrix_names_are_there():
    for row in parts.ROWS:
        names = row.rpartition("|")[2].split()
        assert names and all((ROOT / f"tests/test_{name}.py").is_file() for name in names), row
