"""A world is one folder or file: no other code names it, and a new one needs a file and a line."""

import ast
import re
from pathlib import Path

import key_corridor  # noqa: F401  registers
import pytest
from script_setups import run_smallest

from lactchain import EnvironmentConfig, open_run, read_trajectories
from lactchain.data.evaluations import read_episodes, read_values
from lactchain.inspection.pictures import Mark
from lactchain_extras.explorer.contents import contents
from lactchain_extras.stages.make_offline_data import RecordingConfig

PACKAGE = Path(__file__).parent.parent / "lactchain"
OUTSIDE = sorted(p for p in PACKAGE.rglob("*.py") if PACKAGE / "worlds" not in p.parents)
# The prompts of the menu speak of a grid world, as the founding text does: every tiny tokenizer has
# learnt from them, so they stay as they are.
NAMES = re.compile(r"grid_?world|maze|wordle|frozen_?lake|cliff_?walking|taxi", re.IGNORECASE)
ALLOWED = {
    "__init__.py": {"worlds.gridworld", "GridWorld"},  # public names
    "config/settings.py": {"lactchain/GridWorld-v0"},  # the default
    "models/weights.py": {"gridworld"},  # the default's preset, in an error message
}  # fmt: skip


def named(path: Path) -> set[str]:
    """What code names, and what it says; docstrings and the help of fields may give examples."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
        for field in ("name", "module", "id", "attr", "value"):  # aliases, imports, names, strings
            said = getattr(node, field, None)
            found |= {said} if isinstance(said, str) else set()
    return {name for name in found if NAMES.search(name)}


def test_nothing_outside_its_room_and_no_script_of_the_page_names_a_world():
    places = {str(path.relative_to(PACKAGE)): named(path) for path in OUTSIDE}
    wrong = {place: names - ALLOWED.get(place, set()) for place, names in places.items()}
    assert not {place: names for place, names in wrong.items() if names}
    scripts = (PACKAGE.with_name("lactchain_extras") / "explorer/static/app").iterdir()
    assert not [path for path in scripts if NAMES.search(path.read_text(encoding="utf-8"))]


CORRIDOR = EnvironmentConfig(
    "key_corridor:my/KeyCorridor-v0", template="{cell} {keys}", max_chain_length=2, max_chains=8
)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corridor")
    changes = {"environment": CORRIDOR, "num_rounds": 1}
    return run_smallest("run_pipeline", folder, folder / "run", changes), folder / "run"


def test_a_new_world_has_exact_values_and_shortest_paths(pipeline):
    summary, run = pipeline
    assert summary["round_1/critic_r2"] is not None
    values = read_values(run / "values.json")
    assert len(values.states) == len(values.exact) == 8
    with_key = [v for s, v in zip(values.states, values.exact, strict=True) if s["key"]]
    without = [v for s, v in zip(values.states, values.exact, strict=True) if not s["key"]]
    assert min(with_key) > max(without) > 0
    shortest = {tuple(e.state.values()): e.shortest for e in read_episodes(run / "episodes.json")}
    assert shortest == {(c, k): 4 - c if k else c + 5 for c in range(4) for k in (0, 1)}


def test_a_new_world_draws_itself_in_the_report(pipeline):
    _, run = pipeline
    held = contents(open_run(run)).tables["states"]
    assert set(held["group"]) >= {"0 keys", "1 keys"}
    row = held["state"].index('{"cell": 2, "key": 0}')
    assert held["agent"][row] == (2, 0) and held["marks"][row] == (Mark(0, 0, "item", "k"),)
    assert '"background": [[4, 0, "goal", ""]]' in (run / "report.html").read_text()


def test_scripted_policies_of_a_new_world_go_by_their_names(tmp_path):
    shares = RecordingConfig({"rightwards": 0.5, "optimal": 0.25, "random": 0.25})
    changes = {"environment": CORRIDOR, "behavior": shares}
    run_smallest("make_offline_data", tmp_path, tmp_path / "run", changes)
    played = read_trajectories(tmp_path / "run" / "trajectories")
    assert len(played) == 96
    assert {"0.5 rightwards, 0.25 optimal, 0.25 random"} == {t.policy for t in played}
    completions = [action.text for t in played for action in t.actions]
    assert completions.count('["right"]') > len(completions) / 2
