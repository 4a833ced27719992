"""The parts of benchmarks/faults.py see faults: what is lost with the power, and traps."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from fault_matrix import power  # noqa: E402
from fault_matrix.cases import run_part  # noqa: E402
from fault_matrix.disk_states import materialise, recording, states  # noqa: E402

from lactchain import manifests  # noqa: E402
from lactchain.baselines import state_files  # noqa: E402
from lactchain.files import atomic_write, read_json_lines  # noqa: E402


def left_by(write, folder, model):
    """All contents of folder/x that a loss of power after `write` may leave."""
    folder.mkdir()
    (folder / "x").write_text("old")
    with recording(folder) as recorded:
        write(folder / "x")
    found = set()
    for number, state in enumerate(
        states(recorded, len(recorded.operations), model, 30, random.Random(0))
    ):
        place = folder.with_name(f"{folder.name}-{number}")
        materialise(state, recorded, place)
        found.add((place / "x").read_text() if (place / "x").exists() else None)
    return found


def renamed_at_once(path):
    path.with_name("y").write_text("new")
    os.replace(path.with_name("y"), path)


@pytest.mark.parametrize("model", power.MODELS)
def test_a_loss_of_power_leaves_what_was_synced_and_anything_of_what_was_not(model, tmp_path):
    assert left_by(lambda path: atomic_write(path, "new"), tmp_path / "a", model) == {"new"}
    assert left_by(renamed_at_once, tmp_path / "b", model) >= {"old", "new", ""}


def test_a_checkpoint_whose_name_was_not_synced_is_found_to_be_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(manifests, "_sync_name", lambda path: None)
    unsynced = lambda path: path.mkdir(parents=True, exist_ok=True)  # noqa: E731
    monkeypatch.setattr(state_files, "make_folder", unsynced)
    found = [c for c in power.cases(tmp_path, 0.1) if c.name.startswith("checkpoints-loose")]
    run_part("power", found, tmp_path / "results.jsonl")
    assert "lost" in {record["ending"] for record in read_json_lines(tmp_path / "results.jsonl")}


SPRUNG = """
import pickle, sys
from pathlib import Path
from fault_matrix.evil import MODULE, _pickled
from fault_matrix.watch import Watch
inside, outside = Path(sys.argv[1]), Path(sys.argv[2])
trap = _pickled(outside)
Watch(inside, outside, inside / "notes", MODULE)()
(inside / "mine").write_text("x")
pickle.loads(trap)
open(outside / "secret.json").close()
(outside / "written").write_text("x")
__import__(MODULE)
"""


def test_a_trap_that_is_sprung_is_noticed(tmp_path):
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "outside/secret.json").write_text("{}")
    command = [sys.executable, "-c", SPRUNG, tmp_path / "inside", tmp_path / "outside"]
    path = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT), os.environ["PYTHONPATH"]])
    subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True)
    notes = (tmp_path / "inside/notes").read_text()
    events = [line.partition(":")[0] for line in notes.splitlines()]
    assert events == ["pickle.find_class", "os.system", "open", "open", "import"]
    assert (tmp_path / "outside/executed").exists()
