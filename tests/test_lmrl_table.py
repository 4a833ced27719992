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


def test_a_table_has_the_mean_over_seeds_beside_the_published_figure(lmrl):
    def entry(episode_return, success):
        figures = dict.fromkeys(lmrl.FIGURES, 0.5) | {"success": success, "move accuracy": None}
        return {"name": "ILQL", "decoding": "scored", "return": episode_return} | figures

    head, _, line, _, note = lmrl.table(
        [[entry(-7.0, 0.6)], [entry(-8.0, 0.8)]], lmrl.WORLDS["maze"]
    )
    cells = dict(zip(head.split(" | "), line.split(" | "), strict=True))
    assert cells["return"] == "-7.50 ± 6.36" and cells["published"] == "-6.97"
    assert (cells["success"], cells["move accuracy"]) == ("0.700", "") and "-85.89" in note


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


@pytest.mark.parametrize(
    ("world", "begins", "stands_beside"),
    [("maze", "base/tiny-base", "bc"), ("wordle", "policy/actor", "policy")],
)
def test_values_begin_untrained_or_with_the_policy_that_they_stand_beside(
    lmrl, monkeypatch, tmp_path, world, begins, stands_beside
):
    commands = []
    monkeypatch.setattr(lmrl.subprocess, "run", lambda command, **_: commands.append(command))
    runs = lmrl.Runs(world, tmp_path, 0, None)
    runs.values("mc")
    settings = dict(zip(commands[-1][4::2], commands[-1][5::2], strict=True))
    assert settings["--actor.model"] == str(runs.folder / begins)
    assert runs.cloned(runs.beside) == runs.folder / stands_beside
    cloning = dict(zip(commands[-1][4::2], commands[-1][5::2], strict=True))
    assert ("--only_final_completions" in cloning) == (world == "wordle")
