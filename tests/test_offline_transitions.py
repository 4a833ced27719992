"""Offline data and CQL: files keep every number, and unseen actions stay below seen ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lactchain.baselines.cql import CQL
from lactchain.baselines.replay import FIELDS
from lactchain.baselines.settings import CQLConfig
from lactchain.baselines.transitions import (
    TransitionData,
    read_offline,
    read_transitions,
    write_transitions,
)
from lactchain.errors import DataError


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_parquet_keeps_every_number_its_shape_and_its_type(dtype, tmp_path):
    rng = np.random.default_rng(0)
    data = TransitionData(
        rng.integers(0, 9, (5, 2, 3)).astype(dtype), rng.integers(0, 3, 5),
        rng.random(5).astype(np.float32), np.arange(5) == 3,
        rng.integers(0, 9, (5, 2, 3)).astype(dtype),
    )  # fmt: skip
    write_transitions(tmp_path / "a.parquet", data)
    found = read_transitions(tmp_path)
    assert_equal(found, data)
    assert found.observations.dtype == dtype and found.actions.dtype == np.int64
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[len(content) // 3] ^= 1
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        read_offline(tmp_path)


def assert_equal(found, expected):
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


# --- CQL -----------------------------------------------------------------------------------------


def two_of_four(num_states=3, num_rows=600):
    """Four actions, of which the data hold 0 and 1; action 1 is better."""
    rng = np.random.default_rng(0)
    states, actions = rng.integers(num_states, size=num_rows), rng.integers(2, size=num_rows)
    rewards = actions + 0.1 * rng.standard_normal(num_rows)
    return TransitionData(
        states, actions, rewards.astype(np.float32), np.ones(num_rows, bool), states
    )


def test_unseen_actions_are_pushed_below_seen_ones_and_never_chosen():
    config = CQLConfig(hidden=(32,), cql_weight=1.0, batch_size=64, learning_rate=3e-3)
    members = [config, replace(config, cql_weight=0.0)]
    agent = CQL(members, spaces.Discrete(3), spaces.Discrete(4), seed=3)
    for _ in range(8):
        agent.advance(two_of_four())
    with torch.no_grad():
        q = agent.values(agent.encode(np.tile(np.arange(3), (2, 1))))
    gap = (q[..., 2:].amax(-1) - q[..., :2].amin(-1)).mean(1)  # unseen less seen
    assert gap[0] < gap[1] - 1 and gap[0] < -1
    chosen = agent.act(np.tile(np.arange(3), (2, 1)))
    assert (chosen[0] == 1).all()


def test_observations_are_brought_to_the_units_of_the_data():
    rng = np.random.default_rng(0)
    rows = np.stack([5 + 0.1 * rng.standard_normal(50), np.full(50, 3.0)], axis=1).astype("f4")
    data = TransitionData(rows, np.zeros(50, int), np.ones(50, np.float32), np.ones(50, bool), rows)
    agent = CQL([CQLConfig(num_updates=1)] * 2, spaces.Box(-9, 9, (2,)), spaces.Discrete(2))
    agent.advance(data)
    x = agent.encode(np.stack([rows, rows]))
    torch.testing.assert_close(x[..., 0].mean(1), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(x[..., 0].std(1, correction=0), torch.ones(2))
    assert not x[..., 1].any()  # what never varies is only shifted
