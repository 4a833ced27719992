"""Worlds that play in batches play the very episodes of single environments."""

import gymnasium as gym
import numpy as np
import pytest
from test_gridworld import DOWN, LEFT, WORLDS, at

from lactchain.baselines.member_envs import ResumableLoop, make_numeric_env, make_vector_env
from lactchain.worlds.gridworld import GridWorld
from lactchain_extras.classic_control import VECTOR_ENVS
from lactchain_extras.grid_batch import GridWorldVectorEnv


def actions_of(envs, rng):
    space = envs.single_action_space
    if isinstance(space, gym.spaces.Box):
        return rng.uniform(space.low, space.high, (envs.num_envs, 1)).astype(np.float32)
    return rng.integers(space.n, size=envs.num_envs)


def ends_of_equal_play(envs, singles, num_steps, atol):
    """How many episodes end in random play, in which a batch does what single environments do."""
    rng, ends = np.random.default_rng(0), 0
    for _ in range(num_steps):
        actions = actions_of(envs, rng)
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        for n, env in enumerate(singles):
            successor, reward, *ended, info = env.step(actions[n])
            assert ended == [terminated[n], truncated[n]]
            np.testing.assert_allclose(rewards[n], reward, rtol=1e-6 * bool(atol))
            assert "bumped" not in info or info["bumped"] == infos["bumped"][n]
            assert any(ended) == ("_final_obs" in infos and infos["_final_obs"][n])
            if "final_obs" in infos:
                np.testing.assert_allclose(infos["final_obs"][n], successor, rtol=0, atol=atol)
            if any(ended):
                ends += 1
                successor, _ = env.reset()
            np.testing.assert_allclose(observations[n], successor, rtol=0, atol=atol)
            assert observations.dtype == successor.dtype
    return ends


@pytest.mark.parametrize("env_id", VECTOR_ENVS)
def test_a_batch_plays_what_single_environments_play(env_id):
    envs, singles = make_vector_env(env_id, 3), [gym.make(env_id) for _ in range(3)]
    assert type(envs) is VECTOR_ENVS[env_id]
    expected = [env.reset(seed=7 + n)[0] for n, env in enumerate(singles)]
    np.testing.assert_allclose(envs.reset(seed=7)[0], expected, atol=1e-6)
    assert ends_of_equal_play(envs, singles, 520, atol=1e-5) >= 3


@pytest.mark.parametrize("kwargs", WORLDS)
def test_a_batch_of_grids_equals_single_ones_bit_for_bit(kwargs):
    """Copy i replays the single environment of copy i."""
    envs, singles = GridWorldVectorEnv(7, **kwargs), [GridWorld(**kwargs) for _ in range(7)]
    copies = [{"copy": copy} for copy in range(7)]
    expected = [w.reset(seed=11, options=o)[0] for w, o in zip(singles, copies, strict=True)]
    assert (envs.reset(seed=11)[0] == expected).all()
    ends_of_equal_play(envs, singles, 300, atol=0)


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


def test_a_batch_of_grids_that_is_put_back_goes_on_alike():
    """That copies of other worlds do, test_baseline_runs.py holds to the bit."""
    envs, rng = make_numeric_env(GRID, 3, max_steps=10), np.random.default_rng(1)
    envs.reset(seed=5)
    for _ in range(37):
        envs.step(actions_of(envs, rng))
    state = envs.unwrapped.get_state()
    plans = [actions_of(envs, rng) for _ in range(60)]
    first = [envs.step(plan)[:4] for plan in plans]
    other = make_numeric_env(GRID, 3, max_steps=10)
    other.unwrapped.set_state(state)
    for plan, expected in zip(plans, first, strict=True):
        for value, wanted in zip(other.step(plan)[:4], expected, strict=True):
            np.testing.assert_array_equal(value, wanted)


GRID = "lactchain/GridWorld-v0"


def test_without_it_a_loop_plays_the_same_episodes():
    batch, loop = GridWorldVectorEnv(3, max_steps=5), ResumableLoop(GRID, 3, max_steps=5)
    seeds, rng = [4, 9, 4], np.random.default_rng(0)
    assert (batch.reset(seed=seeds)[0] == loop.reset(seed=seeds)[0]).all()
    for _ in range(60):
        actions = rng.integers(2, size=3)
        for one, other in zip(batch.step(actions)[:4], loop.step(actions)[:4], strict=True):
            assert (one == other).all()


def test_a_batch_begins_in_a_state_as_one_environment_does():
    batch, single = GridWorldVectorEnv(3, max_steps=2), GridWorld(max_steps=2)
    batch.reset(seed=1)
    single.reset(seed=1, options={"copy": 1})
    batch.step(np.zeros(3, dtype=np.int64))
    observation, _ = single.reset(options=at(1, 2, DOWN))
    assert (batch.reset(options=at(1, 2, DOWN))[0] == [observation] * 3).all()
    one, many = single.step(LEFT), batch.step(np.full(3, LEFT))
    assert (many[0] == [one[0]] * 3).all()
    assert not many[3].any()  # the time limit counts from the reset
    assert (batch.reset()[0][1] == single.reset()[0]).all()  # and the draws go on


def test_starts_are_uniform_over_cells_orientations_and_goals():
    batch = GridWorldVectorEnv(4800)
    batch.reset(seed=0)
    counts = np.zeros(len(batch.tables.terminal))
    for _ in range(40):
        batch.reset()
        counts += np.bincount(batch.states, minlength=len(counts))
    assert (counts[batch.tables.terminal] == 0).all()
    counts = counts[~batch.tables.terminal]
    assert len(counts) == 16 * 4 * 15
    chi_squared = ((counts - 200) ** 2 / 200).sum()
    assert abs(chi_squared - 959) < 4 * np.sqrt(2 * 959)


def test_a_batch_refuses_what_a_single_environment_does():
    with pytest.raises(ValueError, match="start: expected a free x, y"):
        GridWorldVectorEnv(start=(0, 0, 4))
    batch = GridWorldVectorEnv(2)
    with pytest.raises(ValueError, match="state: expected another cell than the goal's"):
        batch.reset(options=at(3, 3, 0))
    assert (batch.reset(seed=5)[0] == batch.reset(seed=5)[0]).all()
    with pytest.raises(ValueError, match=r"options: expected state, or none, got \['copy'\]"):
        batch.reset(options={"copy": 1})
    for actions in ([0, 2], [-1, 0], [0], [[0, 1]]):
        with pytest.raises(ValueError, match="actions"):
            batch.step(np.array(actions))
