"""Environments in text: chains, infos, states, and what happens when something is wrong."""

import json
import pickle
import re

import gymnasium as gym
import numpy as np
import pytest

import lactchain.environments.language as language
from lactchain import ConfigError, EnvironmentConfig, LanguageEnv, language_env, make_language_env
from lactchain.environments.views import TextView, tabular_model
from lactchain.worlds.gridworld import GridWorld

START = {"x": 0, "y": 0, "orientation": 1, "goal_x": 3, "goal_y": 0}
TAXI = "Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3"
BUMPED = " You bumped into the edge of the map or a wall."
WORLDS = {"lactchain/GridWorld-v0": {}, "CliffWalking-v1": {}, TAXI: {}}
WORLDS["FrozenLake-v1"] = {"is_slippery": False}


def test_a_chain_is_played_and_told_action_by_action():
    env = language_env()
    text, info = env.reset(options={"state": START})
    assert text == "Grid world of size 4x4, goal at (3, 0).\nYou are at (0, 0), facing right."
    nothing = dict.fromkeys(("executed", "rewards", "bumped", "positions"), [])
    legal = {"invalid_action": False, "invalid_reason": None}
    assert info == nothing | legal | {"state": START, "success": False}
    text, reward, terminated, truncated, info = env.step('["turn left", "move forward"]')
    assert text == f"Grid world of size 4x4, goal at (3, 0).\nYou are at (0, 0), facing up.{BUMPED}"
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert (info["executed"], info["bumped"]) == (["turn left", "move forward"], [False, True])
    assert info["positions"] == [[0, 0, 0], [0, 0, 0]]
    assert info["state"] == START | {"orientation": 0}


def test_a_chain_stops_where_the_episode_ends():
    env = language_env()
    env.reset(options={"state": START})
    chain = env.grammar.render([0] * 9)
    _, reward, terminated, truncated, info = env.step(chain)
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert (info["executed"], info["rewards"]) == (["move forward"] * 3, [0.0, 0.0, 1.0])
    with pytest.raises(gym.error.ResetNeeded):
        env.step(chain)


class Bell(gym.Env):
    """Ringing ends an episode, and leaves all as it was."""

    observation_space, action_space = gym.spaces.Discrete(1), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, 0.0, action == 1, False, {}

    def text_view(self):
        states = {"get_state": lambda env: {"at": 0}, "set_state": lambda env, state: None}
        return TextView(("wait", "ring"), "A bell.{feedback}", lambda *_: {}, **states)


def test_an_action_that_ends_the_episode_is_no_bump():
    env = language.LanguageEnv(Bell())
    env.reset(seed=0)
    info = env.step(env.grammar.render([0, 1]))[4]
    assert (info["executed"], info["bumped"]) == (["wait", "ring"], [True, False])


def test_text_that_is_no_chain_executes_nothing_and_is_penalised():
    env = language_env(invalid_penalty=-0.5, chain_cost=0.01)
    text, info = env.reset(options={"state": START})
    again, reward, terminated, truncated, info = env.step('I jump. ["jump"] or move forward')
    assert again == text + language.INVALID_FEEDBACK
    assert (reward, terminated, truncated) == (-0.51, False, False)
    assert (info["invalid_action"], info["invalid_reason"]) == (True, "not_terminal")
    assert (info["executed"], info["rewards"], info["state"]) == ([], [], START)


@pytest.mark.parametrize(("env_id", "settings", "unheard"), [
    ("Taxi-v4", {"chain_cost": 0.5}, True),
    ("Taxi-v4", {"invalid_penalty": -0.5}, False),
    ("lactchain/Maze-v0", {"extractor": "utterance"}, False),
    ("lactchain/Wordle-v0", {"extractor": "utterance"}, False),
])  # fmt: skip
def test_text_that_nothing_has_a_rule_for_is_unheard(env_id, settings, unheard):
    env = language_env(env_id, **settings)
    env.reset(seed=0)
    assert env.step("hm")[4].get("unheard", False) is unheard
    env.reset(seed=0)
    assert "unheard" not in env.step(env.grammar.render([0]))[4]


def test_every_completion_costs_and_counts():
    env = language_env(chain_cost=0.25, max_chains=2, env_kwargs={"max_steps": 3})
    env.reset(options={"state": START})
    assert env.step('["turn left"]')[1:4] == (-0.25, False, False)
    assert env.step("nothing")[1:4] == (-0.25, False, True)  # max_chains
    env.reset(options={"state": START})
    # an unparsable completion takes no time of the environment itself
    assert env.step("nothing")[3] is False
    assert env.step('["turn left", "turn left"]')[3] is True
    env.reset(options={"state": START})
    *_, truncated, info = env.step('["turn left", "turn left", "turn left", "turn left"]')
    assert truncated is True  # max_steps
    assert len(info["executed"]) == 3
    env = language_env(max_chains=1)
    env.reset(options={"state": START})
    assert env.step(env.grammar.render([0, 0, 0]))[2:4] == (True, False)  # the goal, with the last


@pytest.mark.parametrize("env_id", WORLDS)
def test_infos_survive_json_and_observations_are_in_their_space(env_id):
    env = language_env(env_id, WORLDS[env_id])
    rng = np.random.default_rng(0)
    for seed in range(5):
        text, info = env.reset(seed=seed)
        ended = False
        while not ended:
            assert json.loads(json.dumps(info)) == info
            assert text in env.observation_space
            chain = rng.integers(env.env.action_space.n, size=3)
            completion = env.grammar.render(chain) if rng.random() < 0.8 else "hm"
            text, reward, terminated, truncated, info = env.step(completion)
            assert type(reward) is float
            ended = terminated or truncated


@pytest.mark.parametrize("env_id", WORLDS)
def test_a_state_can_be_visited_again(env_id):
    env = language_env(env_id, WORLDS[env_id])
    states = env.view_states()
    assert states == tabular_model(env.env).non_terminal_states
    for state in states[:: max(1, len(states) // 20)]:
        first = env.reset(options={"state": state})
        assert first[1]["state"] == state
        played = env.step(env.grammar.render([0, 1, 0]))
        assert env.reset(seed=7, options={"state": json.loads(json.dumps(state))}) == first
        assert env.step(env.grammar.render([0, 1, 0])) == played


@pytest.mark.parametrize("env_id", [*WORLDS, "lactchain/Maze-v0", "lactchain/Wordle-v0"])
def test_an_environment_can_be_pickled_in_the_middle_of_an_episode(env_id):
    env = language_env(env_id, WORLDS.get(env_id), history=0)
    env.reset(seed=3)
    env.step(env.grammar.render([1, 0]))
    copy = pickle.loads(pickle.dumps(env))  # noqa: S301
    for completion in (env.grammar.render([0]), "what?", env.grammar.render([1])):
        assert copy.step(completion) == env.step(completion)
    assert copy.reset(seed=4) == env.reset(seed=4)
    assert copy.view_states() == env.view_states()


@pytest.mark.parametrize(("env_id", "state", "text"), [
    ("FrozenLake-v1", 6, "A frozen lake; S, F are safe, H is a hole, G the goal:\nSFFF\nFHFH\n"
     "FFFH\nHFFG\nYou are at (2, 1), the goal is at (3, 3)."),
    ("CliffWalking-v1", 25, "A 12x4 grid with a cliff along the lower edge, between its "
     "corners.\nYou are at (1, 2), the goal is at (11, 3)."),
    (TAXI, ((3 * 5 + 1) * 5 + 4) * 4 + 2, "The taxi is at (1, 3). The passenger is in the taxi "
     "and wants to go to yellow (0, 4)."),
])  # fmt: skip
def test_gymnasium_worlds_are_put_into_words(env_id, state, text):
    assert language_env(env_id).reset(options={"state": {"state": state}})[0] == text


@pytest.mark.parametrize(("env_id", "state", "action", "position", "success"), [
    ("FrozenLake-v1", 14, "right", [3, 3], True),
    ("FrozenLake-v1", 4, "right", [1, 1], False),
    ("CliffWalking-v1", 35, "down", [11, 3], True),
    (TAXI, ((4 * 5 + 0) * 5 + 4) * 4 + 2, "drop off", [0, 4], True),
])  # fmt: skip
def test_only_a_good_ending_is_a_success(env_id, state, action, position, success):
    env = language_env(env_id, WORLDS[env_id])
    env.reset(options={"state": {"state": state}})
    _, _, terminated, _, info = env.step(f'["{action}"]')
    assert (terminated, info["success"], info["positions"]) == (True, success, [position])


def test_the_words_can_be_changed():
    config = EnvironmentConfig(
        kwargs={"size": 5}, template="{size}: {x},{y} {orientation} -> {goal_x},{goal_y}",
        action_names=["step", "turn"], extractor="json_object", max_chain_length=2,
    )  # fmt: skip
    env = make_language_env(config)
    assert env.reset(options={"state": START})[0] == "5x5: 0,0 right -> 3,0"
    _, *_, info = env.step('{"explain": "why not", "moves": ["step", "turn"]}')
    assert info["executed"] == ["step", "turn"]
    assert env.step('{"moves": ["step", "turn", "turn"]}')[4]["invalid_reason"] == "too_long"


@pytest.mark.parametrize(("start", "said", "told"), [
    ((1, 2, 0, 0, 3), [], "The goal is 1 behind and 1 left."),
    ((1, 2, 1, 1, 0), [], "The goal is 0 ahead and 2 left."),
    ((1, 1, 2, 3, 3), [], "The goal is 2 ahead and 2 left."),
    ((1, 2, 3, 3, 1), [], "The goal is 2 behind and 1 right."),
    ((0, 0, 0, 1, 0), ["forward"], f"The goal is 0 ahead and 1 right.{BUMPED}"),
    ((0, 0, 1, 1, 0), ["forward"], "The goal is 0 ahead and 0 right."),
])  # fmt: skip
def test_the_relative_template_says_where_the_agent_sees_the_goal(start, said, told):
    env = language_env(template="relative", action_names=["forward", "left"])
    text, _ = env.reset(options={"state": dict(zip(START, start, strict=True))})
    assert told == (env.step(json.dumps(said))[0] if said else text)


@pytest.mark.parametrize(
    "text", ["", "\x00", "\ud800", '["\ud800"]', "</s>", "[" * 100_000, "\x1b[31m", "💥" * 999]
)
def test_any_text_is_a_legal_step(text):
    env = language_env()
    env.reset(seed=0)
    observation, _, _, _, info = env.step(text)
    assert info["invalid_action"]
    assert json.loads(json.dumps(info)) == info
    assert observation in env.observation_space


@pytest.mark.parametrize(("kwargs", "message"), [
    ({"env_id": "NoSuchWorld-v0"}, "NoSuchWorld-v0"), ({"env_kwargs": {"sise": 4}}, "sise"),
    ({"env_kwargs": {"walls": [(1, 0), (0, 1)]}}, "no way from"), ({"template": "{x"}, "template"),
    ({"action_names": ["go"]}, "action_names: expected 2 names"),
    ({"max_chains": 0}, "max_chains: expected at least 1, got 0"),
    ({"max_chain_length": 0}, "max_chain_length: expected at least 1, got 0"),
    ({"history": -1}, "history: expected at least 0, got -1"),
    ({"env_id": "CartPole-v1"}, "no text view is shipped"),
    ({"env_id": "FrozenLake-v1", "template": "relative"}, "no template 'relative'; take brief"),
    *(
        ({"template": text}, rf"fields out of .*'feedback'\], got {re.escape(repr(text))}")
        for text in ("{x} {z}", "{}", "{x:q}")
    ),
])  # fmt: skip
def test_what_does_not_fit_together_is_a_configuration_error(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        language_env(**kwargs).reset(seed=0)


def test_other_options_reach_the_environment():
    env = LanguageEnv(GridWorld())
    assert len({env.reset(seed=0, options={"copy": copy})[0] for copy in range(5)}) > 1


@pytest.mark.parametrize(
    ("env_id", "finished"), [("FrozenLake-v1", [5, 15]), ("CliffWalking-v1", [47]), (TAXI, [0])]
)
def test_an_episode_of_gymnasiums_worlds_cannot_begin_where_it_is_over(env_id, finished):
    env = language_env(env_id, WORLDS[env_id])
    for state in finished:
        with pytest.raises(ValueError, match=f"episode is not over, got {{'state': {state}}}"):
            env.reset(options={"state": {"state": state}})
    with pytest.raises(ValueError, match="state: expected"):
        env.reset(options={"state": {"state": 999}})
