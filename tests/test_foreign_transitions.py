"""Transitions from other libraries' files: episodes do not reach into each other."""

import gymnasium as gym
import numpy as np
import pytest
from test_transitions import assert_equal

from lactchain.baselines.transitions import FIELDS, read_offline
from lactchain.errors import DataError
from lactchain_extras.offline_data import (
    RecordedEpisode,
    from_columns,
    from_episodes,
    read_h5_transitions,
    read_minari_transitions,
)


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


def test_no_row_is_paired_with_another_episode(caplog):
    caplog.set_level("INFO")
    data = from_columns(columns(), "file")
    assert data.observations.ravel().tolist() == [0, 1, 2, 3]
    assert data.next_observations[[0, 1, 3]].ravel().tolist() == [1, 2, 4]
    assert data.terminated.tolist() == [False, False, True, False]
    assert "file: 2 last steps are dropped" in caplog.text  # 4 and 5
    assert data.actions.dtype == np.int64 and data.actions.shape == (4,)


def test_a_recorded_last_state_keeps_the_last_step_of_a_cut_episode():
    episodes = [
        RecordedEpisode(np.arange(4.0)[:, None], np.zeros(3, int), np.ones(3), False),
        RecordedEpisode(np.arange(10.0, 12)[:, None], np.zeros(1, int), np.ones(1), True),
    ]
    data = from_episodes(episodes)
    assert data.next_observations.ravel().tolist() == [1, 2, 3, 11]
    assert data.terminated.tolist() == [False, False, False, True]


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
    path = h5(tmp_path / "random.h5", **columns())
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


def h5(path, **columns):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file.create_dataset(name, data=column)
    return path


def test_each_version_of_d3rlpy_is_read_by_its_own_convention(tmp_path):
    """Steps 0-2 end by themselves, 3-4 are cut, in each layout."""
    ones = {n: column[:5] for n, column in columns().items()}
    first = read_offline(h5(tmp_path / "1.h5", **ones, discrete_action=True, version="1.0"))
    apart = {"columns": [n.encode() for n in ("observations", "actions", "rewards", "terminated")]}
    for number, (start, stop) in enumerate([(0, 3), (3, 5)]):
        for name in ("observations", "actions"):
            apart[f"{name}_{number}"] = ones[name][start:stop]
        apart[f"rewards_{number}"] = ones["rewards"][start:stop, None]
        apart[f"terminated_{number}"] = number == 0
    second = read_offline(h5(tmp_path / "2.h5", **apart, num_episodes=2, version="2.1"))
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert first.rewards.tolist() == [0, 10, 20, 30]
    with pytest.raises(
        DataError, match="written by d3rlpy 0, whose rewards belong to the step befo"
    ):
        read_offline(h5(tmp_path / "0.h5", **ones, discrete_action=True))
    with pytest.raises(DataError, match="written by d3rlpy 2.0; load it by a later one"):
        read_offline(h5(tmp_path / "20.h5", columns=apart["columns"], total_size=2, version="2.0"))


@pytest.mark.parametrize("with_successors", [False, True])
def test_time_outs_of_d4rl_are_cuts(tmp_path, with_successors):
    ones = columns()
    timeouts = ones.pop("episode_terminals") & ~ones["terminals"].astype(bool)
    more = {"next_observations": ones["observations"] + 1} if with_successors else {}
    data = read_offline(h5(tmp_path / "d4rl.hdf5", **ones, timeouts=timeouts, **more))
    assert data.terminated.tolist() == [False, False, True, False] + [False] * 2 * with_successors
    assert data.observations.ravel().tolist() == [0, 1, 2, 3] + [4, 5] * with_successors
    if with_successors:
        assert data.next_observations.ravel().tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "observations",
    [
        np.array({"a": np.zeros(3)}),
        np.array([{"a": 1}] * 3),
        np.array(["a", "b", "c"]),
        np.array(3.0),
    ],
)
def test_observations_of_parts_or_texts_are_refused(observations):
    episode = RecordedEpisode(observations, np.zeros(3), np.zeros(3), True)
    with pytest.raises(
        DataError, match="file: episode 0: expected observations that are one array"
    ):
        from_episodes([episode], "file")


@pytest.mark.parametrize(
    "columns", [{"columns": 3}, {"columns": [b"a"], "num_episodes": [1, 2]}, {}]
)
def test_other_hdf5_files_are_one_line(tmp_path, columns):
    with pytest.raises(DataError, match="a.h5"):
        read_offline(h5(tmp_path / "a.h5", **columns))
