"""Transitions from other libraries' files: episodes do not reach into each other."""

import gymnasium as gym
import numpy as np
import pytest

from lactchain.baselines.transitions import FIELDS, read_transitions
from lactchain.errors import DataError
from lactchain_extras.offline_data import RecordedEpisode, from_episodes, read_minari_transitions


def dumped(**changes):
    """What d3rlpy dumps: steps 0-2 end by themselves, 3 and 4 are cut."""
    names = ("observations", "actions", "rewards", "terminated")
    arrays = {"columns": [name.encode() for name in names], "num_episodes": 2, "version": "2.1"}
    for number, steps in enumerate((np.arange(3.0), np.arange(3.0, 5.0))):
        arrays[f"observations_{number}"] = steps[:, None]
        arrays[f"actions_{number}"] = (steps[:, None] % 2).astype(np.int32)
        arrays[f"rewards_{number}"] = 10 * steps[:, None]
        arrays[f"terminated_{number}"] = number == 0
    return {name: array for name, array in (arrays | changes).items() if array is not None}


def test_no_row_is_paired_with_another_episode(tmp_path, caplog):
    caplog.set_level("INFO")
    data = read_transitions(h5(tmp_path / "a.h5", **dumped()))
    assert data.observations.ravel().tolist() == [0, 1, 2, 3]
    assert data.next_observations[[0, 1, 3]].ravel().tolist() == [1, 2, 4]
    assert data.terminated.tolist() == [False, False, True, False]
    assert data.rewards.tolist() == [0, 10, 20, 30]
    assert "a.h5: 1 last steps are dropped" in caplog.text  # 4
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
        ({"rewards_1": None}, "rewards_1"),
        ({"rewards_1": np.ones(5)}, "episode 1 has 2 observations, 2 actions and 5 rewards"),
        ({"rewards_0": np.array([0, 1, np.nan])}, "rewards of row 2 is not finite"),
        ({"num_episodes": None}, "expected a file of d3rlpy 1, or of 2.1"),
    ],
)
def test_wrong_columns_are_named(tmp_path, change, said):
    with pytest.raises(DataError, match=f"a.h5.*{said}"):
        read_transitions(h5(tmp_path / "a.h5", **dumped(**change)))


def test_an_episode_that_does_not_fit_together_is_named():
    episode = RecordedEpisode(np.zeros((5, 1)), np.zeros(3, int), np.ones(3), False)
    with pytest.raises(DataError, match="episode 0 has 5 observations, 3 actions and 3 rewards"):
        from_episodes([episode])
    with pytest.raises(DataError, match="found none"):
        from_episodes([])


def test_what_is_no_hdf5_file_is_refused(tmp_path):
    (tmp_path / "a.h5").write_bytes(b"no")
    with pytest.raises(DataError, match="expected an HDF5 file"):
        read_transitions(tmp_path / "a.h5")
    with pytest.raises(DataError, match="no such file"):
        read_transitions(tmp_path / "absent.h5")


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
    data = read_transitions(tmp_path / "test" / "cartpole-v0")
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
        read_transitions(h5(tmp_path / "a.h5", **columns))


def test_a_file_of_d3rlpy_1_is_read_as_one_of_today(tmp_path):
    """As its data set of random play in CartPole: 0-2 end by themselves, 3 and 4 are cut."""
    numbers = np.arange(5.0)
    columns = {
        "observations": numbers[:, None],
        "actions": (numbers[:, None] % 2).astype(np.int32),
        "rewards": 10 * numbers,
        "terminals": np.array([0, 0, 1, 0, 0]),
        "episode_terminals": np.array([0, 0, 1, 0, 1]),
        "discrete_action": True,
        "version": "1.0",
    }
    one = read_transitions(h5(tmp_path / "1.h5", **columns))
    today = read_transitions(h5(tmp_path / "2.h5", **dumped()))
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(today, name))
    with pytest.raises(DataError, match="expected columns of one length"):
        read_transitions(h5(tmp_path / "3.h5", **(columns | {"rewards": np.ones(4)})))
