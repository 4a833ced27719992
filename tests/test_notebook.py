"""The notebook runs on a run folder from top to bottom and answers what it asks."""

import html
import re

import nbformat
import pytest
from explorer_runs import GridRun
from nbclient import NotebookClient
from run_folders import write_text_run

from lactchain.inspection.notebook import frames, open_run
from lactchain_extras.explorer.notebook import explore


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
def test_the_notebook_answers_its_four_questions(root, tmp_path, monkeypatch):
    run = GridRun(tmp_path / "run", hostile=True)
    shown = run_notebook(root, run.directory, monkeypatch)
    sizes, page, by_distance, states, errors, worst, changes, here, others, actor = shown
    assert "'episodes': 865" in sizes
    assert page.startswith("<iframe srcdoc=") and '"screen": "states"' in html.unescape(states)
    assert "<script" not in page  # only within the frame, escaped
    assert by_distance.count("<tr>") > 4
    for number in (1, 2):
        exact = run.judged if number == 1 else run.optimal  # V of the policy, where it is known
        rmse = ((run.values[number] - exact) ** 2).mean() ** 0.5
        against = "V^π" if number == 1 else "V*"
        told = re.search(rf"^{number}\s+{re.escape(against)}\s+(\S+)$", errors, re.MULTILINE)
        assert float(told[1]) == pytest.approx(rmse, abs=1e-5)
    assert max(abs(run.values[2] - run.optimal)) == pytest.approx(
        max(map(abs, map(float, re.findall(r"<td>(-?\d\.\d+)</td>", worst)))), rel=0.9
    )
    assert "'solved now'" in changes and "round 2" in changes
    assert "advantage" in here and "0.375" in others
    assert "no actor" in actor


def test_the_notebook_is_kept_with_small_outputs(root):
    path = root / "notebooks" / "inspect_rollouts.ipynb"
    notebook = nbformat.read(path, as_version=4)
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert path.stat().st_size < 100_000 and sum(map(len, outputs)) >= 8


def test_frames_are_the_tables_of_the_page(tmp_path):
    run = GridRun(tmp_path / "run")
    tables = frames(run.directory)
    assert len(tables["answers"]) == 3 * len(run.states)
    last = tables["answers"][tables["answers"]["round"] == 2]
    assert last["value"].to_numpy() == pytest.approx(run.values[2])


def test_a_run_displays_itself_in_a_frame(tmp_path):
    run = open_run(write_text_run(tmp_path / "run"))
    for shown in (run, explore(run), explore(tmp_path / "run", height=400)):
        frame = shown._repr_html_()
        assert frame.startswith('<iframe srcdoc="') and 'sandbox="allow-scripts"' in frame
    assert "height: 400px" in frame
