"""A world of many maps, the map named in its states: corridors with the way out here or there."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lactchain.environments.exact import TabularModel
from lactchain.environments.views import TextView, reset_into

NUM_MAPS, NUM_CELLS = 10, 4
STATES = [{"map": m, "cell": c} for m in range(NUM_MAPS) for c in range(NUM_CELLS)]


def is_out(state):
    """The way out of a map is in the cell of its number's remainder."""
    return state["cell"] == state["map"] % NUM_CELLS


def after(state, action):
    """One cell to the left (0) or to the right (1), as far as there are cells."""
    cell = min(max(state["cell"] + 2 * action - 1, 0), NUM_CELLS - 1)
    return {"map": state["map"], "cell": cell}


OPEN = [state for state in STATES if not is_out(state)]


class Corridors(gym.Env):
    """Ten corridors of four cells."""

    observation_space = spaces.MultiDiscrete([NUM_MAPS, NUM_CELLS])
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        drawn = OPEN[self.np_random.integers(len(OPEN))]
        self.state = (options or {}).get("state", drawn)
        return np.array([*self.state.values()]), {}

    def step(self, action):
        self.state = after(self.state, action)
        out = is_out(self.state)
        return np.array([*self.state.values()]), float(out), out, False, {}

    def text_view(self):
        return TextView(
            action_names=("left", "right"),
            template="map {map}, cell {cell}{feedback}",
            describe=lambda env, seen, info: {"map": seen[0], "cell": seen[1]},
            get_state=lambda env: env.unwrapped.state,
            set_state=reset_into,
            states=lambda env: list(OPEN),
            model=lambda env: model(),
        )


def model():
    """The same rules for exact values."""
    row = {tuple(state.values()): n for n, state in enumerate(STATES)}
    terminal = np.array([is_out(state) for state in STATES])
    leads = [[s if is_out(s) else after(s, a) for a in range(2)] for s in STATES]
    next_state = np.array([[row[tuple(s.values())] for s in two] for two in leads])[:, :, None]
    reward = (terminal[next_state] & ~terminal[:, None, None]).astype(float)
    ones = np.ones(reward.shape)
    return TabularModel(next_state, ones, reward, terminal, terminal, tuple(STATES))


gym.register("my/Corridors-v0", entry_point="corridors:Corridors")
