"""What comes of an environment that raises, ends or hangs: a line with its seed and its action."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from lactchain import LanguageEnv, Rollouts, TextView
from lactchain.baselines.evaluation import evaluate_members
from lactchain.baselines.member_envs import MemberEnvs
from lactchain.environments.patience import overdue
from lactchain.errors import EnvironmentFault, NonFiniteError


class Slow(gym.Env):
    """Tells in each step what is overdue."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        self.told = overdue(0.0), overdue(60.0)
        return 0, 0.0, False, False, {}


def test_a_step_of_a_text_world_is_known_while_it_is_under_way():
    env = LanguageEnv(Slow(), TextView(("left", "right"), "here", lambda *_: {}))
    env.reset(seed=7)
    env.step('["right"]')
    assert env.env.told[0].endswith("not returned within 0 s (seed 7, last action 1)")
    assert env.env.told[1] is None and overdue(0.0) is None


def test_a_step_of_a_classic_agents_world_is_known_too():
    gym.register("test/Slow-v0", Slow, disable_env_checker=True)
    try:
        envs = MemberEnvs("test/Slow-v0", 1, 1, seed=5)
        envs.step(spaces.MultiDiscrete([[1]]).sample())
        told, none = envs.envs.envs[0].unwrapped.told
        assert "(seed 5, last action" in told and none is None
    finally:
        del gym.registry["test/Slow-v0"]


class Odd(gym.Env):
    """Does in its second step, or at once where it resets, what it is told."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
    in_reset, in_step = None, None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        start = np.zeros(2, np.float32), {}
        return type(self).in_reset() if type(self).in_reset else start

    def step(self, action):
        self.steps += 1
        good = np.zeros(2, np.float32), 0.0, False, False, {}
        return type(self).in_step() if self.steps == 2 else good


@pytest.fixture
def odd(monkeypatch):
    """Has the environment `test/Odd-v0` do something odd."""
    monkeypatch.setitem(gym.registry, "test/Odd-v0", gym.envs.registration.EnvSpec(
        "test/Odd-v0", Odd, disable_env_checker=True, order_enforce=False
    ))  # fmt: skip

    def does(on_reset=None, on_step=None):
        for name, call in (("in_reset", on_reset), ("in_step", on_step)):
            monkeypatch.setattr(Odd, name, call and staticmethod(call))

    return does


def raising(error):
    def call():
        raise error

    return call


def in_text():
    env = LanguageEnv(Odd(), TextView(("left", "right"), "here", lambda *_: {}))
    env.reset(seed=7)
    env.step('["right", "left"]')


def with_agents():
    envs = MemberEnvs("test/Odd-v0", 1, 1, seed=7)
    for action in (1, 0):
        envs.step(np.array([[action]]))


def row(*values):
    return np.array(values, np.float32)


ODD = {
    "raises": (
        raising(KeyError("no\ncell")),
        r"raised KeyError: 'no\\ncell', at .*test_patience.py:",
    ),
    "is cancelled": (raising(asyncio.CancelledError()), "raised CancelledError"),
    "exits": (raising(SystemExit(0)), r"called sys.exit\(0\) in the middle of the work"),
    "no truncated": (lambda: (row(0, 0), 0.0, False, {}), "breaks Gymnasium's rule: step"),
    "no observation": (lambda: (None, 0.0, False, False, {}), "rule: an observation is "),
    "another shape": (lambda: (row(0), 0.0, False, False, {}), "rule: an observation is "),
    "ragged": (lambda: ([[0], [0, 1]], 0.0, False, False, {}), "rule: an observation is "),
    "no numbers": (lambda: (np.array(["a", "b"]), 0.0, False, False, {}), "an observation is "),
}


@pytest.mark.parametrize("play", [in_text, with_agents])
@pytest.mark.parametrize(("call", "line"), ODD.values(), ids=ODD)
@pytest.mark.filterwarnings("ignore")  # Gymnasium's, of observations that are no arrays
def test_what_an_environment_does_is_told_with_seed_and_action(call, line, play, odd):
    odd(on_step=call)
    with pytest.raises(EnvironmentFault, match=rf"{line}.*\(seed 7, last action .*0.*\)$") as fault:
        play()
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("play", [in_text, with_agents])
def test_a_reset_that_goes_wrong_is_told_with_the_seed(play, odd):
    for call in (raising(ValueError("x")), lambda: None, lambda: row(0, 0), raising(SystemExit(3))):
        odd(on_reset=call)
        with pytest.raises(EnvironmentFault, match=r"\(seed 7, last action None\)$"):
            play()


@pytest.mark.parametrize("ended", [False, True])
def test_an_observation_that_is_no_number_is_never_learnt_from(ended, odd):
    """Not even the last one of an episode, in the place of which its successor stands."""
    odd(on_step=lambda: (row(0, np.nan), 0.0, ended, False, {}))
    with pytest.raises(
        NonFiniteError, match=r"copy 0: observation .*\(first seed 7, last action 0"
    ):
        with_agents()
    odd(on_reset=lambda: (row(np.inf, 0), {}))
    with pytest.raises(
        NonFiniteError, match=r"copy 0: observation .*first seed 7, last action None"
    ):
        with_agents()


def test_an_evaluation_of_numbers_that_are_none_is_refused(odd):
    odd(on_step=lambda: (row(0, 0), np.nan, False, False, {}))
    with pytest.raises(NonFiniteError, match=r"reward nan \(first seed 3, last action 1\)"):
        evaluate_members(lambda o: np.ones(o.shape[:2], int), "test/Odd-v0", 1, 2, seed=3)


def test_what_raises_where_an_episode_of_a_rollout_begins_is_told(odd):
    view = TextView(
        ("left", "right"), "here", lambda *_: {}, set_state=lambda env, state: env.reset()
    )
    rollouts = Rollouts.__new__(Rollouts)
    rollouts.env = LanguageEnv(Odd(), view)
    odd(on_reset=raising(ValueError("no such cell")))
    with pytest.raises(EnvironmentFault, match="raised ValueError: no such cell"):
        rollouts.observe([{"cell": 1}])


HANGS = """
import threading, time
from lactchain.runs import process
from lactchain.environments import patience
class Endless:
    def step(self, action):
        print("begun", flush=True)
        while True:
            time.sleep(0.1)
process.GRACE_SECONDS = 0.2
process._listen_to_signals()
patience.step(Endless(), 3, 11, lambda *_: None)
"""


def test_a_signal_is_heard_in_a_step_that_never_returns(root):
    environment = os.environ | {"PYTHONPATH": str(root)}
    command = [sys.executable, "-c", HANGS]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
        assert "(seed 11, last action 3); give the same command to go on" in process.stderr.read()
