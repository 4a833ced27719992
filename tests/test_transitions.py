"""Transitions: right at every seam of a ring, whole in files; CQL keeps to the actions in them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lactchain.baselines.dqn import CQL
from lactchain.baselines.settings import CQLConfig
from lactchain.baselines.state_files import ARRAYS, save_state
from lactchain.baselines.transitions import (
    FIELDS,
    Minibatch,
    ReplayBuffer,
    TransitionData,
    read_transitions,
    write_transitions,
)
from lactchain.errors import DataError
from lactchain.storage.manifests import MANIFEST

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


def assert_equal(found, expected):
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


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
    assert at_once.total == one_by_one.total
    assert_equal(everything(at_once), everything(one_by_one))


def test_sampling_is_uniform_and_of_each_members_own():
    buffer, rng = ring(10), np.random.default_rng(0)
    buffer.add(transitions([1, 2, 3, 4]))  # not full: empty rows are never drawn
    batch = buffer.sample(8000, rng)
    assert (batch.rewards[0] > 0).all() and (batch.rewards[1] < 0).all()
    counts = np.bincount(batch.rewards[0].astype(int))[1:]
    np.testing.assert_allclose(counts / 8000, 0.25, atol=0.02)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_a_folder_keeps_every_number_its_shape_and_its_type(dtype, tmp_path):
    rng = np.random.default_rng(0)
    data = TransitionData(
        rng.integers(0, 9, (5, 2, 3)).astype(dtype), rng.integers(0, 3, 5),
        rng.random(5).astype(np.float32), np.arange(5) == 3,
        rng.integers(0, 9, (5, 2, 3)).astype(dtype),
    )  # fmt: skip
    write_transitions(tmp_path, data)
    found = read_transitions(tmp_path)
    assert_equal(found, data)
    assert found.observations.dtype == dtype and found.actions.dtype == np.int64
    content = (tmp_path / ARRAYS).read_bytes()
    (tmp_path / ARRAYS).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match="damaged"):
        read_transitions(tmp_path)


@pytest.mark.parametrize(
    ("kind", "columns"), [("states", {}), ("transitions", {"rewards": np.ones(2)})]
)
def test_a_folder_of_anything_else_is_refused_in_a_line(kind, columns, tmp_path):
    save_state(tmp_path, columns, {"kind": kind})
    with pytest.raises(DataError, match="expected a folder of transitions, got another"):
        read_transitions(tmp_path)
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(DataError, match="no folder of transitions that was completed; give RUN/"):
        read_transitions(tmp_path)


def test_unseen_actions_are_pushed_below_seen_ones_and_never_chosen():
    """Of four actions the data hold 0 and 1; action 1 is better."""
    rng = np.random.default_rng(0)
    states, actions = rng.integers(3, size=600), rng.integers(2, size=600)
    rewards = (actions + 0.1 * rng.standard_normal(600)).astype(np.float32)
    data = TransitionData(states, actions, rewards, np.ones(600, bool), states)
    config = CQLConfig(hidden=(32,), cql_weight=1.0, batch_size=64, learning_rate=3e-3)
    settings = (config, replace(config, cql_weight=0.0))
    agents = [CQL(c, spaces.Discrete(3), spaces.Discrete(4), seed=3) for c in settings]
    seen, gaps = np.arange(3)[None], []
    for agent in agents:
        for _ in range(8):
            agent.advance(data)
        with torch.no_grad():
            q = agent.values(agent.encode(seen))
        gaps.append((q[..., 2:].amax(-1) - q[..., :2].amin(-1)).mean().item())  # unseen less seen
    assert gaps[0] < gaps[1] - 1 and gaps[0] < -1
    assert (agents[0].act(seen) == 1).all()


def test_observations_are_brought_to_the_units_of_the_data():
    rng = np.random.default_rng(0)
    rows = np.stack([5 + 0.1 * rng.standard_normal(50), np.full(50, 3.0)], axis=1).astype("f4")
    data = TransitionData(rows, np.zeros(50, int), np.ones(50, np.float32), np.ones(50, bool), rows)
    agent = CQL(CQLConfig(num_updates=1), spaces.Box(-9, 9, (2,)), spaces.Discrete(2), 0, 2)
    agent.advance(data)
    x = agent.encode(np.stack([rows, rows]))
    torch.testing.assert_close(x[..., 0].mean(1), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(x[..., 0].std(1, correction=0), torch.ones(2))
    assert not x[..., 1].any()  # what never varies is only shifted
