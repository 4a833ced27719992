"""A world from outside of LactChain, whole in this file: a corridor, a key, a locked door."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lactchain.environments.exact import TabularModel
from lactchain.environments.views import TextView, reset_into
from lactchain.inspection.pictures import Mark, Picture, Scene
from lactchain.types import Action

DOOR = 4
LEFT, RIGHT, TAKE = range(3)
STATES = [{"cell": cell, "key": key} for key in (0, 1) for cell in range(DOOR)]
OUT = {"cell": DOOR, "key": 1}


def after(state, action):
    """The rules: where an action leads."""
    cell, key = state["cell"], state["key"]
    if action == TAKE:
        return {"cell": cell, "key": int(key or cell == 0)}
    ahead = cell + (1 if action == RIGHT else -1)
    return {"cell": ahead, "key": key} if 0 <= ahead < DOOR + key else state


class KeyCorridor(gym.Env):
    """Five cells in a row: the key lies in the first, the last is behind the door."""

    observation_space, action_space = spaces.MultiDiscrete([DOOR + 1, 2]), spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        drawn = STATES[self.np_random.integers(len(STATES))]
        self.state = (options or {}).get("state", drawn)
        return self._observation(), {}

    def step(self, action):
        self.state = after(self.state, action)
        out = self.state == OUT
        return self._observation(), float(out), out, False, {}

    def _observation(self):
        return np.array([self.state["cell"], self.state["key"]])

    def text_view(self):
        return TextView(
            action_names=("left", "right", "take the key"),
            template="You are in cell {cell}, the door is at 4. You have {keys} keys.{feedback}",
            describe=lambda env, seen, info: {"cell": seen[0], "keys": seen[1]},
            get_state=lambda env: env.unwrapped.state,
            set_state=reset_into,
            states=lambda env: list(STATES),
            model=lambda env: model(),
            position=lambda env: [env.unwrapped.state["cell"], 0],
            policies={"rightwards": Rightwards},
            picture=Picture(DOOR + 1, 1, scene, (Mark(DOOR, 0, "goal"),)),
        )


def model():
    """The same rules for exact values."""
    states = [*STATES, OUT]
    number = {tuple(state.values()): n for n, state in enumerate(states)}
    step = [[number[tuple(after(s, a).values())] for a in range(3)] for s in STATES]
    next_state = np.array([*step, [len(STATES)] * 3])[:, :, None]
    terminal = np.arange(len(states)) == len(STATES)
    reward = (terminal[next_state] & ~terminal[:, None, None]).astype(float)
    sure = np.ones(reward.shape)
    return TabularModel(next_state, sure, reward, terminal, terminal, tuple(states))


class Rightwards:
    """Always one step to the right."""

    name = "rightwards"

    def __init__(self, env):
        self.completion = Action(env.grammar.render([RIGHT]))

    def act(self, observations, seeds):
        return [self.completion for _ in observations]


def scene(state):
    """The agent, and the key where it lies."""
    key = () if state["key"] else (Mark(0, 0, "item", "k"),)
    return Scene((state["cell"], 0), key, f"{state['key']} keys")


gym.register("my/KeyCorridor-v0", entry_point="key_corridor:KeyCorridor")
