"""Batches of the classic control problems play the very episodes of Gymnasium's environments."""

import gymnasium as gym
import numpy as np
import pytest

from lactchain.baselines.member_envs import make_numeric_env, make_vector_env
from lactchain_extras.classic_control import VECTOR_ENVS


def actions_of(envs, rng):
    space = envs.single_action_space
    if isinstance(space, gym.spaces.Box):
        return rng.uniform(space.low, space.high, (envs.num_envs, 1)).astype(np.float32)
    return rng.integers(space.n, size=envs.num_envs)


@pytest.mark.parametrize("env_id", VECTOR_ENVS)
def test_a_batch_plays_what_single_environments_play(env_id):
    envs, rng = make_vector_env(env_id, 3), np.random.default_rng(0)
    assert type(envs) is VECTOR_ENVS[env_id]
    singles = [gym.make(env_id) for _ in range(3)]
    observations, _ = envs.reset(seed=7)
    expected = [env.reset(seed=7 + n)[0] for n, env in enumerate(singles)]
    np.testing.assert_allclose(observations, expected, atol=1e-6)
    ends = 0
    for _ in range(520):
        actions = actions_of(envs, rng)
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        for n, env in enumerate(singles):
            successor, reward, *ended, _ = env.step(actions[n])
            assert ended == [terminated[n], truncated[n]]
            assert rewards[n] == pytest.approx(reward)
            if any(ended):
                ends += 1
                np.testing.assert_allclose(infos["final_obs"][n], successor, atol=1e-5)
                assert infos["_final_obs"][n]
                successor, _ = env.reset()
            np.testing.assert_allclose(observations[n], successor, atol=1e-5)
    assert ends >= 3


def test_every_copy_may_have_its_own_seed():
    for env_id in ("CartPole-v1", "lactchain/GridWorld-v0"):
        envs = make_vector_env(env_id, 4)
        first = envs.reset(seed=[3, 4, 3, 4])[0]
        assert (first[:2] == first[2:]).all() and (first[0] != first[1]).any()
        single = gym.make(env_id)
        assert (single.reset(seed=4)[0] == first[1]).all()
        some, _ = envs.reset(seed=[None, 4, 3, None])  # as Gymnasium: these go on
        assert (some[1:3] == first[1:3]).all() and (some[0] != first[0]).any()
        for wrong in ([], [3] * 3, [3] * 5, [3, 4, 3, -1]):
            with pytest.raises(ValueError, match="seed: expected 4 of at least 0, one for each"):
                envs.reset(seed=wrong)


def test_a_batch_that_resets_late_is_not_taken():
    late = gym.make_vec("CartPole-v1", 2)
    assert late.metadata["autoreset_mode"] is gym.vector.AutoresetMode.NEXT_STEP
    envs = make_vector_env("CartPole-v1", 2, sutton_barto_reward=True)  # ours has no such argument
    assert envs.metadata["autoreset_mode"] is gym.vector.AutoresetMode.SAME_STEP


def test_continuous_actions_are_declared_and_rescaled_to_one():
    envs = make_numeric_env("Pendulum-v1", 2)
    assert envs.single_action_space.low == -1 and envs.single_action_space.high == 1
    plain = make_vector_env("Pendulum-v1", 2)
    envs.reset(seed=0), plain.reset(seed=0)
    half = np.full((2, 1), 0.5, dtype=np.float32)
    np.testing.assert_allclose(envs.step(half)[1], plain.step(2 * half)[1])


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("Pendulum-v1", {}),
        ("lactchain/GridWorld-v0", {"max_steps": 10}),
        ("FrozenLake-v1", {"is_slippery": True}),
        ("CartPole-v1", {"sutton_barto_reward": True}),
    ],
)
def test_a_state_put_back_goes_on_alike(env_id, kwargs):
    envs, rng = make_numeric_env(env_id, 3, **kwargs), np.random.default_rng(1)
    envs.reset(seed=5)
    for _ in range(37):
        envs.step(actions_of(envs, rng))
    state = envs.unwrapped.get_state()
    plans = [actions_of(envs, rng) for _ in range(60)]
    first = [envs.step(plan)[:4] for plan in plans]
    other = make_numeric_env(env_id, 3, **kwargs)
    other.unwrapped.set_state(state)
    for plan, expected in zip(plans, first, strict=True):
        for value, wanted in zip(other.step(plan)[:4], expected, strict=True):
            np.testing.assert_array_equal(value, wanted)
