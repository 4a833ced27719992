"""An environment that raises, breaks the rules, ends or hangs: a line with seed and action."""

import asyncio
import json
import os
import re
import signal
import time
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from run_setups import start

from lactchain import Episode, FunctionPolicy, LanguageEnv, Rollouts, TextView, language_env
from lactchain.baselines.evaluation import evaluate_members
from lactchain.baselines.member_envs import MemberEnvs
from lactchain.environments.faults import overdue
from lactchain.errors import EnvironmentFault, NonFiniteError
from lactchain.functional.random_streams import env_seeds
from lactchain.runs.process import seed_everything
from lactchain_extras.ecosystems.sessions import Session

SEED = f"(7|{env_seeds(7, 'copy', 1)[0]})"  # of a text world, and of an agent's copy
(EVALUATED,) = env_seeds(3, "evaluation", 1)
STEP = {"type": "step", "data": {"text": '["right", "left"]'}}
VIEW = TextView(("left", "right"), "here", lambda *_: {})


class Odd(gym.Env):
    """Does in its second step, or at once where it resets, what it is told."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
    text_view = lambda _: VIEW  # noqa: E731
    in_reset, in_step = None, None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return type(self).in_reset() if type(self).in_reset else (row(0, 0), {})

    def step(self, action):
        self.steps += 1
        return type(self).in_step() if self.steps == 2 else answers()()


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


def row(*values):
    return np.array(values, np.float32)


def in_text():
    env = language_env("test/Odd-v0")
    env.reset(seed=7)
    env.step('["right", "left"]')


def in_a_rollout():
    seeds = [Episode(7), Episode(8)]
    Rollouts("test/Odd-v0", 2).play(FunctionPolicy(lambda _: '["right", "left"]'), seeds)


def in_an_evaluation():
    evaluate_members(lambda o: np.ones(o.shape[:2], int), "test/Odd-v0", 1, 2, seed=3)


def with_agents():
    envs = MemberEnvs("test/Odd-v0", 1, 1, seed=7)
    for action in (1, 0):
        envs.step(np.array([[action]]))


@pytest.mark.parametrize("play", [in_text, with_agents])
def test_a_step_is_known_while_it_is_under_way(play, odd):
    told = []

    def look():
        told.extend([overdue(0.0), overdue(60.0)])
        return row(0, 0), 0.0, False, False, {}

    odd(on_step=look)
    play()
    assert re.search(rf"not returned within 0 s \(seed {SEED}, last action .*0\)*$", told[0])
    assert told[1] is None and overdue(0.0) is None


def answers(observation=None, reward=0.0, terminated=False, info=None):
    """A step that answers with these; its other parts are as they should be."""
    seen = row(0, 0) if observation is None else observation
    return lambda: (seen, reward, terminated, False, {} if info is None else info)


def recursing():
    return recursing()


ODD = {
    "raises": (raising(KeyError("no\ncell")), r"raised KeyError: 'no\\ncell', at .*_faults.py:"),
    "is cancelled": (raising(asyncio.CancelledError()), "raised CancelledError"),
    "recurses": (recursing, "raised RecursionError"),
    "takes memory": (lambda: bytearray(1 << 62), "raised MemoryError"),
    "exits": (raising(SystemExit(0)), r"called sys.exit\(0\) in the middle of the work"),
    "no truncated": (lambda: (row(0, 0), 0.0, False, {}), r"step\(\) returns \(observation, rew"),
    "digits": (lambda: (row(0, 0), 10**9999, False, {}), "got what has thousands of digits"),
    "no reward": (answers(reward=None), "a reward is a finite number"),
    "huge": (answers(reward=10**400), r"a reward is at most 3.4e\+38, .*got 1000"),
    "huger": (answers(reward=10**9999), "got what has thousands of digits"),
    "no flag": (answers(terminated="no"), "terminated and truncated are booleans"),
    "no info": (answers(info=()), "info is a dict"),
    "no observation": (lambda: (None, 0.0, False, False, {}), "rule: an observation is "),
    "another shape": (answers(row(0)), "rule: an observation is "),
    "ragged": (answers([[0], [0, 1]]), "rule: an observation is "),
    "no numbers": (answers(np.array(["a", "b"])), "an observation is "),
}
ODD_IN_TEXT = {  # for agents these are no numbers to learn from, or are made float32
    "nan": (answers(reward=float("nan")), "a reward is a finite number"),
    "inf": (answers(reward=np.float32("inf")), "a reward is a finite number"),
    "large": (answers(reward=-1e308), r"at most 3.4e\+38, as float32 .*-1e\+308"),
    "nan seen": (answers(row(0, np.nan)), "an observation is in Box"),
    "float64 seen": (answers(np.zeros(2)), "an observation is in Box"),
}
PLAYS = [(with_agents, name) for name in ODD] + [(in_text, name) for name in ODD | ODD_IN_TEXT]


@pytest.mark.parametrize(("play", "name"), PLAYS)
@pytest.mark.filterwarnings("ignore")  # Gymnasium's, of observations that are no arrays
def test_what_an_environment_does_is_told_with_seed_and_action(name, play, odd):
    call, line = (ODD | ODD_IN_TEXT)[name]
    odd(on_step=call)
    told = rf"{line}.*\(seed {SEED}, last action .*0.*\)$"
    with pytest.raises(EnvironmentFault, match=told) as fault:
        play()
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("play", [in_text, with_agents])
def test_a_reset_that_goes_wrong_is_told_with_the_seed(play, odd):
    rule = r"reset\(\) returns \(observation, info dict\)"
    wrong = [(raising(ValueError("x")), "raised ValueError"), (raising(SystemExit(3)), "sys.exit")]
    wrong += [(lambda: None, rule), (lambda: row(0, 0), rule), (lambda: (row(0, 0), None), rule)]
    outside = [(lambda: (row(0, np.nan), {}), "in Box"), (lambda: (row(0), {}), "in Box")]
    for call, line in wrong + outside * (play is in_text):
        odd(on_reset=call)
        with pytest.raises(EnvironmentFault, match=rf"{line}.*\(seed {SEED}, last action None\)$"):
            play()


SECOND_START = iter([(row(0, 0), {}), (row(np.inf, 0), {})])
OBSERVED = rf"copy 0: observation .*seed {SEED}, last action"


@pytest.mark.parametrize(("play", "step", "reset", "told"), [
    (with_agents, answers(row(0, np.nan)), None, f"{OBSERVED} 0"),
    # in the place of the last one of an episode its successor stands
    (with_agents, answers(row(0, np.nan), terminated=True), None, f"{OBSERVED} 0"),
    (with_agents, answers(), lambda: (row(np.inf, 0), {}), f"{OBSERVED} None"),
    (with_agents, answers(terminated=True), SECOND_START.__next__, f"{OBSERVED} None"),
    (with_agents, answers(reward=np.nan), None, rf"reward nan .*seed {SEED}, last action 0"),
    (in_an_evaluation, answers(reward=np.nan), None, rf"\(first seed {EVALUATED}, last action 1\)"),
])  # fmt: skip
def test_what_is_no_number_is_neither_learnt_from_nor_judged_by(play, step, reset, told, odd):
    odd(reset, step)
    with pytest.raises(NonFiniteError, match=told):
        play()


def test_what_raises_where_an_episode_of_a_rollout_begins_is_told(odd):
    rollouts = Rollouts.__new__(Rollouts)
    rollouts.env = LanguageEnv(Odd(), replace(VIEW, set_state=lambda env, state: env.reset()))
    odd(on_reset=raising(ValueError("no such cell")))
    with pytest.raises(EnvironmentFault, match="raised ValueError: no such cell"):
        rollouts.observe([{"cell": 1}])


HANGS = """
import sys, threading, time
from datetime import timedelta
from lactchain.runs import process
from lactchain.environments import faults
class Endless:
    def step(self, action):
        print("begun", flush=True)
        while True:
            time.sleep(0.1)
process.GRACE_SECONDS = 0.2
process.distributed.timeout = timedelta(seconds=float(sys.argv[1]))
process._listen_to_signals()
faults.step(Endless(), 3, 11, lambda *_: None)
"""


@pytest.mark.parametrize(("patience", "code"), [(60, 143), (1, 6)])
def test_a_step_that_never_returns_ends_by_a_signal_or_when_patience_does(patience, code):
    with start(HANGS, patience) as process:
        assert process.stdout.readline() == "begun\n"
        if code == 143:
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == code
        assert "(seed 11, last action 3); give the same command to go on" in process.stderr.read()


def in_a_session():
    session = Session(language_env("test/Odd-v0"), {})
    for message in ({"type": "reset", "data": {"seed": 7}}, STEP):
        assert json.loads(session.answer(json.dumps(message)))["type"] == "observation"


@pytest.mark.parametrize(
    ("play", "when"),
    [(play, when) for play in (with_agents, in_text) for when in ("made", "reset")]
    + [(play, "step") for play in (in_a_session, in_a_rollout, in_an_evaluation, with_agents)],
)
def test_what_a_world_changes_of_its_process_is_put_back(play, when, odd, monkeypatch, tmp_path):
    """Else its signals are not heard, and agents compute in other types, elsewhere, or nothing."""
    heard = signal.getsignal(signal.SIGTERM)

    def change(*_):
        torch.set_default_device("meta")
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_num_threads(2)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.environ["WORLD_SIZE"] = "4"
        os.chdir("/")
        if when != "made":
            return (row(0, 0), {}) if when == "reset" else answers(terminated=True)()

    seed_everything(0, threads=1)
    monkeypatch.chdir(tmp_path)
    odd(change if when == "reset" else None, change if when == "step" else answers())
    if when == "made":
        monkeypatch.setattr(Odd, "__init__", change)
    try:
        play()
        weight = torch.nn.Linear(1, 1).weight
        told = weight.dtype, weight.device.type, torch.is_grad_enabled(), torch.get_num_threads()
        assert told == (torch.float32, "cpu", True, 1) and signal.getsignal(signal.SIGTERM) == heard
        assert "WORLD_SIZE" not in os.environ and os.getcwd() == str(tmp_path)
    finally:
        signal.signal(signal.SIGTERM, heard)
        seed_everything(0, threads=1)
