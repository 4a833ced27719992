"""Worlds that throw dice, small enough to reckon by hand."""

from functools import partial

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lactchain.environments.exact import TabularModel
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import TextView, reset_into

AT_A, AT_B, GOAL, HOLE = range(4)
CAREFUL, BOLD = range(2)


def bridge():
    """From A careful steps lead to B every other time, a bold one to the goal every fourth time.

    From B a bold step leads to the goal, a careful one into the hole. What is left leads nowhere
    (careful) or into the hole (bold).
    """
    next_state = np.array([[[AT_A, AT_B], [GOAL, HOLE]], [[HOLE, HOLE], [GOAL, GOAL]]])
    ended = np.broadcast_to(np.arange(2, 4)[:, None, None], (2, 2, 2))
    probability = np.full((4, 2, 2), 0.5)
    probability[AT_A, BOLD] = 0.25, 0.75
    next_state = np.concatenate([next_state, ended])
    reward = (next_state == GOAL).astype(float)
    reward[2:] = 0.0
    over = np.arange(4) >= GOAL
    states = tuple({"place": place} for place in range(4))
    return TabularModel(next_state, probability, reward, over, np.arange(4) == GOAL, states)


class Lottery(gym.Env):
    """Tickets with prices: ticket i wins where the die, in [0, 1), falls below its chance.

    One decision is one die for whatever ticket, and then one for what is seen next.
    """

    observation_space = spaces.Discrete(2)

    def __init__(self, chances=(0.2, 0.4, 0.6, 0.8), dice=True):
        self.chances, self.dice = chances, dice
        self.action_space = spaces.Discrete(len(chances))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = (options or {}).get("state", {"seen": 0})["seen"]
        return self.seen, {}

    def step(self, action):
        die = self.np_random.random() if self.dice else 0.5
        self.seen = int(die < 0.5)
        return self.seen, float(die < self.chances[action]), False, False, {}

    def text_view(self):
        return TextView(
            action_names=tuple(f"ticket {number}" for number in range(len(self.chances))),
            template="seen {seen}{feedback}",
            bump_feedback="",
            describe=lambda env, seen, info: {"seen": seen},
            get_state=lambda env: {"seen": env.unwrapped.seen},
            set_state=reset_into,
            states=lambda env: [{"seen": 0}, {"seen": 1}],
        )


def lottery(**kwargs):
    """The lottery in text, a ticket at a time."""
    return LanguageEnv(Lottery(**kwargs), max_chain_length=1)


gym.register("Lottery-v0", Lottery)
gym.register("NoLottery-v0", partial(Lottery, dice=False))
