"""What a notebook needs takes a few lines: each snippet is run, and its lines are counted."""

from dataclasses import replace
from pathlib import Path

import pytest
from pages import BY_PATH
from script_setups import build_weights, config_of, run_here

import lactchain

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
def finished(tmp_path_factory):
    """A folder with a finished pipeline in runs/quickstart, and pairs in mine.jsonl."""
    folder = tmp_path_factory.mktemp("notebook")
    weights = build_weights(folder / "weights")
    config = config_of("run_pipeline", weights, folder / "runs/quickstart", num_rounds=1)
    run_here("run_pipeline", replace(config, warm_start=None))
    row = '{"prompt": "0 0 up 1 1", "chosen": "[\\"turn left\\"]", "rejected": "no"}\n'
    (folder / "mine.jsonl").write_text(row * 8)
    data = [{"prompt": f"{x} 0", "chosen": "yes", "rejected": "no"} for x in range(8)]
    return folder, {"WEIGHTS": str(weights / "actor"), "DATA": data}


@pytest.fixture(scope="module")
def names(finished):
    """What the snippets have in common, one after another, as in a notebook."""
    return {"lactchain": lactchain} | finished[1]


@pytest.mark.parametrize("what", SNIPPETS)
def test_it_takes_no_more_lines_than_promised(what, finished, names, monkeypatch):
    monkeypatch.chdir(finished[0])
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
