"""A copy of a world that is put back goes on to the bit, or is refused by what differs."""

import random
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TransformReward

from lactchain import DataError, EnvironmentFault, LanguageEnv, TextView
from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.state_files import load_state, save_state

STEPS_BEFORE, STEPS_AFTER = 13, 25
SEEN = "its observation is .* and was "


class Walk(gym.Env):
    """Steps of random width; after five the episode is over."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.count = self.width(), 0
        return np.array([self.x, self.count]), {}

    def step(self, action):
        self.x += (2 * action - 1) * self.width()
        self.count += 1
        return np.array([self.x, self.count]), float(self.x), self.count == 5, False, {}

    def width(self):
        return self.np_random.normal()


class Harder(Walk):
    """Each episode is harder than the last, and the steps are counted for ever."""

    def __init__(self):
        self.level, self.all_steps, self.best, self.widths = 0, np.zeros(1), None, [0.0]

    def reset(self, *, seed=None, options=None):
        self.level += 1
        return super().reset(seed=seed)

    def width(self):
        self.all_steps += 1
        self.widths.append(super().width())
        self.best = max(self.best or 0.0, self.widths[-1])
        return self.level * (self.all_steps.item() + self.best) + sum(self.widths)


class Tally:
    def __init__(self, count):
        self.count = count


class Replaces(Walk):
    """It counts its episodes in an object that each of them replaces; every fourth is hard."""

    def __init__(self):
        self.tally = Tally(0)

    def reset(self, *, seed=None, options=None):
        self.tally = Tally(self.tally.count + 1)
        return super().reset(seed=seed)

    def width(self):
        return super().width() * (10.0 if self.tally.count % 4 == 0 else 1.0)


class Remembers(Walk):
    """It knows the places of all episodes, in a form that nothing can write down."""

    def __init__(self):
        self.places = set()

    def width(self):
        self.places.add(len(self.places))
        return float(len(self.places)) ** 2


class PaysByMemory(Remembers):
    def width(self):
        return 1.0

    def step(self, action):
        self.places.add(len(self.places))
        after, _, terminated, truncated, info = super().step(action)
        return after, float(len(self.places)), terminated, truncated, info


class HiddenDice(Walk):
    """Nothing that it shows depends on its dice, in the first steps."""

    def width(self):
        self.luck = random.random()
        return 1.0


def throwing(make_dice):
    """A world with dice of its own."""
    env = Walk()
    env.width = make_dice()
    return env


def normalised(wrappers):
    env = Walk()
    for wrapper in wrappers:
        env = wrapper(env)
    return TransformReward(env, lambda reward: np.asarray(reward).item())


def copies(entry_point):
    gym.register("put-back/World-v0", entry_point, disable_env_checker=True)
    try:
        return MemberEnvs("put-back/World-v0", 1, 2)
    finally:
        del gym.registry["put-back/World-v0"]


def play(envs, seed, num_steps):
    dice = np.random.default_rng(seed)
    return [envs.step(dice.integers(2, size=(1, 2))) for _ in range(num_steps)]


def put_back(entry_point, folder):
    """Where a run was saved, through files, in copies that are made anew; and in the first ones."""
    first, again = copies(entry_point), copies(entry_point)
    play(first, 0, STEPS_BEFORE)
    save_state(folder, first.state_dict(), {})
    expected = play(first, 1, STEPS_AFTER)
    for envs in (again, first):
        envs.load_state_dict(load_state(folder))
        yield expected, play(envs, 1, STEPS_AFTER)


@pytest.mark.parametrize("entry_point", [
    Walk, Harder, Replaces,
    partial(normalised, [NormalizeObservation]), partial(normalised, [NormalizeReward]),
    partial(normalised, [NormalizeObservation, NormalizeReward, NormalizeObservation]),
])  # fmt: skip
def test_what_is_kept_over_episodes_is_put_back_to_the_bit(entry_point, tmp_path):
    for expected, played in put_back(entry_point, tmp_path / "state"):
        for step, other in zip(expected, played, strict=True):
            assert all((vars(step)[name] == vars(other)[name]).all() for name in vars(step))


@pytest.mark.parametrize(("entry_point", "differs"), [
    (partial(throwing, lambda: np.random.normal), SEEN),
    (partial(throwing, lambda: random.random), SEEN),
    (partial(throwing, lambda: np.random.default_rng().normal), SEEN),
    (Remembers, SEEN),
    (PaysByMemory, "its rewards is .* and was "),
    (HiddenDice, "it draws from the generators of the process"),
])  # fmt: skip
def test_what_cannot_be_put_back_is_refused_by_what_differs(entry_point, differs, tmp_path):
    with pytest.raises(EnvironmentFault, match=f"cannot be put back .* after 3 actions: {differs}"):
        next(put_back(entry_point, tmp_path / "state"))


@pytest.mark.parametrize("forgets", ["place", "keys", "doors"])
def test_a_world_in_text_that_does_not_go_where_it_is_put_is_refused(forgets):
    held = {"place": 0, "keys": 0, "doors": [0]}

    def set_state(env, state):
        held.update({name: value for name, value in state.items() if name != forgets})
        return np.zeros(2), {}

    state = {"get_state": lambda env: held, "set_state": set_state}
    view = TextView(("left", "right"), "go{feedback}", lambda *_: {}, **state)
    env, there = LanguageEnv(Walk(), view), {"place": 1, "keys": 2, "doors": [1]}
    with pytest.raises(EnvironmentFault, match=f"cannot be put back .* its {forgets} is .*0"):
        env.reset(options={"state": there})
    assert env.reset(options={"state": there | {forgets: held[forgets]}})[1]["state"] == held


def test_a_state_of_impossible_arrays_is_refused_by_its_file(tmp_path):
    save_state(tmp_path, {"weights": np.zeros(2)}, {})
    header = b'{"weights":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,16]}}'
    file = tmp_path / "state.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with pytest.raises(DataError, match=r"state.safetensors: missing or damaged \(.*overflow"):
        load_state(tmp_path)
