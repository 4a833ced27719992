"""The batch of grid worlds plays the very episodes of single ones."""

import numpy as np
import pytest
from test_gridworld import DOWN, LEFT, WORLDS, at

from lactchain.baselines.member_envs import ResumableLoop
from lactchain.worlds.gridworld import GridWorld
from lactchain_extras.grid_batch import GridWorldVectorEnv

GRID = "lactchain/GridWorld-v0"


@pytest.mark.parametrize("kwargs", WORLDS)
def test_the_vector_view_equals_single_environments_bit_for_bit(kwargs):
    """Random play, with many episode ends; copy i replays the single environment of copy i."""
    num_envs = 7
    batch = GridWorldVectorEnv(num_envs, **kwargs)
    singles = [GridWorld(**kwargs) for _ in range(num_envs)]
    observations, _ = batch.reset(seed=11)
    for copy, world in enumerate(singles):
        observation, _ = world.reset(seed=11, options={"copy": copy})
        assert (observation == observations[copy]).all()
    rng = np.random.default_rng(0)
    for _ in range(300):
        actions = rng.integers(batch.single_action_space.n, size=num_envs)
        observations, rewards, terminated, truncated, infos = batch.step(actions)
        for copy, world in enumerate(singles):
            observation, *rest, info = world.step(int(actions[copy]))
            assert rest == [rewards[copy], terminated[copy], truncated[copy]]
            assert info["bumped"] == infos["bumped"][copy]
            ended = rest[1] or rest[2]
            if "final_obs" in infos:
                assert (infos["final_obs"][copy] == observation).all()
                assert infos["_final_obs"][copy] == ended
            else:
                assert not ended
            if ended:
                observation, _ = world.reset()
            assert (observation == observations[copy]).all()
            assert observation.dtype == observations.dtype


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
