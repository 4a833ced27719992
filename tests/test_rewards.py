"""Rewards of one's own: every numeric world honours them, alone, in batches and in exact values."""

import re
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

from lactchain import worlds  # noqa: F401  registers
from lactchain.baselines.member_envs import make_vector_env
from lactchain.environments.exact import optimal_values
from lactchain.environments.views import tabular_model

WORLDS = {
    "lactchain/GridWorld-v0": {"size": 3},
    "lactchain/Maze-v0": {"layout": ["000", "010"], "goal": (0, 2)},
    "lactchain/Wordle-v0": {"words": ("shire", "motto", "level", "lever")},
}


def movement(seen, action, after):
    """A function of all three: what was seen, what was done, what is seen now."""
    return 0.25 * np.abs(after - seen).sum(axis=1) + 0.5 * action - seen[:, 0]


def paying(reward):
    return SimpleNamespace(reward=reward)


@pytest.mark.parametrize("env_id", WORLDS)
def test_a_reward_is_given_what_was_seen_done_and_seen_then(env_id):
    env, rng = gym.make(env_id, reward=paying(movement), **WORLDS[env_id]), np.random.default_rng(0)
    for seed in range(10):
        seen, _ = env.reset(seed=seed)
        over = False
        while not over:
            action, before = int(rng.integers(env.action_space.n)), seen
            seen, reward, terminated, truncated, info = env.step(action)
            if not info.get("failed"):  # the move after the last one is not played
                assert reward == movement(before[None], action, seen[None])
            over = terminated or truncated


@pytest.mark.parametrize("env_id", WORLDS)
def test_copies_are_rewarded_alike(env_id):
    envs = make_vector_env(env_id, 5, reward=paying(movement), **WORLDS[env_id])
    seen, _ = envs.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions, before = rng.integers(envs.single_action_space.n, size=5), seen
        seen, rewards, terminated, truncated, infos = envs.step(actions)
        after = seen.copy()
        for copy in np.flatnonzero(terminated | truncated):
            after[copy] = infos["final_obs"][copy]
        np.testing.assert_array_equal(rewards, movement(before, actions, after))


def test_exact_values_are_those_of_the_reward():
    """Three for a step to the right, nothing else."""
    toll = paying(lambda state, action, next_state: 3.0 * (next_state[:, 1] > state[:, 1]))
    env = gym.make("lactchain/Maze-v0", layout=["000"], goal=(0, 2), reward=toll)
    # right, right: 3 + ½·3; from the middle: left and right again, for ever, is worth more than 3:
    # v1 = max(3, ½ v0), v0 = 3 + ½ v1
    np.testing.assert_allclose(optimal_values(tabular_model(env), 0.5), [4.5, 3.0])


@pytest.mark.parametrize("given", [lambda count: 1.0, lambda count: np.full(count, np.inf)])
@pytest.mark.parametrize("env_id", WORLDS)
def test_other_than_a_finite_number_for_each_transition_is_refused(env_id, given):
    scheme = paying(lambda state, action, next_state: given(len(action)))
    with pytest.raises(ValueError, match="reward: expected [0-9]+ finite numbers"):
        env = gym.make(env_id, reward=scheme, **WORLDS[env_id])
        env.reset(seed=0)
        env.step(0)


def test_every_numeric_world_is_here():
    ours = re.compile(r"lactchain\.worlds|lactchain_extras\.(maze|wordle)")
    assert {i for i, spec in gym.registry.items() if ours.search(str(spec))} == {*WORLDS}
