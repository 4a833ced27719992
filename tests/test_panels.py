"""Panels: numbered tasks that others can cite, and results that can be played again."""

import json
import shlex
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym
import pytest
from script_setups import run_smallest

from lactchain import ConfigError, DataError, EnvironmentConfig, FunctionPolicy, Rollouts, parse
from lactchain.config.yaml_files import CONFIGS
from lactchain.data.episodes import all_episodes
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import tabular_model
from lactchain.errors import EnvironmentFault
from lactchain.stages.world_facts import measure_world
from lactchain.storage.files import read_json, read_sealed, seal, write_json, write_sealed
from lactchain.worlds.gridworld import GridTables
from lactchain_extras import panels, trl
from lactchain_extras.ecosystems.openenv_server import Served
from lactchain_extras.ecosystems.sessions import Session
from lactchain_extras.stages import panel as panel_stage
from lactchain_extras.stages.panel import PanelConfig

SHIPPED = sorted(file.stem for file in (CONFIGS / "panel").glob("*.yaml"))
LONG = dict.fromkeys(("babyai", "sokoban"), pytest.mark.slow)
SMALL = EnvironmentConfig(kwargs={"size": 2}, max_chain_length=3, max_chains=4)


@pytest.fixture
def panel(tmp_path):
    path = tmp_path / "panel.json"
    write_sealed(path, panels.make_panel(SMALL, 20, 3))
    return path


@pytest.fixture(scope="module")
def result(weights, tmp_path_factory):
    """A panel, and what an untrained actor answered to it."""
    folder = tmp_path_factory.mktemp("result")
    path = folder / "panel.json"
    write_sealed(path, panels.make_panel(SMALL, 20, 3))
    values = {"evaluation.num_samples": 0, "evaluation.num_envs": 7}
    values |= {"actor.decoding": "constrained", "actor.temperature": 1.0}
    run_smallest("evaluate", weights, folder / "run", values, environment=SMALL, panel=str(path))
    return path, folder / "run" / "panel_result.json"


@pytest.mark.parametrize("name", [pytest.param(n, marks=LONG.get(n, ())) for n in SHIPPED])
def test_a_shipped_panel_is_made_anew_to_the_last_byte(name, tmp_path):
    config = parse(PanelConfig, ["--config", str(CONFIGS / "panel" / f"{name}.yaml")])
    if config.environment.id.startswith("minigrid:") and find_spec("minigrid") is None:
        pytest.skip("needs the extra minigrid")
    made = panels.make_panel(config.environment, config.count, config.seed)
    shipped = panels.read_panel(name)
    assert made | {"packages": {}} == shipped | {"packages": {}}
    states, seed = panels.starts(name, replace(config.environment, held_back=None))
    assert len(states) == config.count and seed == config.seed
    held = sum(task["held_back"] for task in shipped["tasks"])
    assert (held > 0) == (config.environment.held_back is not None)


@pytest.mark.parametrize("num_envs", [1, 8])
def test_a_panel_is_the_same_however_many_environments_play_it(num_envs, monkeypatch):
    slippery = EnvironmentConfig("FrozenLake-v1", max_chain_length=3, max_chains=4)
    made = panels.make_panel(slippery, 20, 3)
    monkeypatch.setattr(panels, "Rollouts", lambda config, **_: Rollouts(config, num_envs))
    assert panels.make_panel(slippery, 20, 3) == made


def test_a_panel_says_what_chance_and_skill_earn(panel):
    told = panels.read_panel(panel)
    assert told["floors"]["optimal"]["success_rate"] == told["optimum"]["success"] == 1.0
    assert 0 < told["floors"]["random"]["success_rate"] < 1.0
    assert len({json.dumps(task["state"]) for task in told["tasks"]}) == 20
    others = panels.make_panel(SMALL, 20, 4)
    assert others["tasks"] != told["tasks"] and others["rules"] != told["rules"]


def test_where_there_are_too_few_start_states_some_tasks_begin_alike():
    made = panels.make_panel(replace(SMALL, kwargs={"size": 2, "start": [0, 0, 1]}), 20, 0)
    assert len({json.dumps(task["state"]) for task in made["tasks"]}) < 20 == len(made["tasks"])


def test_a_result_can_be_played_again_without_the_actor(result, capsys):
    path, written = result
    told = read_json(written)
    assert len(told["answers"]) == 20 and told["player"]["decoding"] == "constrained"
    assert panels.verify(path, written) == told["figures"]
    assert 0 < told["figures"]["success_rate"] < 1
    panel_stage.main(PanelConfig(file=str(path), verify=str(written)))
    assert "success_rate" in capsys.readouterr().out


def test_a_panel_and_a_result_of_another_machine_hold_here():
    """Both were made by CPython 3.11 on an AMD EPYC; the workflow runs this on another Python."""
    folder = Path(__file__).parent / "panel_results"
    told = panels.read_panel(folder / "panel.json")
    made = panels.make_panel(SMALL, 20, 3) | {"packages": told["packages"]}
    assert made == {name: value for name, value in told.items() if name != "seal"}
    figures = panels.verify(folder / "panel.json", folder / "result.json")
    assert figures == {"success_rate": 0.4, "episode_return": 0.4, "chains": 3.15}


def longer(told, most):
    """The answers, one more to each task that has had so many."""
    return {"answers": [[*said, "[]"] if len(said) == most else said for said in told["answers"]]}


def test_a_result_that_is_not_what_it_says_is_refused(result, tmp_path):
    no_answers = (None, 7, [7], [[7]], ["text"], {"a": []})
    path, written = result
    told, forged = read_sealed(written, ""), tmp_path / "forged.json"
    answers, lengths = told["answers"], [*map(len, told["answers"])]
    other = {"answers": [[*said[:-1], "?"] if len(said) < 4 else said for said in answers]}
    for change, words in (
        ({"figures": told["figures"] | {"success_rate": 1.0}}, "come to"),
        (other, "come to|expected"),
        ({"answers": answers[1:]}, "expected"),
        (longer(told, lengths[0]), "come to|expected"),
        (longer(told, max(lengths)), "answers: expected none behind the end of a task"),
        ({"panel": "0" * 64}, "of another panel"),
        *(({"answers": none}, "expected a list of texts for each task") for none in no_answers),
    ):
        write_sealed(forged, told | change)
        with pytest.raises(DataError, match=words):
            panels.verify(path, forged)


def test_a_changed_byte_is_refused(panel, result, tmp_path):
    written_over = json.loads(result[1].read_text()) | {"figures": {"success_rate": 1.0}}
    write_json(tmp_path / "forged.json", written_over)
    with pytest.raises(DataError, match="checksum does not match"):
        panels.verify(result[0], tmp_path / "forged.json")
    text = panel.read_text()
    for changed, words in (
        (text.replace('"x": 0', '"x": 1', 1), "checksum does not match; take it from where it was"),
        ("{", "damaged"),
        (None, "no such file"),
    ):
        panel.unlink() if changed is None else panel.write_text(changed)
        with pytest.raises(DataError, match=words):
            panels.read_panel(panel)


KINDS = "expected a world, rules, a seed, and a state"
OTHER_PANELS = [
    *(({"tasks": tasks}, KINDS) for tasks in (3, [3], [{"state": [1]}], [])),
    *(({"world": world}, KINDS) for world in ([], {"id": "x"})),
    ({"seed": "x"}, KINDS),
    ({"rules": 5}, KINDS),
    ({"schema_version": True}, "of version 1, got"),
    ({"schema_version": 99}, "of version 1, got"),
    ({"tasks": [{"state": {"x": 99}}]}, "its tasks cannot be played here"),
]


@pytest.mark.parametrize(("change", "words"), OTHER_PANELS)
def test_a_panel_of_other_kinds_of_values_is_refused(panel, change, words):
    write_sealed(panel, panels.read_panel(panel) | change)
    with pytest.raises(DataError, match=words):
        panels.starts(panel, SMALL)


NO_WORLDS = [{"max_chains": "many"}, {"kwargs": [1]}, {"id": "no_module:No-v0"}, {"id": 3}]


@pytest.mark.parametrize("change", NO_WORLDS)
def test_a_world_that_is_none_is_refused_in_a_line(result, tmp_path, change):
    path, written = result
    told, files = panels.read_panel(path), [tmp_path / "panel.json", tmp_path / "result.json"]
    changed = told | {"world": told["world"] | change}
    write_sealed(files[0], changed)
    write_sealed(files[1], read_sealed(written, "") | {"panel": seal(changed)["seal"]})
    with pytest.raises(ConfigError):
        panels.verify(*files)


def test_another_world_is_refused_with_the_options_that_bring_this_one(panel):
    with pytest.raises(ConfigError, match="--environment.kwargs '{\"size\": 2}' --environment.max"):
        panels.starts(panel, EnvironmentConfig())
    assert len(panels.starts(panel, replace(SMALL, template="brief"))[0]) == 20


def test_other_rules_are_refused(panel, monkeypatch):
    outcome = GridTables.outcome

    def kinder(self, state, action):
        reward, bumped, after = outcome(self, state, action)
        return reward + 0.001, bumped, after

    monkeypatch.setattr(GridTables, "outcome", kinder)
    with pytest.raises(ConfigError, match="made for other rules of lactchain/GridWorld-v0"):
        panels.starts(panel, SMALL)


def test_players_of_other_ecosystems_get_the_same_tasks_by_number(panel):
    lake = EnvironmentConfig("FrozenLake-v1", max_chain_length=1, max_chains=6)
    write_sealed(panel, panels.make_panel(lake, 12, 5))
    rollouts = Rollouts(lake)
    states, seed = panels.starts(panel, lake)
    say = FunctionPolicy(lambda text: '["right"]')
    evaluated = rollouts.play(say, all_episodes(rollouts.env, seed, starts=states))
    served = Served(lake, panel=str(panel))
    assert served.pages["/tasks"] == {"test": states} and len(states) == 12
    session, player = Session(rollouts.env, served._splits), trl.environment(lake, str(panel))()
    rows = trl.tasks(lake, panel=str(panel))
    assert [row["task"] for row in rows] == [*range(12)]
    for row, episode in zip(rows, evaluated, strict=True):
        asked = json.dumps({"type": "reset", "data": {"index": row["task"]}})
        told = json.loads(session.answer(asked))["data"]["observation"]
        assert told["text"] == player.reset(task=row["task"]) == episode.observations[0]
        moves = ['{"type": "step", "data": {"text": "[\\"right\\"]"}}'] * len(episode)
        ends = [json.loads(session.answer(move))["data"]["observation"]["text"] for move in moves]
        assert ends == [*episode.observations[1:]]  # under the same dice
        said = [player.play(["right"]).removesuffix(f"\n{trl.OVER}") for _ in moves]
        assert said == ends


def test_numbers_of_a_world_stand_in_its_panel_as_they_are(tmp_path):
    thirds = {"success_rate": 1 / 3, "is_slippery": True}
    config = EnvironmentConfig("FrozenLake-v1", thirds, max_chain_length=2, chain_cost=1e-7)
    write_sealed(tmp_path / "panel.json", panels.make_panel(config, 3, 0))
    assert len(panels.starts(tmp_path / "panel.json", config)[0]) == 3


def test_the_options_of_a_panel_are_those_that_the_command_line_takes():
    with pytest.raises(ConfigError) as told:
        panels.starts("wordle", EnvironmentConfig())
    words = shlex.split(str(told.value).partition("; add ")[2].replace("--environment.", "--"))
    assert len(panels.starts("wordle", parse(EnvironmentConfig, words))[0]) == 200


def test_a_world_that_is_not_as_its_model_says_has_no_panel(monkeypatch):
    world = gym.make("lactchain/GridWorld-v0", size=2)  # whose tables all its copies share
    model = tabular_model(world)
    paid = replace(model, reward=3 * model.reward + 1)
    monkeypatch.setitem(vars(world.unwrapped.tables), "model", paid)
    for look in (lambda: panels.make_panel(SMALL, 5, 0), lambda: measure_world(SMALL)):
        with pytest.raises(EnvironmentFault, match="expected what the view's model leads to, got"):
            look()


def test_states_that_json_changes_have_no_panel(monkeypatch):
    monkeypatch.setattr(LanguageEnv, "start_states", lambda _: [{"x": (1, 1)}])
    with pytest.raises(ConfigError, match="come back from JSON as they were"):
        panels.make_panel(SMALL, 5, 0)


def test_a_panel_is_written_over_by_none_but_itself(panel):
    config = PanelConfig(SMALL, count=20, seed=3, file=str(panel))
    text = panel.read_text()
    with pytest.raises(ConfigError, match="is there, and is another panel; .* add --verify"):
        panel_stage.main(replace(config, count=3))
    panel_stage.main(config)
    assert panel.read_text() == text
