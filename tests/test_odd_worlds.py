"""What a world of a user says of itself is of its type, and one that cannot be is a line."""

import itertools

import gymnasium as gym
import numpy as np
import pytest

from lactchain import EnvironmentConfig, LanguageEnv, TextView
from lactchain.baselines import evaluation
from lactchain.baselines.evaluation import evaluate_members
from lactchain.baselines.member_envs import MemberEnvs
from lactchain.data.episodes import all_episodes, sampled_episodes
from lactchain.environments import faults
from lactchain.environments.exact import TabularModel
from lactchain.environments.language import make_language_env
from lactchain.errors import ConfigError, EnvironmentFault

CELLS = 3


class Corridor(gym.Env):
    """Three cells; behind the last one it is over, unless it is to be endless."""

    observation_space, action_space = gym.spaces.Discrete(CELLS + 1), gym.spaces.Discrete(2)

    def __init__(self, error=None, endless=False):
        self.endless = endless
        if error is not None:
            raise error

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = (options or {}).get("state", {"cell": 0})["cell"]
        return self.cell, {}

    def step(self, action):
        self.cell = max(0, self.cell + 2 * int(action) - 1) % (CELLS + 1)
        over = self.cell == CELLS and not self.endless
        return self.cell, 1.0, over, False, {}


def states(env):
    return [{"cell": cell} for cell in range(CELLS)]


def ahead(env, **changes):
    to = np.array([[[max(0, c - 1)], [c + 1]] for c in range(CELLS)] + [[[CELLS]] * 2])
    over = np.arange(CELLS + 1) == CELLS
    arrays = {"next_state": to, "probability": np.ones(to.shape), "reward": np.zeros(to.shape)}
    names = tuple(states(env)) + ({"cell": CELLS},)
    return TabularModel(**(arrays | {"terminal": over, "goal": over, "states": names} | changes))


def corridor(**changes):
    view = {
        "action_names": ("left", "right"),
        "template": "{cell}",
        "describe": lambda env, *_: {"cell": env.unwrapped.cell},
        "get_state": lambda env: {"cell": env.unwrapped.cell},
        "set_state": lambda env, state: env.reset(options={"state": state}),
        "states": states,
        "model": ahead,
    }
    return LanguageEnv(Corridor(), TextView(**(view | changes)))


def failing(*_):
    raise KeyError("no\ncell")


NO_STATES = "lists at least one state, a dict, and each once; got"


@pytest.mark.parametrize("name", ["states", "starts"])
@pytest.mark.parametrize(
    ("call", "told"),
    [
        (failing, r"raised KeyError: 'no\\ncell', at"),
        (lambda env: [], NO_STATES),
        (lambda env: None, NO_STATES),
        (lambda env: iter(states(env)), NO_STATES),
        (lambda env: [*states(env), {"cell": 0}], NO_STATES),
        (lambda env: [0, 1], NO_STATES),
    ],
)
def test_states_that_are_listed_are_some_states(name, call, told):
    env = corridor(**{name: call})
    for begin in (lambda: all_episodes(env, 0), lambda: sampled_episodes(env, 2, 0)):
        with pytest.raises(EnvironmentFault, match=told):
            begin()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("get_state", 1, "get_state gives a dict, the parts of a state; got 1"),
        ("get_state", "1", "get_state gives a dict"),
        ("get_state", [1], "get_state gives a dict"),
        ("get_state", {"cell": 0, "x": float("nan")}, "what JSON can hold"),
        ("get_state", {"cell": 0, "x": 10**5000}, "what JSON can hold"),
        ("get_state", {"cell": 0, "x": max}, "what JSON can hold"),
        ("describe", None, "describe gives a dict, the fields of its template; got None"),
        ("describe", ["cell"], "describe gives a dict"),
        ("position", None, "position is a list of numbers"),
        ("position", "ab", "position is a list of numbers"),
        ("position", [max], "position is a list of numbers"),
        ("position", [0, float("nan")], "position is a list of numbers"),
        ("ending", 5, "ending is a text, or None; got 5"),
        ("success", "no", "success is true or false; got no"),
        ("get_state", {"cell": {1: 2}}, "names in a state are texts"),
    ],
)
def test_what_a_view_tells_is_of_its_type(name, value, told):
    env = corridor(**{name: lambda *_: value})
    with pytest.raises(EnvironmentFault, match=told):
        env.reset(options={"state": {"cell": 0}})
        env.step('["right", "right", "right"]')


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("action_names", "lr", "action_names: expected a list of texts, got 'lr'"),
        ("action_names", (1, 2), r"action_names\[0\]: expected a text, got 1"),
        ("action_names", ("left", "ri\ud800ght"), "action_names: expected words .* halves of"),
        ("action_names", ("left", "r" * 1001), "action_names: expected words of at most 1000"),
        ("bump_feedback", None, "bump_feedback: expected a text, got None"),
        ("template", None, "template: expected a text"),
        ("max_chains", "5", "max_chains: expected a whole number, got '5'"),
        ("max_chains", float("inf"), "max_chains: expected a whole number"),
    ],
)
def test_what_stands_in_a_view_is_of_its_type(name, value, told):
    with pytest.raises(ConfigError, match=told):
        corridor(**{name: value})


@pytest.mark.parametrize("field", ["cell.__class__", "cell[0]", "cell!r:>9", "cell:>99999"])
def test_a_template_holds_names_of_fields_and_no_more(field):
    with pytest.raises(ConfigError, match=r"environment\.template: expected the name of a field"):
        corridor(template=f"{{{field}}}")
    assert corridor(template="{cell:>9}").reset(seed=0)[0].endswith("0")
    grid = EnvironmentConfig("lactchain/GridWorld-v0", template="{x:02d}{y}")
    assert make_language_env(grid).reset(seed=0)[0]


@pytest.mark.parametrize(
    "outcomes",
    [
        failing,
        lambda *_: None,
        lambda *_: [(0.2, 0.0, {"cell": 1})],
        lambda *_: [(-1.0, 0.0, {"cell": 1}), (2.0, 0.0, {"cell": 1})],
        lambda *_: [(1.0, float("nan"), None)],
        lambda *_: [(1.0, 0.0)],
    ],
)
def test_outcomes_are_shares_of_one(outcomes):
    env = corridor(outcomes=outcomes)
    with pytest.raises(EnvironmentFault, match=r"raised KeyError|view's outcomes"):
        env.view.outcomes(env.env, 0)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (failing, "raised KeyError"),
        (lambda env: {"a": 1}, "expected a TabularModel, got"),
        (lambda env: ahead(env, probability=np.full((4, 2, 1), 0.5)), "shares that sum to 1"),
        (lambda env: ahead(env, reward=np.full((4, 2, 1), np.nan)), "reward: finite numbers"),
        (lambda env: ahead(env, reward=np.zeros(4)), "arrays"),
        (lambda env: ahead(env, next_state=ahead(env).next_state + 1), "numbers of the 4 states"),
        (lambda env: ahead(env, states=ahead(env).states[::-1]), "in the same order"),
    ],
)
def test_a_model_is_one_of_the_states_that_are_listed(model, told):
    env = corridor(model=model)
    with pytest.raises(EnvironmentFault, match=told):
        env.view.model(env.env)
    assert corridor().view.model(env.env) == ahead(env)
    env = corridor(starts=lambda env: [{"cell": 0}, {"cell": CELLS}])
    with pytest.raises(EnvironmentFault, match="the view's `starts` among its states"):
        env.view.model(env.env)


def test_a_state_is_told_alike_until_the_next_step():
    asked = itertools.count()
    env = corridor(get_state=lambda env: {"cell": env.unwrapped.cell, "asked": next(asked)})
    for options in ({}, {"state": {"cell": 1}}):
        with pytest.raises(EnvironmentFault, match="tells the same until the next step"):
            env.reset(options=options)


@pytest.mark.parametrize("view", [None, {"template": "x"}, TextView])
def test_a_world_in_words_has_a_view_or_none_of_its_own(view, monkeypatch):
    monkeypatch.setattr(Corridor, "text_view", lambda self: view, raising=False)
    with pytest.raises(ConfigError, match="expected text_view to return a TextView, got"):
        LanguageEnv(Corridor())


def test_a_world_that_cannot_be_made_is_told_with_the_place(monkeypatch):
    monkeypatch.setitem(
        gym.registry, "odd/C-v0", gym.envs.registration.EnvSpec("odd/C-v0", Corridor)
    )
    for error in (KeyError("no map"), RuntimeError("no map"), OSError("a\nno map")):
        told = pytest.raises(ConfigError, match=r"does not take error: .*no map.*odd_worlds\.py:")
        for make in (
            lambda e: make_language_env(EnvironmentConfig("odd/C-v0", {"error": e})),
            lambda e: MemberEnvs("odd/C-v0", 1, 1, error=e),
        ):
            with told:
                make(error)


def test_an_evaluation_of_a_world_without_an_end_ends(monkeypatch):
    monkeypatch.setitem(
        gym.registry, "odd/C-v0", gym.envs.registration.EnvSpec("odd/C-v0", Corridor)
    )
    monkeypatch.setattr(evaluation, "MOST_STEPS", 50)
    act = lambda seen: np.ones(seen.shape[:2], int)  # noqa: E731
    assert evaluate_members(act, "odd/C-v0", 1, 1).lengths == [[CELLS]]
    with pytest.raises(EnvironmentFault, match="has not ended after 50 steps; .*max_episode_steps"):
        evaluate_members(act, "odd/C-v0", 1, 1, endless=True)


def test_what_goes_on_around_a_step_is_watched_behind_it():
    env, seen = Corridor(), []

    def around():
        faults.called(lambda: None, env, 1, "inner")
        seen.append(faults.overdue(0.0))

    faults.called(around, env, 7, "outer")
    assert "seed 7, last action 'outer'" in seen[0] and faults.overdue(0.0) is None
