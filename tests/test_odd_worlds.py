"""What a world of a user says of itself is of its type, and one that cannot be is a line."""

import itertools
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from key_corridor import LEFT, OUT, RIGHT, STATES, TAKE, KeyCorridor, model

from lactchain import EnvironmentConfig, LanguageEnv, TextView, make_language_env
from lactchain.baselines import evaluation
from lactchain.baselines.evaluation import evaluate_members
from lactchain.baselines.member_envs import MemberEnvs
from lactchain.data.episodes import all_episodes, sampled_episodes
from lactchain.environments import faults
from lactchain.errors import ConfigError, EnvironmentFault


class Corridor(KeyCorridor):
    """It cannot be made if there is an error, and has no end if it is to be endless."""

    def __init__(self, error=None, endless=False):
        self.endless = endless
        if error is not None:
            raise error

    def step(self, action):
        if self.endless:
            return super().reset()[0], 1.0, False, False, {}
        return super().step(action)


def corridor(**changes):
    return LanguageEnv(Corridor(), replace(KeyCorridor().text_view(), **changes))


def failing(*_):
    raise KeyError("no\ncell")


NO_STATES = "lists at least one state, a dict, and each once; got"


@pytest.mark.parametrize("name", ["states", "starts"])
@pytest.mark.parametrize(("call", "told"), [
    (failing, r"raised KeyError: 'no\\ncell', at"),
    (lambda env: [], NO_STATES),
    (lambda env: None, NO_STATES),
    (lambda env: iter(STATES), NO_STATES),
    (lambda env: [*STATES, STATES[0]], NO_STATES),
    (lambda env: [0, 1], NO_STATES),
])  # fmt: skip
def test_states_that_are_listed_are_some_states(name, call, told):
    env = corridor(**{name: call})
    for begin in (lambda: all_episodes(env, 0), lambda: sampled_episodes(env, 2, 0)):
        with pytest.raises(EnvironmentFault, match=told):
            begin()


@pytest.mark.parametrize(("name", "value", "told"), [
    ("get_state", 1, "get_state gives a dict, the parts of a state; got 1"),
    *(("get_state", state, "get_state gives a dict") for state in ("1", [1])),
    *(
        ("get_state", STATES[0] | {"x": x}, "what JSON can hold")
        for x in (float("nan"), 10**5000, max)
    ),
    ("describe", None, "describe gives a dict, the fields of its template; got None"),
    ("describe", ["cell"], "describe gives a dict"),
    *(
        ("position", position, "position is a list of numbers")
        for position in (None, "ab", [max], [0, float("nan")])
    ),
    ("ending", 5, "ending is a text, or None; got 5"),
    ("success", "no", "success is true or false; got no"),
    ("get_state", {"cell": {1: 2}}, "names in a state are texts"),
])  # fmt: skip
def test_what_a_view_tells_is_of_its_type(name, value, told):
    env = corridor(**{name: lambda *_: value})
    with pytest.raises(EnvironmentFault, match=told):
        env.reset(options={"state": {"cell": 3, "key": 1}})
        env.step('["right"]')


@pytest.mark.parametrize(("name", "value", "told"), [
    ("action_names", "lr", "action_names: expected a list of texts, got 'lr'"),
    ("action_names", (1, 2), r"action_names\[0\]: expected a text, got 1"),
    ("action_names", ("left", "ri\ud800ght"), "action_names: expected words .* halves of"),
    ("action_names", ("left", "r" * 1001), "action_names: expected words of at most 1000"),
    ("bump_feedback", None, "bump_feedback: expected a text, got None"),
    ("template", None, "template: expected a text"),
    ("max_chains", "5", "max_chains: expected a whole number, got '5'"),
    ("max_chains", float("inf"), "max_chains: expected a whole number"),
])  # fmt: skip
def test_what_stands_in_a_view_is_of_its_type(name, value, told):
    with pytest.raises(ConfigError, match=told):
        corridor(**{name: value})


@pytest.mark.parametrize("field", ["cell.__class__", "cell[0]", "cell!r:>9", "cell:>99999"])
def test_a_template_holds_names_of_fields_and_no_more(field):
    with pytest.raises(ConfigError, match=r"environment\.template: expected the name of a field"):
        corridor(template=f"{{{field}}}")
    shown, _ = corridor(template="{cell:>9}").reset(options={"state": STATES[3]})
    assert shown == "        3"
    grid = EnvironmentConfig("lactchain/GridWorld-v0", template="{x:02d}{y}")
    assert make_language_env(grid).reset(seed=0)[0]


@pytest.mark.parametrize("outcomes", [
    failing,
    lambda *_: None,
    lambda *_: [(0.2, 0.0, STATES[1])],
    lambda *_: [(-1.0, 0.0, STATES[1]), (2.0, 0.0, STATES[1])],
    lambda *_: [(1.0, float("nan"), None)],
    lambda *_: [(1.0, 0.0)],
])  # fmt: skip
def test_outcomes_are_shares_of_one(outcomes):
    env = corridor(outcomes=outcomes)
    with pytest.raises(EnvironmentFault, match=r"raised KeyError|view's outcomes"):
        env.view.outcomes(env.env, 0)


@pytest.mark.parametrize(("given", "told"), [
    (failing, "raised KeyError"),
    (lambda env: {"a": 1}, "expected a TabularModel, got"),
    (lambda env: replace(model(), probability=np.full((9, 3, 1), 0.5)), "shares that sum to 1"),
    (lambda env: replace(model(), reward=np.full((9, 3, 1), np.nan)), "reward: finite numbers"),
    (lambda env: replace(model(), reward=np.zeros(9)), "arrays"),
    (lambda env: replace(model(), next_state=model().next_state + 1), "numbers of the 9 states"),
    (lambda env: replace(model(), states=model().states[::-1]), "in the same order"),
])  # fmt: skip
def test_a_model_is_one_of_the_states_that_are_listed(given, told):
    env = corridor(model=given)
    with pytest.raises(EnvironmentFault, match=told):
        env.view.model(env.env)
    assert corridor().view.model(env.env) == model()
    env = corridor(starts=lambda env: [STATES[0], OUT])
    with pytest.raises(EnvironmentFault, match="the view's `starts` among its states"):
        env.view.model(env.env)


def test_a_state_is_told_alike_until_the_next_step():
    asked = itertools.count()
    env = corridor(get_state=lambda env: env.unwrapped.state | {"asked": next(asked)})
    for options in ({}, {"state": STATES[1]}):
        with pytest.raises(EnvironmentFault, match="tells the same until the next step"):
            env.reset(options=options)


@pytest.mark.parametrize("view", [None, {"template": "x"}, TextView])
def test_a_world_in_words_has_a_view_or_none_of_its_own(view, monkeypatch):
    monkeypatch.setattr(Corridor, "text_view", lambda self: view, raising=False)
    with pytest.raises(ConfigError, match="expected text_view to return a TextView, got"):
        LanguageEnv(Corridor())


def test_a_world_that_cannot_be_made_is_told_with_the_place(monkeypatch):
    monkeypatch.setitem(gym.registry, "odd/C-v0", EnvSpec("odd/C-v0", Corridor))
    for error in (KeyError("no map"), RuntimeError("no map"), OSError("a\nno map")):
        told = pytest.raises(ConfigError, match=r"does not take error: .*no map.*odd_worlds\.py:")
        for make in (
            lambda e: make_language_env(EnvironmentConfig("odd/C-v0", {"error": e})),
            lambda e: MemberEnvs("odd/C-v0", 1, 1, error=e),
        ):
            with told:
                make(error)


def test_an_evaluation_of_a_world_without_an_end_ends(monkeypatch):
    monkeypatch.setitem(gym.registry, "odd/C-v0", EnvSpec("odd/C-v0", Corridor))
    monkeypatch.setattr(evaluation, "MOST_STEPS", 50)
    # To the key, which is taken in the first cell, and then out.
    act = lambda seen: np.where(seen[..., 1], RIGHT, np.where(seen[..., 0], LEFT, TAKE))  # noqa: E731
    assert 5 <= evaluate_members(act, "odd/C-v0", 1, 1).lengths[0][0] <= 8
    with pytest.raises(EnvironmentFault, match="has not ended after 50 steps; .*max_episode_steps"):
        evaluate_members(act, "odd/C-v0", 1, 1, endless=True)


def test_what_goes_on_around_a_step_is_watched_behind_it():
    env, seen = Corridor(), []

    def around():
        faults.called(lambda: None, env, 1, "inner")
        seen.append(faults.overdue(0.0))

    faults.called(around, env, 7, "outer")
    assert "seed 7, last action 'outer'" in seen[0] and faults.overdue(0.0) is None
