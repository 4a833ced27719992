"""OpenEnv: what is served by its protocol is what is played here; servers of others too."""

import json
import os
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from openenv_servers import ask, reset, running, running_world, said, session, step

from lactchain import Episode, FunctionPolicy, GridWorld, Rollouts, evaluate, make_language_env
from lactchain.config.settings import EnvironmentConfig, HeldBackConfig
from lactchain.environments.exact import all_chains, chain_values
from lactchain.environments.scripted import OptimalChains, RandomChains
from lactchain.environments.views import tabular_model
from lactchain.errors import ConfigError, EnvironmentFault
from lactchain_extras.ecosystems import openenv_client
from lactchain_extras.ecosystems.openenv_server import Served
from lactchain_extras.ecosystems.sessions import Session
from lactchain_extras.ecosystems.tasks import begin, manifest

GRID = EnvironmentConfig(
    kwargs={"size": 2}, template="brief", max_chain_length=3, max_chains=4,
    invalid_penalty=-0.5, chain_cost=0.125, held_back=HeldBackConfig(0.25),
)  # fmt: skip
SLIPPERY = EnvironmentConfig("FrozenLake-v1", max_chain_length=3)
WORDLE = EnvironmentConfig("lactchain/Wordle-v0", extractor="utterance")
SOMETIMES_SILENT = FunctionPolicy(
    lambda text, seed: "no chain" if seed % 5 == 0 else '["turn left", "move forward"]', draws=True
)


@pytest.fixture(scope="module")
def grid():
    with running_world(GRID) as url:
        yield url


def there(url, **changes):
    return EnvironmentConfig(f"openenv:{url}", **{"max_chain_length": 3} | changes)


def played(config, policy, episodes):
    trajectories = Rollouts(config, 4).play(policy, episodes)
    return [replace(trajectory, env_id="") for trajectory in trajectories]


def test_episodes_over_the_wire_are_those_in_process_seed_by_seed(grid):
    env = make_language_env(GRID)
    starts = enumerate(env.start_states())
    episodes = [*map(Episode, range(60)), *(Episode(n, state) for n, state in starts)]
    for policy in (RandomChains(env.grammar), SOMETIMES_SILENT):
        assert played(there(grid), policy, episodes) == played(GRID, policy, episodes)


def test_a_world_with_dice_and_without_a_list_of_states_is_equal_too():
    with running_world(WORDLE) as url:
        config = there(url, extractor="utterance", max_chain_length=1)
        words = make_language_env(WORDLE).grammar
        both = [played(c, RandomChains(words), [*map(Episode, range(9))]) for c in (WORDLE, config)]
    assert both[0] == both[1] and any(t.observations[1].count("\n") for t in both[0])


def test_states_can_be_listed_and_set_so_that_evaluations_and_pairs_go_on_behind_a_url(grid):
    here, far = make_language_env(GRID), make_language_env(there(grid))
    practised = [s for s in here.start_states() if s not in here.held_back]
    held_back = [s for s in here.start_states() if s in here.held_back]
    assert far.start_states() == practised + held_back and held_back
    results, figures = evaluate(OptimalChains(here), there(grid))
    assert figures["success_rate"] == 1.0 and len(results) == 48
    assert far.grammar == here.grammar


def test_what_counts_or_reads_otherwise_than_the_server_is_refused(grid):
    for wrong, words in (
        ({"extractor": "utterance"}, "environment.extractor: expected completions as"),
        ({"max_chain_length": 4}, "environment.extractor: expected completions as"),
        ({"invalid_penalty": -1.0}, "set them where it is served"),
        ({"chain_cost": 0.1}, "set them where it is served"),
    ):
        with pytest.raises(ConfigError, match=words):
            make_language_env(there(grid, **wrong))
    env = make_language_env(WORDLE)  # its seeds are no tasks of a split
    assert begin(env, {}, 3) == begin(env, {}, 3, "train")
    with pytest.raises(ConfigError, match=r"split: expected one of \['train'\], got 'dev'"):
        begin(env, {}, 3, "dev")


def test_sessions_of_one_task_or_seed_begin_alike_and_play_on_their_own(grid):
    env = make_language_env(GRID)
    for data in ({"index": 3, "split": "test"}, {"seed": 7}, {"index": 5}):
        starts = [ask(grid, reset(**data))[0]["data"]["observation"] for _ in range(8)]
        assert starts == [starts[0]] * 8
    begin_there = reset(index=3, split="test")
    with session(grid) as other:
        begun = said(other, begin_there)["data"]
        first, moved = (reply["data"] for reply in ask(grid, begin_there, step('["turn left"]')))
        state = said(other, {"type": "state"})["data"]
    held_back = [s for s in env.start_states() if s in env.held_back]
    assert begun == first and state["state"] == held_back[3]
    assert moved["metadata"]["state"] != state["state"] and state["step_count"] == 0


def test_a_time_limit_is_no_ending_and_success_stands_apart_from_the_reward(grid):
    left = '["turn left"]'
    *_, cut = ask(grid, reset(seed=1), step(left), step(left), step(left), step(left))
    told = cut["data"]
    assert told["done"] and told["observation"]["truncated"] and not told["metadata"]["terminated"]
    assert not told["observation"]["success"] and told["reward"] == -0.125
    env = make_language_env(GRID)
    text, _ = env.reset(seed=1)
    *_, well = ask(grid, reset(seed=1), step(OptimalChains(env).complete(text, 0)))
    told = well["data"]["observation"]
    assert well["data"]["done"] and told["success"] and not told["truncated"]
    # What a client has read of a completion as JSON counts as what was written.
    (_, listed), (_, written) = (ask(grid, reset(seed=1), step(t)) for t in (["turn left"], left))
    assert listed == written


def test_what_is_not_understood_is_an_error_in_words_and_the_session_goes_on(grid):
    no_texts = (3, None, True, {"text": "x"}, 0.5)
    wrong = [
        ("no json", "INVALID_JSON", "Expecting value"),
        (b"\xff", "INVALID_JSON", "Expecting value"),
        ("[" * 10**5, "INVALID_JSON", "recursion"),
        ('["reset"]', "INVALID_JSON", "expected an object with type and data"),
        ({"type": "undo"}, "UNKNOWN_TYPE", "expected one of"),
        ({"type": ["reset"]}, "UNKNOWN_TYPE", "expected one of"),
        (reset(sead=1), "VALIDATION_ERROR", "expected arguments out of"),
        (reset(seed=-1), "VALIDATION_ERROR", "seed: expected a whole number of at least 0, got -1"),
        (reset(seed=True), "VALIDATION_ERROR", "got True"),
        (reset(index=36), "EXECUTION_ERROR", "task: expected 0 to 35 of train, got 36"),
        (reset(index=0, split="dev"), "EXECUTION_ERROR", "split: expected one of"),
        (reset(split="test"), "VALIDATION_ERROR", "split: expected a name, beside an index"),
        (reset(index=0, split=["test"]), "VALIDATION_ERROR", "got ['test']"),
        (reset(index=0, state={}), "VALIDATION_ERROR", "expected a state or an index, got both"),
        (reset(state={"x": 9}), "EXECUTION_ERROR", ""),
        (step("early"), "VALIDATION_ERROR", "expected a reset before it"),
        ({"type": "step", "data": {"txt": "x"}}, "VALIDATION_ERROR", "expected the field text"),
        (reset(seed=1), None, None),
        *((step(text), "VALIDATION_ERROR", "text: expected a text") for text in no_texts),
        (step('["turn left"]'), None, None),
    ]
    replies = ask(grid, *(message for message, *_ in wrong))
    for reply, (_, code, words) in zip(replies, wrong, strict=True):
        assert code is None or (reply["type"], reply["data"]["code"]) == ("error", code), reply
        assert words is None or words in reply["data"]["message"]
    assert replies[-1]["type"] == "observation"


def test_a_fault_of_a_world_is_told_and_the_session_goes_on(monkeypatch):
    env = make_language_env(SLIPPERY)
    monkeypatch.setattr(type(env.env.unwrapped), "step", lambda self, action: [][0])
    messages = (reset(seed=1), step('["left"]'), reset(seed=1))
    player = Session(env, {})
    replies = [json.loads(player.answer(json.dumps(message))) for message in messages]
    assert [reply["type"] for reply in replies] == ["observation", "error", "observation"]
    words = replies[1]["data"]["message"]
    assert "raised IndexError: list index out of range" in words
    assert words.endswith("(seed 1, last action 0)")


def get(url):
    with urllib.request.urlopen(url) as reply:
        assert reply.headers["Content-Type"] == "application/json"
        return json.loads(reply.read())


def test_tasks_schema_and_manifest_are_told(grid):
    env, tasks = make_language_env(GRID), get(f"{grid}/tasks")
    assert tasks["test"] == [s for s in env.start_states() if s in env.held_back]
    counts = {split: len(states) for split, states in tasks.items()}
    assert counts == {"train": 36, "test": 12} == get(f"{grid}/manifest")["tasks"]
    assert get(f"{grid}/schema")["action"]["required"] == ["text"]
    assert get(f"{grid}/health") == {"status": "healthy"}
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(f"{grid}/reset")


def test_a_full_server_says_so_and_a_world_is_asked_anew_by_each_that_is_made_of_its_url():
    served = Served(GRID, max_sessions=1)
    with running(served.pages, served.play) as url:
        with session(url), pytest.raises(EnvironmentFault, match="1 sessions are taken"):
            make_language_env(there(url)).reset(seed=0)
        assert make_language_env(there(url)).reset(seed=0)[0]
        assert len(make_language_env(there(url)).start_states()) == 48
        served.pages["/manifest"]["max_chains"] = 9
        del served.pages["/tasks"]["train"][1:]
        later = make_language_env(there(url))
        assert later.max_chains == 9 and len(later.start_states()) == 13


class Meeting(GridWorld):
    """A grid that goes elsewhere at each step and waits until three are there, where it waits."""

    met = threading.Barrier(3, timeout=20)

    def __init__(self, waits: bool) -> None:
        super().__init__(size=2)
        self.waits = waits

    def step(self, action):
        if self.waits:
            os.chdir("/")
            time.sleep(0.1 * self.met.wait())  # who has come first ends first
        return super().step(action)

    def text_view(self):
        return replace(super().text_view(), waits=self.waits)


gym.register("test/Meeting-v0", entry_point=Meeting)
TURN = '["turn left"]'


def meeting(waits):
    return EnvironmentConfig("test/Meeting-v0", {"waits": waits}, max_chain_length=1, max_chains=1)


def test_worlds_that_wait_are_stepped_side_by_side_and_end_as_others_do():
    here = os.getcwd()
    policy = FunctionPolicy(lambda text: TURN)
    waiting, other = (Rollouts(meeting(waits), 3) for waits in (True, False))
    states = other.env.start_states()[:3]
    episodes = [*map(Episode, range(3), states)]
    assert waiting.play(policy, episodes) == other.play(policy, episodes)
    assert waiting.play(policy, []) == []
    decisions = states, policy.act([""] * 3, [0] * 3), [0, 1, 2]
    assert waiting.outcomes(*decisions) == other.outcomes(*decisions)
    assert os.getcwd() == here


def test_a_session_that_takes_long_does_not_hold_up_the_others():
    here = os.getcwd()
    with running_world(meeting(True)) as url, ExitStack() as sessions:
        players = [sessions.enter_context(session(url)) for _ in range(3)]
        for player in players:
            said(player, reset(seed=0))
        for player in players:
            player.send(json.dumps(step(TURN)))
        assert {json.loads(player.recv())["type"] for player in players} == {"observation"}
    assert os.getcwd() == here


@pytest.mark.parametrize("config", [GRID, SLIPPERY], ids=["without dice", "with dice"])
def test_floors_and_optimum_are_those_of_going_through_all_chains_one_by_one(config):
    env = make_language_env(config)
    model, longest = tabular_model(env.env, env.view), 3
    chains = all_chains(model.next_state.shape[1], longest)
    lengths = np.array([*map(len, chains)])
    weights = 1 / (longest * np.bincount(lengths)[lengths])
    best, drawn = model.goal.astype(float), np.zeros(len(model.terminal))
    for _ in range(env.max_chains):
        unpaid = replace(model, reward=0 * model.reward)
        best = np.where(model.terminal, best, chain_values(unpaid, best, longest).max(axis=0))
        mean = weights @ chain_values(model, drawn, longest)
        drawn = np.where(model.terminal, 0, mean - env.chain_cost)
    told, starts = manifest(config, env), model.non_terminal
    assert told["optimum"]["success"] == pytest.approx(best[starts].mean())
    assert told["floors"]["random"]["return"] == pytest.approx(drawn[starts].mean())


HERE = "http://127.0.0.1:9"
ADDRESSES = ["file:///etc/passwd#", "FILE:///etc/passwd", "ftp://127.0.0.1/x", "/etc/passwd"]
ADDRESSES += ["data:application/json,{}", f"{HERE}/#", f"{HERE}/?x", "http://127.0.0.1:port"]
ADDRESSES += ["http://user:word@127.0.0.1:9", "http://", "http://127.0.0.1:0", "http://[::1"]
ADDRESSES += ["127.0.0.1:8000"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_only_addresses_of_servers_are_asked(address, monkeypatch):
    monkeypatch.setattr("httpx2.Client", None)
    told = r"environment.id: openenv:.*expected http\(s\)://host:port"
    with pytest.raises(ConfigError, match=told):
        make_language_env(EnvironmentConfig(f"openenv:{address}"))


OTHERS = ["node1", "10.0.0.1", "169.254.169.254", "localhost.evil.example", "[fe80::1]"]


@pytest.mark.parametrize("host", OTHERS)
def test_other_machines_are_asked_only_where_the_environment_says_so(host, monkeypatch):
    config = EnvironmentConfig(f"openenv:http://{host}:8000")
    with pytest.raises(ConfigError, match="expected a world on this machine; .*LACTCHAIN_HOSTS="):
        make_language_env(config)
    asked = []
    monkeypatch.setenv("LACTCHAIN_HOSTS", f"other,{host.strip('[]')}")
    monkeypatch.setattr(openenv_client, "_get", lambda url, **_: asked.append(url))
    with pytest.raises(ConfigError, match="expected actions with one required text"):
        make_language_env(config)
    assert asked == [f"http://{host}:8000/manifest", f"http://{host}:8000/schema"]


SCHEMA = {"action": {"properties": {"text": {"type": "string"}}, "required": ["text"]}}
ODD = [[1, 2], "text", 3, {"action": []}]
ODD += [{"action": {"properties": properties}} for properties in (3, {"a": 1})]
GRAMMARS = [None, {}, {"action_names": 5}, {"action_names": "ab"}, {"action_names": ["a", "a"]}]
NO_TEXT = "one required text, got fields"
ODD_PAGES = [({"/schema": told, "/manifest": told}, NO_TEXT) for told in ODD]
for told in GRAMMARS:
    manifest_of = {"grammar": told, "tasks": 0, "max_chains": 3}
    ODD_PAGES.append(({"/schema": SCHEMA, "/manifest": manifest_of}, "the manifest.*a fault"))


@pytest.mark.parametrize(("pages", "words"), ODD_PAGES)
def test_a_schema_or_manifest_of_any_shape_is_one_line(pages, words):
    with running(pages) as url, pytest.raises(ConfigError, match=f"openenv:http.*{words}"):
        make_language_env(EnvironmentConfig(f"openenv:{url}"))
