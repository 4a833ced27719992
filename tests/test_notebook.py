"""The notebook answers what it asks; what a notebook needs takes a few lines, which are run."""

import html
import re
import shutil
from collections import Counter
from pathlib import Path

import nbformat
import pytest
from explorer_runs import GridRun
from nbclient import NotebookClient
from pages import BY_PATH
from run_folders import write_text_run

from lactchain.inspection.run_view import open_run
from lactchain_extras.explorer.contents import contents
from lactchain_extras.explorer.notebook import explore


def run_notebook(root, run_dir, monkeypatch) -> list[str]:
    """What each code cell of the notebook displays, as HTML or text."""
    monkeypatch.setenv("LACTCHAIN_RUN", str(run_dir))
    notebook = nbformat.read(root / "notebooks" / "inspect_rollouts.ipynb", as_version=4)
    resources = {"metadata": {"path": str(root / "notebooks")}}
    NotebookClient(notebook, timeout=110, resources=resources).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(_shown(output) for output in cell.outputs) for cell in cells]


def _shown(output) -> str:
    data = output.get("data", {})
    return output.get("text", "") + data.get("text/html", data.get("text/plain", ""))


@pytest.mark.filterwarnings("default::ResourceWarning")
def test_the_notebook_answers_its_four_questions(root, tmp_path, monkeypatch):
    run = GridRun(tmp_path / "run", hostile=True)
    shown = run_notebook(root, run.directory, monkeypatch)
    installed, sizes, page, by_distance, states, errors, worst, changes, here, others, actor = shown
    assert installed == ""  # it is there already
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
    told = max(map(abs, map(float, re.findall(r"<td>(-?\d\.\d+)</td>", worst))))
    assert max(abs(run.values[2] - run.optimal)) == pytest.approx(told, rel=0.9)
    assert "'solved now'" in changes and "round 2" in changes
    assert "advantage" in here and "0.375" in others
    assert "no actor" in actor


def test_pairs_of_rounds_are_counted_once_of_a_run_and_of_others_beside_it(tmp_path):
    one, other = (open_run(GridRun(tmp_path / name).directory) for name in ("run", "other"))
    pairs = Counter(contents(one, [other]).tables["pairs"]["run"])
    assert pairs == {0: len(one.pairs), 1: len(other.pairs)} == {0: 18, 1: 18}


def test_a_run_displays_itself_in_a_frame(tmp_path):
    run = open_run(write_text_run(tmp_path / "run"))
    for shown in (run, explore(run), explore(tmp_path / "run", height=400)):
        frame = shown._repr_html_()
        assert frame.startswith('<iframe srcdoc="') and 'sandbox="allow-scripts"' in frame
    assert "height: 400px" in frame


MOST_LINES = {
    "An environment": 1,
    "A policy of your own": 8,
    "A reward of your own": 5,
    "A chain from the trained quickstart": 2,
    "Values of states": 2,
    "What a run learnt and answered": 8,
    "Episodes of any policy": 3,
    "An evaluation of any policy": 2,
    "Episodes as a frame": 2,
    "Pairs from your own scores": 4,
    "SimPO on your own data set": 6,
    "A loss of your own": 15,
    "Two runs side by side": 1,
    "Look at a run": 1,
}
SNIPPETS = dict(zip(MOST_LINES, BY_PATH["docs/notebook.md"].blocks("python")[1:], strict=True))


@pytest.fixture(scope="module")
def notebook(weights, finished, tmp_path_factory):
    """A folder with a finished pipeline in runs/quickstart, and what is in mine.jsonl."""
    folder = tmp_path_factory.mktemp("notebook")
    shutil.copytree(finished("run_pipeline"), folder / "runs/quickstart", symlinks=True)
    row = '{"prompt": "0 0 up 1 1", "chosen": "[\\"turn left\\"]", "rejected": "no"}\n'
    (folder / "mine.jsonl").write_text(row * 8)
    data = [{"prompt": f"{x} 0", "chosen": "yes", "rejected": "no"} for x in range(8)]
    return folder, {"WEIGHTS": str(weights / "actor"), "DATA": data}


@pytest.fixture(scope="module")
def names(notebook):
    """What the snippets have in common, one after another, as in a notebook."""
    found = dict(notebook[1])
    exec(BY_PATH["docs/notebook.md"].blocks("python")[0], found)
    return found


@pytest.mark.parametrize("what", SNIPPETS)
def test_it_takes_no_more_lines_than_promised(what, notebook, names, monkeypatch):
    monkeypatch.chdir(notebook[0])
    code = SNIPPETS[what]
    assert what in BY_PATH["docs/notebook.md"].sections
    assert sum(bool(line.strip()) for line in code.splitlines()) <= MOST_LINES[what]
    exec(compile(code, what, "exec"), names)


def test_what_they_leave_is_what_they_say(names):
    assert len(names["trajectories"]) == len(names["frame"]) == 20
    assert 0 <= names["success_rate"] <= 1 and names["values"].shape == (2,)
    assert [pair.chosen for pair in names["pairs"]] == ['["move forward"]']
    assert [action.text for action in names["said"]] == names["changed"].completion.tolist()
    assert names["worth"] == pytest.approx(names["changed"].value.to_numpy(), abs=1e-6)
    assert len(names["solved"]) == 48 and names["widest"].margin > 0
    assert Path(names["page"]).name == "report.html"
    assert names["explorer"]._repr_html_().startswith("<iframe srcdoc=")
    assert names["tuned"].act(["0 0 up 1 1"], [0])[0].text
