"""Trajectory files: what goes in comes out verbatim, and damage is found and named."""

import dataclasses
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lactchain.data import parquet
from lactchain.data.trajectories import read_trajectories, transitions, write_trajectories
from lactchain.errors import DataError
from lactchain.types import Action, Trajectory

HOSTILE = (
    "lone \ud800 surrogate",
    "two lone \ud83d\ude00 that would be one character",
    "nul \x00, ansi \x1b[31m, bell \x07, \r\n, \u2028",
    "[bold]markup[/bold] $x^2$ </script><img src=x onerror=alert(1)> </s> [INST]",
    "",
)


def episode(
    rewards=((0.0, 0.0), (1.0,)), *, terminated=True, truncated=False, seed=3, text="[]"
) -> Trajectory:
    """An episode whose chains earn these rewards, one per primitive action."""
    steps = len(rewards)
    infos = [{"executed": ["move"] * len(chain), "rewards": list(chain)} for chain in rewards]
    return Trajectory(
        env_id="test/World-v0",
        seed=seed,
        observations=tuple(f"observation {t}" for t in range(steps + 1)),
        actions=tuple(Action(text, (1, 2, t), (-0.1, -0.2, -1 / 3)) for t in range(steps)),
        rewards=tuple(float(sum(chain)) for chain in rewards),
        infos=({"state": {"x": 1}}, *infos),
        terminated=terminated,
        truncated=truncated,
        policy="script",
    )


def test_trajectories_come_back_equal(tmp_path):
    empty = episode(())
    cut = episode(((0.5,),), terminated=False, truncated=True, seed=2**64 - 1)
    scripted = dataclasses.replace(cut, actions=(Action("go"),))
    written = [episode(), empty, cut, scripted]
    write_trajectories(tmp_path / "some.parquet", written)
    assert read_trajectories(tmp_path / "some.parquet") == written


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_survives_in_every_column(tmp_path, text):
    trajectory = dataclasses.replace(
        episode(text=text),
        env_id=text,
        policy=text,
        observations=(text,) * 3,
        infos=({text: text}, {"executed": [text], "rewards": [0.0]}, {"executed": []}),
    )
    write_trajectories(tmp_path / "hostile.parquet", [trajectory, episode()])
    assert read_trajectories(tmp_path / "hostile.parquet") == [trajectory, episode()]


@settings(max_examples=50, deadline=None)
@given(text=st.text(st.characters(), max_size=20))
def test_any_text_survives(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any.parquet"
    write_trajectories(path, [episode(text=text)])
    assert read_trajectories(path) == [episode(text=text)]


def test_well_formed_text_is_plain_strings_to_other_tools(tmp_path):
    write_trajectories(tmp_path / "some.parquet", [episode(text="é🙂")])
    table = pq.read_table(tmp_path / "some.parquet")
    assert table["actions"].to_pylist() == [["é🙂", "é🙂"]]
    assert pa.types.is_string(table["infos"].type.value_type)


def test_a_folder_is_read_in_the_order_of_names_whatever_its_columns_hold(tmp_path):
    plain, hostile = episode(seed=1), episode(seed=2, text="\udfff")
    write_trajectories(tmp_path / "b.parquet", [plain])
    write_trajectories(tmp_path / "a.parquet", [hostile])
    (tmp_path / "notes.txt").write_text("not parquet")
    assert read_trajectories(tmp_path) == [hostile, plain]


def test_an_empty_list_of_trajectories_is_a_file_like_any_other(tmp_path):
    write_trajectories(tmp_path / "none.parquet", [])
    assert read_trajectories(tmp_path / "none.parquet") == []


def test_missing_files_are_named(tmp_path):
    with pytest.raises(DataError, match="absent.parquet: expected a parquet file"):
        read_trajectories(tmp_path / "absent.parquet")
    with pytest.raises(DataError, match="found none"):
        read_trajectories(tmp_path)


@pytest.mark.parametrize("bad", [{"reward": float("nan")}, {"array": np.zeros(2)}])
def test_an_info_that_json_cannot_hold_names_the_episode(tmp_path, bad):
    trajectory = dataclasses.replace(episode(((0.0,),), seed=77), infos=(bad, {}))
    with pytest.raises(DataError, match="trajectory 1 .*seed 77"):
        write_trajectories(tmp_path / "bad.parquet", [episode(), trajectory])
    assert not list(tmp_path.iterdir())


def test_another_schema_version_or_kind_is_refused(tmp_path):
    table = pa.table({"x": [1]})
    parquet.write_table(tmp_path / "v2.parquet", table, "trajectories", 2)
    with pytest.raises(DataError, match="v2.parquet: expected trajectories of schema version 1"):
        read_trajectories(tmp_path / "v2.parquet")
    parquet.write_table(tmp_path / "pairs.parquet", table, "pairs", 1)
    with pytest.raises(DataError, match="got pairs of schema version 1"):
        read_trajectories(tmp_path / "pairs.parquet")


def test_a_foreign_parquet_file_is_refused(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "foreign.parquet")
    with pytest.raises(DataError, match="foreign.parquet: .*not a file of LactChain"):
        read_trajectories(tmp_path / "foreign.parquet")


def test_every_flipped_bit_and_every_cut_is_detected(tmp_path):
    path, damaged = tmp_path / "whole.parquet", tmp_path / "damaged.parquet"
    write_trajectories(path, [episode(seed=seed) for seed in range(10)])
    content, draw = path.read_bytes(), random.Random(0)
    for bit in draw.sample(range(8 * len(content)), 300):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.write_bytes(flipped)
        with pytest.raises(DataError, match="damaged.parquet"):
            read_trajectories(damaged)
    for length in draw.sample(range(len(content)), 100):
        damaged.write_bytes(content[:length])
        with pytest.raises(DataError, match="damaged.parquet"):
            read_trajectories(damaged)


def test_the_damaged_row_group_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "ROWS_PER_GROUP", 4)
    path = tmp_path / "groups.parquet"
    write_trajectories(path, [episode(seed=seed) for seed in range(12)])
    second = pq.ParquetFile(path).metadata.row_group(1).column(5)
    content = bytearray(path.read_bytes())
    content[second.data_page_offset + second.total_compressed_size // 2] ^= 4
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"groups.parquet: damaged, in row group 1 of 3"):
        read_trajectories(path)


def test_transitions_of_two_episodes_by_hand():
    won = episode(((0.0, 2.0), (1.0,)))
    cut = episode(((0.0,), ()), terminated=False, truncated=True)
    view = transitions([won, episode(()), cut], gamma=0.5, final_values=[9.0, 9.0, 8.0])
    assert view.observations == ["observation 0", "observation 1"] * 2
    assert view.next_observations == ["observation 1", "observation 2"] * 2
    assert [action.token_ids[-1] for action in view.actions] == [0, 1, 0, 1]
    np.testing.assert_array_equal(view.rewards, [1.0, 1.0, 0.0, 0.0])
    np.testing.assert_array_equal(view.discounts, [0.25, 0.0, 0.5, 0.5])
    np.testing.assert_array_equal(view.returns, [1.25, 1.0, 2.0, 4.0])
    np.testing.assert_array_equal(view.terminated, [False, True, False, False])
    np.testing.assert_array_equal(view.truncated, [False, False, False, True])
    np.testing.assert_array_equal(view.episodes, [0, 0, 2, 2])
    assert len(view) == 4


def test_transitions_discount_per_chain():
    view = transitions([episode(((0.0, 2.0), (1.0,)))], gamma=0.5, discount_per="chain")
    np.testing.assert_array_equal(view.rewards, [2.0, 1.0])
    np.testing.assert_array_equal(view.discounts, [0.5, 0.0])
    np.testing.assert_array_equal(view.returns, [2.5, 1.0])


def test_transitions_of_nothing_are_empty():
    view = transitions([], gamma=0.9)
    assert len(view) == 0
    assert view.returns.shape == view.terminated.shape == (0,)


def test_returns_of_transitions_obey_their_own_recursion():
    draw = np.random.default_rng(0)
    episodes = [
        episode(tuple(tuple(draw.normal(size=draw.integers(1, 4))) for _ in range(5)))
        for _ in range(4)
    ]
    view = transitions(episodes, gamma=0.9)
    for n in range(len(view) - 1):
        following = view.returns[n + 1] if view.episodes[n] == view.episodes[n + 1] else 0.0
        assert view.returns[n] == pytest.approx(view.rewards[n] + view.discounts[n] * following)
