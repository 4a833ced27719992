"""Trajectory files: what goes in comes out verbatim, and damage is found and named."""

import dataclasses
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trajectories import trajectory

from lactchain import Action, DataError, Trajectory, read_trajectories, write_trajectories
from lactchain.data import parquet
from lactchain.storage.manifests import write_run_file


def episode(
    rewards=((0.0, 0.0), (1.0,)), *, terminated=True, truncated=False, seed=3, text="[]"
) -> Trajectory:
    """An episode whose chains earn these rewards, one per primitive action."""
    steps = range(len(rewards))
    texts = [f"observation {t}" for t in range(len(rewards) + 1)]
    said = [Action(text, (1, 2, t), (-0.1, -0.2, -1 / 3)) for t in steps]
    infos = [{"executed": ["move"] * len(chain), "rewards": list(chain)} for chain in rewards]
    infos, rewards = [{"state": {"x": 1}}, *infos], [float(sum(chain)) for chain in rewards]
    others = {"truncated": truncated, "seed": seed, "policy": "script"}
    return trajectory(texts, said, rewards, infos, terminated=terminated, **others)


@settings(max_examples=20, deadline=None)
@given(text=st.text(st.characters(), max_size=20))
@example(text="lone \ud800 surrogate")
@example(text="two lone \ud83d\ude00 that would be one character")
@example(text="nul \x00, ansi \x1b[31m, bell \x07, \r\n, \u2028")
@example(text="[bold]markup[/bold] $x^2$ </script><img src=x onerror=alert(1)> </s> [INST]")
@example(text="")
def test_any_text_survives_in_every_column(tmp_path_factory, text):
    infos = ({text: text}, {"executed": [text], "rewards": [0.0]}, {"executed": []})
    others = {"env_id": text, "policy": text, "observations": (text,) * 3}
    odd = dataclasses.replace(episode(text=text), infos=infos, **others)
    path = tmp_path_factory.getbasetemp() / "any.parquet"
    write_trajectories(path, [odd, episode()])
    assert read_trajectories(path) == [odd, episode()]


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


def test_a_numbered_file_that_is_missing_is_named(tmp_path):
    for number in (0, 2, 3):
        write_trajectories(tmp_path / f"{number:05d}-of-00005.parquet", [])
    with pytest.raises(DataError, match=r"00001-of-00005\.parquet and 1 more: missing beside"):
        read_trajectories(tmp_path)
    assert read_trajectories(tmp_path / "00003-of-00005.parquet") == []
    for number in (1, 4):
        write_trajectories(tmp_path / f"{number:05d}-of-00005.parquet", [])
    assert read_trajectories(tmp_path) == []


@pytest.mark.parametrize("bad", [{"reward": float("nan")}, {"array": np.zeros(2)}])
def test_an_info_that_json_cannot_hold_is_refused(tmp_path, bad):
    trajectory = dataclasses.replace(episode(((0.0,),), seed=77), infos=(bad, {}))
    with pytest.raises(DataError, match=r"infos: number \d+: expected what JSON can hold"):
        write_trajectories(tmp_path / "bad.parquet", [episode(), trajectory])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("kind", "version"), [("trajectories", 2), ("pairs", 1), (None, 0)])
def test_a_file_of_another_schema_version_or_kind_or_program_is_refused(tmp_path, kind, version):
    path, table = tmp_path / "other.parquet", pa.table({"x": [1]})
    if kind:
        parquet.write_table(path, table, kind, version)
    else:
        pq.write_table(table, path)
    told = f"got {kind} of schema version {version}" if kind else "not a file of LactChain"
    with pytest.raises(DataError, match=f"other.parquet: .*{told}"):
        read_trajectories(path)


def test_every_flipped_bit_and_every_cut_is_detected(tmp_path):
    path, draw = tmp_path / "some.parquet", random.Random(0)
    episodes = [episode(seed=seed) for seed in range(10)]
    write_trajectories(path, episodes)
    for file in (path, tmp_path / "_some.manifest"):
        content = file.read_bytes()
        damaged = [content[:length] for length in draw.sample(range(len(content)), 50)]
        for bit in draw.sample(range(8 * len(content)), 150):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            damaged.append(flipped)
        for other in damaged:
            file.write_bytes(other)
            with pytest.raises(DataError, match=file.name):
                read_trajectories(path)
        file.write_bytes(content)
    assert read_trajectories(path) == episodes


def test_shards_that_changed_places_or_came_from_another_run_are_refused(tmp_path):
    """With their manifests or without them; a folder that is moved as a whole is as good as new."""
    forms = ("_0000{}-of-00002.manifest", "0000{}-of-00002.parquet")
    names = [form.format(n) for n in (0, 1) for form in forms]
    mine, other = tmp_path / "mine", tmp_path / "other"
    for run in (mine, other):
        (run / "trajectories").mkdir(parents=True)
        write_run_file(run, {"run_id": run.name})
        for seed in range(2):
            path = run / f"trajectories/0000{seed}-of-00002.parquet"
            write_trajectories(path, [episode(seed=seed, text=run.name)])
    kept, theirs = (
        {name: (run / "trajectories" / name).read_bytes() for name in names}
        for run in (mine, other)
    )
    swapped = dict(zip(names, (kept[names[n]] for n in (2, 3, 0, 1)), strict=True))
    elsewhere = "was written elsewhere"
    for content, reason in (
        (swapped, f"{elsewhere} .place: expected 'trajectories/00000-of-00002.parquet'"),
        (swapped | {name: kept[name] for name in names[::2]}, "damaged"),
        (kept | {name: theirs[name] for name in names[:2]}, f"{elsewhere} .run_id: expected"),
        (kept | {names[1]: theirs[names[1]]}, "damaged"),
    ):
        for name in names:
            (mine / "trajectories" / name).write_bytes(content[name])
        with pytest.raises(DataError, match=f"00000-of-00002.parquet: {reason}"):
            read_trajectories(mine / "trajectories")
    for name in names:
        (mine / "trajectories" / name).write_bytes(kept[name])
    mine.rename(tmp_path / "renamed")
    assert [t.seed for t in read_trajectories(tmp_path / "renamed/trajectories")] == [0, 1]


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
