"""The figures of benchmarks/lmrl.py, by hand, and that nothing finished is made again."""

import sys
from pathlib import Path

import pytest

from lactchain.types import Action, Trajectory


@pytest.fixture
def lmrl(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "benchmarks")
    yield __import__("lmrl")
    sys.modules.pop("lmrl")


def walk(*cells):
    """An episode through cells (row, column) of the default maze."""
    num_moves = len(cells) - 1
    return Trajectory(
        env_id="lactchain/Maze-v0",
        seed=0,
        observations=("",) * len(cells),
        actions=(Action("move down\n"),) * num_moves,
        rewards=(-1.0,) * num_moves,
        infos=tuple({"state": {"row": row, "column": column}} for row, column in cells),
        terminated=False,
        truncated=True,
    )


def test_move_accuracy_counts_moves_that_shorten_the_way_cell_by_cell(lmrl):
    # (5, 6) to (8, 6) lead down to the goal; from (5, 6) one good move of three, from (6, 6) both
    episodes = [walk((5, 6), (6, 6), (7, 6)), walk((5, 6), (5, 6), (5, 5)), walk((6, 6), (7, 6))]
    assert lmrl.move_accuracy(episodes) == pytest.approx((1 / 3 + 1) / 2)
    assert lmrl.move_accuracy([walk((7, 6), (8, 6))]) == 1


def test_stages_are_scripts_with_overrides_and_finished_ones_stay(lmrl, monkeypatch, tmp_path):
    commands = []
    monkeypatch.setattr(lmrl.subprocess, "run", lambda command, **_: commands.append(command))
    runs = lmrl.Runs("wordle", tmp_path, 3, "words.txt")
    folder = runs.data()
    [command] = commands
    assert command[1:4] == [
        "scripts/make_offline_data.py",
        "--config",
        "configs/make_offline_data/wordle_clues.yaml",
    ]
    settings = dict(zip(command[4::2], command[5::2], strict=True))
    assert settings["--environment.kwargs.words"].endswith("/words.txt")
    assert (settings["--run.seed"], settings["--run.run_dir"]) == ("3", str(folder))
    assert folder == tmp_path / "wordle_words" / "3" / "data"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text("{}")
    assert runs.data() == folder and len(commands) == 1
