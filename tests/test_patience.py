"""A step that does not return is known by its seed and its action, and ends the process."""

import os
import signal
import subprocess
import sys
import time

import gymnasium as gym
from gymnasium import spaces

from lactchain import LanguageEnv, TextView
from lactchain.baselines.member_envs import MemberEnvs
from lactchain.environments.patience import overdue


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


HANGS = """
import threading, time
from lactchain import process
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
