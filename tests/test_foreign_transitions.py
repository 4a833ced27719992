"""Data of other libraries, HDF5, Minari and Hugging Face datasets, by our readers and by theirs."""

import dataclasses

import datasets
import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces
from test_trajectory_files import episode

from lactchain.baselines.transitions import FIELDS, read_transitions
from lactchain.data.sources import TRAJECTORIES, open_trajectories, write_trajectories
from lactchain.errors import DataError
from lactchain_extras.exchange.minari_files import read_minari
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
    cut = RecordedEpisode(np.arange(4.0)[:, None], np.zeros(3, int), np.ones(3), False)
    ended = RecordedEpisode(np.arange(10.0, 12)[:, None], np.zeros(1, int), np.ones(1), True)
    data = from_episodes([cut, ended])
    assert data.next_observations.ravel().tolist() == [1, 2, 3, 11]
    assert data.terminated.tolist() == [False, False, False, True]


OTHER_FILES = {"columns": 3}, {"columns": [b"a"], "num_episodes": [1, 2]}, {}


@pytest.mark.parametrize(("columns", "said"), [
    (dumped(rewards_1=None), "rewards_1"),
    (dumped(rewards_1=np.ones(5)), "episode 1 has 2 observations, 2 actions and 5 rewards"),
    (dumped(rewards_0=np.array([0, 1, np.nan])), "rewards of row 2 is not finite"),
    (dumped(num_episodes=None), "expected a file of d3rlpy 1, or of 2.1"),
    *((columns, "") for columns in OTHER_FILES),
])  # fmt: skip
def test_wrong_columns_and_files_of_other_kinds_are_named(tmp_path, columns, said):
    with pytest.raises(DataError, match=f"a.h5.*{said}"):
        read_transitions(h5(tmp_path / "a.h5", **columns))


def test_what_is_no_hdf5_file_is_refused(tmp_path):
    (tmp_path / "a.h5").write_bytes(b"no")
    with pytest.raises(DataError, match="expected an HDF5 file"):
        read_transitions(tmp_path / "a.h5")
    with pytest.raises(DataError, match="no such file"):
        read_transitions(tmp_path / "absent.h5")


def test_minari_files_are_read(minari, tmp_path):
    ends, no = [False, False, True], [False] * 3
    played = [(np.arange(4.0), ends, no), (np.arange(10.0, 14.0), no, ends)]  # the second is cut
    alike, numbers = {"actions": [0, 1, 0], "rewards": [0.0, 10.0, 20.0]}, spaces.Discrete(2)
    episodes = [
        alike | {"observations": seen[:, None], "terminations": ended, "truncations": cut}
        for seen, ended, cut in played
    ]
    places = spaces.Box(-99, 99, (1,), np.float64)
    written_by_minari(minari, "test/line-v0", places, *episodes, action_space=numbers)
    data = read_transitions(tmp_path / "test" / "line-v0")
    assert data.observations.ravel().tolist() == [0, 1, 2, 10, 11, 12]
    assert data.next_observations.ravel().tolist() == [1, 2, 3, 11, 12, 13]
    assert data.terminated.tolist() == [*ends, *no]
    assert data.rewards.tolist() == [0, 10, 20] * 2 and data.actions.tolist() == [0, 1, 0] * 2
    with pytest.raises(DataError, match="expected the folder of a Minari data set"):
        read_minari_transitions(tmp_path)


def h5(path, **columns):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file.create_dataset(name, data=column)
    return path


NO_ARRAYS = {"a": np.zeros(3)}, [{"a": 1}] * 3, ["a"] * 3, 3.0


@pytest.mark.parametrize(("observations", "said"), [
    (np.zeros((5, 1)), "episode 0 has 5 observations, 3 actions and 3 rewards"),
    *((np.array(odd), "episode 0: expected observations that are one") for odd in NO_ARRAYS),
])  # fmt: skip
def test_an_episode_that_is_no_arrays_of_one_length_is_named(observations, said):
    episode = RecordedEpisode(observations, np.zeros(3), np.zeros(3), False)
    with pytest.raises(DataError, match=f"file: {said}"):
        from_episodes([episode], "file")
    with pytest.raises(DataError, match="found none"):
        from_episodes([])


def test_a_file_of_d3rlpy_1_is_read_as_one_of_today(tmp_path):
    """As its data set of random play in CartPole: 0-2 end by themselves, 3 and 4 are cut."""
    numbers = np.arange(5.0)
    columns = {
        "observations": numbers[:, None], "actions": (numbers[:, None] % 2).astype(np.int32),
        "rewards": 10 * numbers, "terminals": np.array([0, 0, 1, 0, 0]),
        "episode_terminals": np.array([0, 0, 1, 0, 1]), "discrete_action": True, "version": "1.0",
    }  # fmt: skip
    one = read_transitions(h5(tmp_path / "1.h5", **columns))
    today = read_transitions(h5(tmp_path / "2.h5", **dumped()))
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(today, name))
    with pytest.raises(DataError, match="expected columns of one length"):
        read_transitions(h5(tmp_path / "3.h5", **(columns | {"rewards": np.ones(4)})))


TEXTS = spaces.Text(10)
CUT = dataclasses.replace(episode(((0.5,),), terminated=False, truncated=True), seed=2**64 - 1)
EMPTY = episode((), terminated=False)
EPISODES = [episode(text='["é🙂"]'), CUT, episode(((1.0,), (0.0, -1.0), (2.0,)), text="go\n")]
SHORT = {"observations": ["a", "b"], "actions": ["x"], "rewards": [-1.0]}
SHORT |= {"terminations": [False], "truncations": [True]}
"""An episode as Minari takes it."""


def to_dataset(trajectories):
    return datasets.Dataset(TRAJECTORIES.table(trajectories))


@pytest.fixture
def minari(monkeypatch, tmp_path):
    """The package, whose local data sets are those in `tmp_path`."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return pytest.importorskip("minari")


def written_by_minari(minari, name, observation_space, *episodes, action_space=TEXTS):
    """A data set of episodes in columns, which Minari writes."""
    from minari.data_collector.episode_buffer import EpisodeBuffer

    with pytest.warns(UserWarning, match="is set to None|env_spec is None"):
        minari.create_dataset_from_buffers(
            name, [EpisodeBuffer(**episode) for episode in episodes], data_format="arrow",
            observation_space=observation_space, action_space=action_space,
        )  # fmt: skip


def test_what_minari_wrote_is_read_if_it_is_text(minari, tmp_path):
    ended = {"terminations": [False, True], "truncations": [False, False], "seed": 5}
    ended |= {"observations": ["a", "b", "c"], "actions": ["x", "y"], "rewards": [0.0, 1.0]}
    written_by_minari(minari, "theirs-v1", TEXTS, ended, SHORT)
    solved, cut = read_minari(tmp_path / "theirs-v1")
    assert (solved.env_id, solved.seed, solved.observations) == ("theirs-v1", 5, ("a", "b", "c"))
    assert [action.text for action in solved.actions] == ["x", "y"]
    assert (solved.terminated, solved.truncated) == (True, False)
    assert (cut.terminated, cut.truncated) == (False, True)
    assert solved.num_actions == (1, 1) and solved.episode_return == 1.0
    assert solved.infos[-1]["success"] is None  # it ended; nobody said how
    np.testing.assert_allclose(solved.returns(0.5), [0.5, 1.0])
    assert open_trajectories(tmp_path / "theirs-v1") == [solved, cut]
    numbers = SHORT | {"observations": [0, 1]}
    written_by_minari(minari, "numbers-v0", spaces.Discrete(2), numbers)
    with pytest.raises(DataError, match="observation_space: expected a Text space, got Discrete"):
        read_minari(tmp_path / "numbers-v0")


@pytest.mark.parametrize(("name", "column"), [
    ("terminations", ["false", "false"]), ("observations", [b"a", b"b"]),
    ("actions", [None, None]), ("rewards", ["1", "0"]),
])  # fmt: skip
def test_episodes_of_minari_are_of_the_types_that_it_writes(minari, tmp_path, name, column):
    written_by_minari(minari, "theirs-v1", TEXTS, SHORT)
    file = tmp_path / "theirs-v1/data/0/part-0.arrow"
    with pa.ipc.open_file(file.read_bytes()) as reader:
        table = pa.table(reader.read_all().to_pydict() | {name: column})
    with pa.ipc.new_file(str(file), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match=name):
        read_minari(tmp_path / "theirs-v1")


@pytest.mark.parametrize("file", ["metadata.json", "1/metadata.json", "1/part-0.arrow"])
def test_a_damaged_data_set_is_named(minari, tmp_path, file):
    written_by_minari(minari, "theirs-v1", TEXTS, SHORT, SHORT)
    damaged = tmp_path / "theirs-v1/data" / file
    for content in (damaged.read_bytes()[:10], None):
        damaged.unlink()
        if content is not None:
            damaged.write_bytes(content)
        with pytest.raises(DataError, match="theirs-v1: expected a Minari data set that can be"):
            read_minari(tmp_path / "theirs-v1")


def saved(dataset, folder):
    dataset.save_to_disk(folder)
    return open_trajectories(folder)


def test_episodes_come_back_equal_from_a_dataset(tmp_path):
    dataset = to_dataset([*EPISODES, EMPTY])
    assert len(dataset) == 4 and dataset[0]["actions"] == ['["é🙂"]'] * 2
    assert saved(dataset, tmp_path / "saved") == [*EPISODES, EMPTY]
    assert saved(dataset.filter(lambda row: row["truncated"]), tmp_path / "some") == [CUT]
    longer = dataset.map(lambda row: {"length": len(row["actions"])})
    assert saved(longer, tmp_path / "more")[1] == CUT


def test_a_folder_of_files_is_loaded_by_their_library(tmp_path):
    write_trajectories(tmp_path / "data/00000-of-00001.parquet", EPISODES)
    loaded = datasets.load_dataset(str(tmp_path), split="train", cache_dir=str(tmp_path / "cache"))
    assert saved(loaded, tmp_path / "saved") == EPISODES


def test_datasets_that_are_none_of_episodes_say_what_is_wrong(tmp_path):
    with pytest.raises(DataError, match="expected a parquet file or a folder of them"):
        open_trajectories(tmp_path)
    whole = to_dataset(EPISODES)
    shorter = whole.map(lambda row: {"rewards": row["rewards"][1:]})
    for number, (dataset, message) in enumerate((
        (whole.remove_columns(["rewards", "infos"]), "rewards, infos missing"),
        (shorter, "row 0 is no episode: rewards: expected 2 entries"),
        (whole.map(lambda row: {"infos": ["{", *row["infos"][1:]]}), "infos: expected JSON"),
    )):  # fmt: skip
        with pytest.raises(DataError, match=message):
            saved(dataset, tmp_path / str(number))
