"""Replay: rings of transitions whose successors are right at every seam."""

import numpy as np
import pytest
from gymnasium import spaces

from lactchain.baselines.replay import FIELDS, Minibatch, ReplayBuffer

LINE, TWO = spaces.Box(-1e9, 1e9, (1,)), spaces.Discrete(2)


def transitions(numbers, ended=()):
    """N transitions of 2 members, numbered; those of the second member are negative."""
    numbers = np.array([numbers, np.negative(numbers)], dtype=np.float32)
    ended = np.isin(np.abs(numbers), ended)
    successors = np.where(ended, 1000 + numbers, numbers + 1)
    return Minibatch(
        numbers[..., None], (numbers % 2).astype(np.int64), numbers, ended, successors[..., None]
    )


def ring(capacity=5):
    return ReplayBuffer(2, capacity, LINE, TWO)


def everything(buffer):
    return buffer.rows(np.tile(np.arange(buffer.size), (2, 1)))


def assert_equal(one, other):
    assert (one.position, one.size) == (other.position, other.size)
    for name in FIELDS:
        rows = (getattr(everything(buffer), name) for buffer in (one, other))
        np.testing.assert_array_equal(*rows)


def test_the_newest_transitions_are_held_each_with_its_own_successor():
    buffer = ring()
    for number in range(1, 13):
        buffer.add(transitions([number], ended=(3, 8, 12)))
        assert buffer.size == min(number, 5) and buffer.total == number
    held = everything(buffer)
    assert sorted(held.rewards[0]) == [8, 9, 10, 11, 12]
    assert (held.rewards[1] == -held.rewards[0]).all()
    for name in ("observations", "next_observations"):
        assert getattr(held, name).shape == (2, 5, 1)
    expected = np.where(held.terminated, 1000 + held.rewards, held.rewards + 1)
    assert (held.next_observations[..., 0] == expected).all()
    assert held.terminated.sum(1).tolist() == [2, 2]


@pytest.mark.parametrize("sizes", [(3, 3), (2, 2, 2), (7,), (4, 12), (5, 5)])
def test_several_at_once_are_stored_as_if_one_by_one(sizes):
    at_once, one_by_one, number = ring(), ring(), 0
    for size in sizes:
        numbers = range(number, number + size)
        number += size
        at_once.add(transitions([*numbers]))
        for n in numbers:
            one_by_one.add(transitions([n]))
    assert_equal(at_once, one_by_one)


def test_sampling_is_uniform_and_of_each_members_own():
    buffer, rng = ring(10), np.random.default_rng(0)
    buffer.add(transitions([1, 2, 3, 4]))  # not full: empty rows are never drawn
    batch = buffer.sample(8000, rng)
    assert (batch.rewards[0] > 0).all() and (batch.rewards[1] < 0).all()
    counts = np.bincount(batch.rewards[0].astype(int))[1:]
    np.testing.assert_allclose(counts / 8000, 0.25, atol=0.02)


def test_states_are_put_back_whole():
    buffer, other = ring(), ring()
    buffer.add(transitions([1, 2, 3, 4, 5, 6, 7], ended=(4,)))
    other.load_state_dict(buffer.state_dict())
    for ring_ in (buffer, other):
        ring_.add(transitions([8]))
    assert_equal(buffer, other)


def test_observations_keep_their_kind():
    buffer = ReplayBuffer(1, 4, spaces.Box(0, 255, (2, 2, 3), np.uint8), spaces.Box(-1, 1, (2,)))
    state = buffer.state_dict()
    assert state["observations"].dtype == np.uint8 and state["observations"].shape[2:] == (2, 2, 3)
    assert state["actions"].dtype == np.float32 and state["actions"].shape[2:] == (2,)
