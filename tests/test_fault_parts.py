"""The parts of benchmarks/faults.py see faults: what is lost with the power, and traps."""

import os
import random
import subprocess
import sys
from pathlib import Path

from fault_matrix import kills

from lactchain.storage.files import atomic_write

ROOT = Path(__file__).parent.parent


def recorded(write, folder):
    """What writing a file over an old one does."""
    folder.mkdir()
    (folder / "x").write_text("old")
    found = kills.Recording(folder)
    stop = found.start()
    write(folder / "x")
    stop()
    return found


def left_by(write, folder):
    """All contents of folder/x that a loss of power after `write` may leave."""
    found, contents = recorded(write, folder), set()
    for seed in range(60):
        place = folder.with_name(f"{folder.name}-{seed}")
        left = kills.lost(found, len(found.operations), random.Random(seed))
        kills.materialise(*left, found, place)
        contents.add((place / "x").read_text() if (place / "x").exists() else None)
    return contents


def renamed_at_once(path):
    path.with_name("y").write_text("new")
    os.replace(path.with_name("y"), path)


def test_a_loss_of_power_leaves_what_was_synced_and_anything_of_what_was_not(tmp_path):
    assert left_by(lambda path: atomic_write(path, "new"), tmp_path / "a") == {"new"}
    assert left_by(renamed_at_once, tmp_path / "b") >= {"old", "new", ""}


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


def test_a_trap_that_is_sprung_is_noticed(tmp_path):
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "outside/secret.json").write_text("{}")
    command = [sys.executable, "-c", SPRUNG, tmp_path / "inside", tmp_path / "outside"]
    folders = [str(ROOT / name) for name in ("benchmarks", "tests", ".")]
    path = os.pathsep.join([*folders, os.environ["PYTHONPATH"]])
    subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True)
    notes = (tmp_path / "inside/notes").read_text()
    events = [line.partition(":")[0] for line in notes.splitlines()]
    assert events == ["pickle.find_class", "os.system", "open", "open", "import"]
    assert (tmp_path / "outside/executed").exists()
