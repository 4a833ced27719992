"""Offline data and CQL: episodes do not reach into each other, files say what is wrong."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from lactchain.baselines.cql import CQL
from lactchain.baselines.replay import FIELDS
from lactchain.baselines.settings import CQLConfig
from lactchain.baselines.transitions import (
    RecordedEpisode,
    TransitionData,
    from_columns,
    from_episodes,
    read_h5_transitions,
    read_minari_transitions,
    read_offline,
    read_transitions,
    write_transitions,
)
from lactchain.errors import DataError


def columns(num=6):
    """Steps 0-2 end by themselves, 3-4 are cut, 5 is where recording stopped."""
    numbers = np.arange(num, dtype=np.float32)
    return {
        "observations": numbers[:, None],
        "actions": (numbers[:, None] % 2).astype(np.int32),
        "rewards": 10 * numbers,
        "terminals": np.array([0, 0, 1, 0, 0, 0])[:num],
        "episode_terminals": np.array([0, 0, 1, 0, 1, 0])[:num],
    }


def test_no_row_is_paired_with_another_episode():
    data = from_columns(columns(), "file")
    assert data.observations.ravel().tolist() == [0, 1, 2, 3]
    assert data.next_observations[[0, 1, 3]].ravel().tolist() == [1, 2, 4]
    assert data.terminated.tolist() == [False, False, True, False]
    assert data.num_dropped == 2  # steps 4 and 5, whose successors nobody saw
    assert data.actions.dtype == np.int64 and data.actions.shape == (4,)


def test_a_recorded_last_state_keeps_the_last_step_of_a_cut_episode():
    episodes = [
        RecordedEpisode(np.arange(4.0)[:, None], np.zeros(3, int), np.ones(3), False),
        RecordedEpisode(np.arange(10.0, 12)[:, None], np.zeros(1, int), np.ones(1), True),
    ]
    data = from_episodes(episodes)
    assert data.next_observations.ravel().tolist() == [1, 2, 3, 11]
    assert data.terminated.tolist() == [False, False, False, True] and not data.num_dropped


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rewards": None}, "no rewards; expected observations, actions"),
        ({"rewards": np.ones(5)}, "expected columns of one length"),
        ({"rewards": np.array([0, 1, np.nan, 3, 4, 5.0])}, "rewards of row 2 is not finite"),
    ],
)
def test_wrong_columns_are_named(change, said):
    wrong = {k: v for k, v in (columns() | change).items() if v is not None}
    with pytest.raises(DataError, match=said):
        from_columns(wrong, "file")


def test_an_episode_that_does_not_fit_together_is_named():
    episode = RecordedEpisode(np.zeros((5, 1)), np.zeros(3, int), np.ones(3), False)
    with pytest.raises(DataError, match="episode 0 has 5 observations, 3 actions and 3 rewards"):
        from_episodes([episode])
    with pytest.raises(DataError, match="found none"):
        from_episodes([])


def test_h5_files_in_d3rlpys_layout_are_read(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "random.h5"
    with h5py.File(path, "w") as file:
        for key, value in columns().items():
            file[key] = value
    assert_equal(read_h5_transitions(path), from_columns(columns(), ""))
    assert_equal(read_offline(path), from_columns(columns(), ""))
    path.write_bytes(b"no")
    with pytest.raises(DataError, match="expected an HDF5 file"):
        read_h5_transitions(path)
    with pytest.raises(DataError, match="no such file"):
        read_h5_transitions(tmp_path / "absent.h5")


@pytest.mark.filterwarnings("ignore:.*(is set to None|env_spec is None)")
def test_minari_files_are_read(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    from minari.data_collector.episode_buffer import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env, rng = gym.make("CartPole-v1", max_episode_steps=12), np.random.default_rng(0)
    expected, buffers = [], []
    for seed in range(4):
        observations, actions, rewards, ends = [env.reset(seed=seed)[0]], [], [], [(False, False)]
        while not any(ends[-1]):
            actions.append(int(rng.integers(2)))
            successor, reward, *ended, _ = env.step(actions[-1])
            expected.append((observations[-1], actions[-1], reward, ended[0], successor))
            observations.append(successor), rewards.append(reward), ends.append(tuple(ended))
        terminations, truncations = zip(*ends[1:], strict=True)
        buffers.append(
            EpisodeBuffer(
                observations=np.array(observations), actions=np.array(actions), rewards=rewards,
                terminations=list(terminations), truncations=list(truncations),
            )
        )  # fmt: skip
    minari.create_dataset_from_buffers(
        "test/cartpole-v0", buffers, observation_space=env.observation_space,
        action_space=env.action_space, data_format="arrow",
    )  # fmt: skip
    data = read_offline(tmp_path / "test" / "cartpole-v0")
    assert len(data) == len(expected) and any(not b.terminations[-1] for b in buffers)
    for name, values in zip(FIELDS, zip(*expected, strict=True), strict=True):
        np.testing.assert_array_equal(getattr(data, name), np.array(values))
    with pytest.raises(DataError, match="expected the folder of a Minari data set"):
        read_minari_transitions(tmp_path)


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


def test_offline_learning_reads_no_more_than_the_data():
    agent = CQL([CQLConfig(num_updates=3)], spaces.Discrete(3), spaces.Discrete(4))
    metrics = agent.advance(two_of_four())
    assert agent.num_updates == 3 and set(metrics) >= {"train/cql_penalty", "train/td_loss"}
