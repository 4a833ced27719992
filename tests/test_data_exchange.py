"""Minari and Hugging Face datasets: out and in again, by our readers and by theirs."""

import dataclasses

import datasets
import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces
from test_trajectory_files import episode

from lactchain.data.sources import TRAJECTORIES, open_trajectories, write_trajectories
from lactchain.errors import DataError
from lactchain_extras.exchange.minari_files import read_minari

CUT = dataclasses.replace(episode(((0.5,),), terminated=False, truncated=True), seed=2**64 - 1)
EMPTY = episode((), terminated=False)
EPISODES = [episode(text='["é🙂"]'), CUT, episode(((1.0,), (0.0, -1.0), (2.0,)), text="go\n")]


SHORT = {
    "observations": ["a", "b"], "actions": ["x"], "rewards": [-1.0], "terminations": [False],
    "truncations": [True],
}  # fmt: skip
"""An episode as Minari takes it."""


def to_dataset(trajectories):
    return datasets.Dataset(TRAJECTORIES.table(trajectories))


@pytest.fixture
def minari(monkeypatch, tmp_path):
    """The package, whose local data sets are those in `tmp_path`."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return pytest.importorskip("minari")


def written_by_minari(minari, name, observation_space, *episodes):
    """A data set of episodes in columns, which Minari writes."""
    from minari.data_collector.episode_buffer import EpisodeBuffer

    with pytest.warns(UserWarning, match="is set to None|env_spec is None"):
        minari.create_dataset_from_buffers(
            name, [EpisodeBuffer(**episode) for episode in episodes], data_format="arrow",
            observation_space=observation_space, action_space=spaces.Text(10),
        )  # fmt: skip


def test_what_minari_wrote_is_read_if_it_is_text(minari, tmp_path):
    ended = {"terminations": [False, True], "truncations": [False, False], "seed": 5}
    ended |= {"observations": ["a", "b", "c"], "actions": ["x", "y"], "rewards": [0.0, 1.0]}
    written_by_minari(minari, "theirs-v1", spaces.Text(10), ended, SHORT)
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


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("terminations", ["false", "false"]),
        ("observations", [b"a", b"b"]),
        ("actions", [None, None]),
        ("rewards", ["1", "0"]),
    ],
)
def test_episodes_of_minari_are_of_the_types_that_it_writes(minari, tmp_path, name, column):
    written_by_minari(minari, "theirs-v1", spaces.Text(10), SHORT)
    file = tmp_path / "theirs-v1/data/0/part-0.arrow"
    with pa.ipc.open_file(file.read_bytes()) as reader:
        table = pa.table(reader.read_all().to_pydict() | {name: column})
    with pa.ipc.new_file(str(file), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match=name):
        read_minari(tmp_path / "theirs-v1")


@pytest.mark.parametrize("file", ["metadata.json", "1/metadata.json", "1/part-0.arrow"])
def test_a_damaged_data_set_is_named(minari, tmp_path, file):
    written_by_minari(minari, "theirs-v1", spaces.Text(10), SHORT, SHORT)
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
    for number, (dataset, message) in enumerate((
        (whole.remove_columns(["rewards", "infos"]), "rewards, infos missing"),
        (
            whole.map(lambda row: {"rewards": row["rewards"][1:]}),
            "row 0 is no episode: rewards: expected 2 entries",
        ),
        (whole.map(lambda row: {"infos": ["{", *row["infos"][1:]]}), "infos: expected JSON"),
    )):  # fmt: skip
        with pytest.raises(DataError, match=message):
            saved(dataset, tmp_path / str(number))
