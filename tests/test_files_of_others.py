"""Files of others mean what their writers meant, or are refused by name, file, row and column."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lactchain.data.sources import open_pairs, open_trajectories
from lactchain.errors import DataError
from lactchain_extras.exchange import data_sets

PAIR = {"prompt": "p", "chosen": "a", "rejected": "b"}
EPISODE = {"observations": ["one", "two"], "completions": ["go"], "rewards": [1.0]}
EPISODE |= {"terminated": True, "success": None}


def pairs(*names):
    return [PAIR | {"prompt": name} for name in names]


def put(path, rows):
    """Writes rows in the format that the name says, or bytes as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(rows, bytes):
        path.write_bytes(rows)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def asked(path):
    return [pair.prompt for pair in open_pairs(path)]


TRAIN, OTHER = pairs("1", "2", "3"), pairs("x", "y")
SPLITS = {
    "data/train-00000-of-00001.parquet": "data/test-00000-of-00001.parquet",
    "train.jsonl": "test.jsonl",
    "train/a.parquet": "test/a.parquet",
    "train-00000-of-00001.parquet": "dev-00000-of-00001.parquet",
    "data/train.parquet": "data/eval.parquet",
    "train.ndjson": "train_sft.ndjson",
}


@pytest.mark.parametrize(("train", "other"), SPLITS.items())
def test_of_several_splits_the_one_for_training_is_read(tmp_path, train, other):
    put(tmp_path / train, TRAIN)
    put(tmp_path / other, OTHER)
    assert asked(tmp_path) == ["1", "2", "3"]
    assert asked(tmp_path / other) == ["x", "y"]
    for file, rows in ((train, [EPISODE] * 3), (other, [EPISODE] * 2)):
        put(tmp_path / file, rows)
    assert len(open_trajectories(tmp_path)) == 3


def test_splits_that_were_saved_together_are_told_apart(tmp_path):
    splits = {"train": Dataset.from_list(TRAIN), "test": Dataset.from_list(OTHER)}
    DatasetDict(splits).save_to_disk(tmp_path / "saved")
    assert asked(tmp_path / "saved") == ["1", "2", "3"]
    DatasetDict({"test": splits["test"]}).save_to_disk(tmp_path / "one")
    assert asked(tmp_path / "one") == ["x", "y"]
    DatasetDict({"test": splits["test"], "val": splits["test"]}).save_to_disk(tmp_path / "none")
    with pytest.raises(DataError, match="expected one split, got test, val; give the"):
        open_pairs(tmp_path / "none")


def test_parts_of_one_split_belong_together(tmp_path):
    put(tmp_path / "train-00000-of-00002.parquet", pairs("1"))
    put(tmp_path / "train-00001-of-00002.parquet", pairs("2"))
    assert asked(tmp_path) == ["1", "2"]
    put(tmp_path / "more" / "a.jsonl", pairs("1"))
    put(tmp_path / "more" / "b.jsonl", pairs("2"))
    assert asked(tmp_path / "more") == ["1", "2"]


@pytest.mark.parametrize("name", ["dataset_infos.json", "README.md", "notes.json"])
def test_what_describes_a_data_set_is_no_row_of_it(tmp_path, name):
    put(tmp_path / "train.jsonl", TRAIN)
    (tmp_path / name).write_text('{"default": {"splits": {"train": 3}}}')
    assert asked(tmp_path) == ["1", "2", "3"]


CSV = b"prompt,chosen,rejected\na,b,c\n"
SPLIT = "expected one split, got .*; give the file or the folder"
KIND = r"ends in .parquet, .jsonl, .*JSON object on a line"
NO_ROWS = "b.jsonl: (expected .* to learn from, found none|line 1 is no JSON)"
ONE_LIST = json.dumps([PAIR], indent=1).encode()
UNREAD = {
    "no split for training": (["test.jsonl", "validation.jsonl"], SPLIT),
    "several for training": (["train_prefs.parquet", "test_prefs.parquet"], SPLIT),
    "a split and another": (["test.parquet", "more.parquet"], SPLIT),
    "others and what is held out": (["a.jsonl", "holdout.jsonl"], "got others, holdout"),
    "two kinds": (["a.jsonl", "b.parquet"], "one kind, got a.jsonl and b.parquet"),
    **{name: ({name: CSV}, KIND) for name in ("pairs.csv", "pairs.txt", "pairs")},
    "packed": ({"pairs.jsonl.gz": gzip.compress(CSV)}, KIND),
    "one list": ({"rows.jsonl": ONE_LIST}, "rows.jsonl: line 1 is no JSON object .*a line holds"),
    **{f"no rows but {t}": ({"b.jsonl": t}, NO_ROWS) for t in (b"", b"\n", b".", b"./", b"/")},
}
"""The names of files of rows, or one file as it is; and what is said of them."""


@pytest.mark.parametrize("read", [open_pairs, open_trajectories])
@pytest.mark.parametrize(("files", "words"), UNREAD.values(), ids=UNREAD)
def test_what_may_be_misread_is_refused_and_stands_for_nothing_else(tmp_path, files, words, read):
    place = tmp_path
    if isinstance(files, dict):
        ((name, content),) = files.items()
        files, place = {"a.jsonl": TRAIN, name: content}, tmp_path / name
    else:
        files = dict.fromkeys(files, TRAIN)
    for name, rows in files.items():
        put(tmp_path / name, rows)
    with pytest.raises(DataError, match=words):
        read(place)


def said(role, content):
    return {"role": role, "content": content}


QUESTION, GOOD, BAD = said("user", "why?"), said("assistant", "so"), said("assistant", "no")
LONG = [said("system", "be kind"), said("user", "hi"), said("assistant", "hello"), QUESTION]


@pytest.mark.parametrize(("row", "prompt"), [
    ({"prompt": "why?", "chosen": [QUESTION, GOOD], "rejected": [QUESTION, BAD]}, "why?"),
    ({"chosen": [QUESTION, GOOD], "rejected": [QUESTION, BAD]}, (QUESTION,)),
    ({"prompt": [QUESTION], "chosen": [GOOD], "rejected": [BAD]}, (QUESTION,)),
    ({"prompt": [QUESTION], "chosen": [QUESTION, GOOD], "rejected": [QUESTION, BAD]}, (QUESTION,)),
    ({"chosen": [*LONG, GOOD], "rejected": [*LONG, BAD]}, tuple(LONG)),
    ({"prompt": "why?", "chosen": [GOOD], "rejected": [BAD]}, "why?"),
])  # fmt: skip
def test_the_prompt_that_both_answers_begin_with_is_read(tmp_path, row, prompt):
    put(tmp_path / "a.jsonl", [row])
    (pair,) = open_pairs(tmp_path / "a.jsonl")
    assert (pair.prompt, pair.chosen, pair.rejected) == (prompt, "so", "no")


@pytest.mark.parametrize("row", [
    {"prompt": "other", "chosen": [QUESTION, GOOD], "rejected": [QUESTION, BAD]},
    {"chosen": [QUESTION, GOOD], "rejected": [said("user", "how?"), BAD]},
    {"chosen": [GOOD], "rejected": [BAD]},
    {"chosen": "so", "rejected": "no"},
    {"prompt": "why?", "chosen": [QUESTION, GOOD], "rejected": "no"},
])  # fmt: skip
def test_answers_to_two_prompts_or_none_are_refused(tmp_path, row):
    put(tmp_path / "a.jsonl", [row])
    with pytest.raises(DataError, match="a.jsonl: row 0"):
        open_pairs(tmp_path / "a.jsonl")


STRANGE = {
    "terminated": ["false", "true", 2, [True]], "success": ["no"],
    "observations": ["ab", ["a", None], [1, 2]], "completions": [[5], "g", {"0": "go"}],
    "rewards": [["1"], [True], [None], "1"],
}  # fmt: skip
NO_TEXT = [3, 0.5, True, [], [3], ["a"], {"a": 1}, [{"role": "user"}]]
NO_TEXT += [[{"role": 1, "content": "x"}]]
CELLS = [(open_trajectories, EPISODE, name, value) for name in STRANGE for value in STRANGE[name]]
CELLS += [(open_pairs, PAIR, name, value) for name in PAIR for value in NO_TEXT]


@pytest.mark.parametrize(("read", "row", "column", "value"), CELLS)
def test_a_cell_of_another_type_is_refused_by_row_and_column(tmp_path, read, row, column, value):
    put(tmp_path / "a.jsonl", [row, row | {column: value}])
    with pytest.raises(DataError, match=f"a.jsonl: row 1: {column}: expected"):
        read(tmp_path / "a.jsonl")


@pytest.mark.parametrize("rewards", ["[NaN]", "[Infinity]", "[1e999]", "[" + "9" * 400 + "]"])
def test_rewards_that_are_no_finite_numbers_are_refused(tmp_path, rewards):
    row = json.dumps(EPISODE | {"rewards": []}).replace('"rewards": []', f'"rewards": {rewards}')
    (tmp_path / "a.jsonl").write_text(row + "\n")
    with pytest.raises(DataError, match="a.jsonl"):
        open_trajectories(tmp_path / "a.jsonl")


SHARED = HealthCheck.function_scoped_fixture  # each example writes its file anew
NAMES = st.sampled_from(["role", "content", "a"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[SHARED])
@given(row=st.fixed_dictionaries({}, optional=dict.fromkeys([*PAIR, *EPISODE], ANYTHING)))
def test_a_table_of_any_types_is_read_as_texts_or_refused_by_name(tmp_path, row):
    file = tmp_path / "a.jsonl"
    put(file, [row])
    for read in (open_pairs, open_trajectories):
        try:
            (found,) = read(file)
        except DataError as error:
            assert "a.jsonl" in str(error) and len(str(error)) < 600
            continue
        if read is open_pairs:
            assert isinstance(found.chosen, str) and isinstance(found.rejected, str)
            assert isinstance(found.prompt, str | tuple)
        else:
            assert list(found.observations)[: len(row["observations"])] == row["observations"]
            assert [action.text for action in found.actions] == row["completions"]
            assert found.terminated == bool(row["terminated"])


@pytest.mark.parametrize("kind", ["plain", "dictionary", "lists of dictionaries", "nothing"])
def test_a_file_that_unpacks_to_far_more_than_its_size_is_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(data_sets, "MOST_UNPACKED", 2**20)
    long = pa.array(["x" * 2_000] * 20_000)
    if kind != "plain":
        long = long.dictionary_encode()
    if kind.startswith("lists"):
        long = pa.ListArray.from_arrays(pa.array([0, 10_000, 20_000], pa.int32()), long)
    if kind == "nothing":
        long = pa.nulls(10**6)
    table = pa.table({"prompt": long, "chosen": long, "rejected": long})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    with pytest.raises(DataError, match="expected rows of at most .* bytes, got more"):
        open_pairs(tmp_path / "a.parquet")


def test_a_file_of_equal_prompts_is_read(tmp_path):
    put(tmp_path / "a.parquet", pairs(*["the same long instruction " * 50] * 500))
    assert len(open_pairs(tmp_path / "a.parquet")) == 500
