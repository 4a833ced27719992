"""The notebook runs on a run folder from top to bottom and shows what it promises."""

import nbformat
import pytest
from nbclient import NotebookClient
from run_folders import (
    hostile_trajectory,
    write_grid_run,
    write_maze_run,
    write_text_run,
    write_wordle_run,
)

from lactchain.data.trajectories import write_trajectories
from lactchain.inspection.notebook import open_run, show_run, show_trajectory
from lactchain.worlds.wordle.view import COLOURS


def run_notebook(root, run_dir, monkeypatch) -> list[str]:
    """What each code cell of the notebook displays, as HTML or text."""
    monkeypatch.setenv("LACTCHAIN_RUN", str(run_dir))
    notebook = nbformat.read(root / "notebooks" / "inspect_rollouts.ipynb", as_version=4)
    resources = {"metadata": {"path": str(root / "notebooks")}}
    NotebookClient(notebook, timeout=60, resources=resources).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(_shown(output) for output in cell.outputs) for cell in cells]


def _shown(output) -> str:
    data = output.get("data", {})
    return output.get("text", "") + data.get("text/html", data.get("text/plain", ""))


@pytest.mark.filterwarnings("default::ResourceWarning")
def test_the_notebook_shows_a_run(root, tmp_path, monkeypatch):
    run_dir = write_grid_run(tmp_path / "run")
    write_trajectories(run_dir / "trajectories" / "0.parquet", [hostile_trajectory()])
    overview, curves, success, episodes, transcript, numbers, pairs, values = run_notebook(
        root, run_dir, monkeypatch
    )
    assert "success_rate_after" in overview
    assert "train/loss" in curves and "<svg" in curves
    assert "shortest path, in actions" in success
    assert episodes.count("<polygon") > 4
    assert "13 episodes" in transcript and r"\ud800" in transcript
    assert "'chains':" in numbers
    assert "margins of" in pairs
    assert "critic, facing up" in values
    assert "<script" not in "".join((overview, curves, success, episodes, pairs, values))


@pytest.mark.filterwarnings("default::ResourceWarning")
def test_the_notebook_shows_mazes_with_the_worth_of_moves_and_games_in_colours(
    root, tmp_path, monkeypatch
):
    *_, episodes, transcript, _, _, values = run_notebook(
        root, write_maze_run(tmp_path / "maze"), monkeypatch
    )
    assert episodes.count("<polyline") == 2 and "Success" in transcript
    for title in ("V of each cell", "Q of each move", "advantage of each move"):
        assert title in values
    *_, episodes, transcript, _, _, _ = run_notebook(
        root, write_wordle_run(tmp_path / "wordle"), monkeypatch
    )
    assert all(colour in episodes for colour in COLOURS.values())
    assert "line-through" in episodes and "Wordle:" in transcript


def test_views_of_a_run_display_themselves(tmp_path):
    run = open_run(write_grid_run(tmp_path / "run", num_episodes=2))
    assert "(finished)" in run._repr_html_()
    assert "round_2/critic" in run._repr_html_()
    for shown in (show_run(run), show_trajectory(run.trajectories[0], run)):
        assert shown._repr_html_().startswith('<div class="lactchain"><style>')


def test_views_of_a_run_without_grid_or_values(tmp_path):
    run = open_run(write_text_run(tmp_path / "run"))
    assert "unfinished" in run._repr_html_()
    assert "A frozen lake" in show_trajectory(run.trajectories[0], run)
