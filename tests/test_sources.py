"""Pairs and episodes of one's own: every format is read, and what is missing is named."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from script_setups import config_of, run_here
from training_setups import chain_of, episodes, open_run

from lactchain import Action, DataError, PreferencePair, RunConfig, load_values, write_trajectories
from lactchain.data.parquet import write_table
from lactchain.data.preferences import read_pairs, write_pairs
from lactchain.data.sources import TRAJECTORIES, open_pairs, open_trajectories, read_trajectories
from lactchain.models.loading import load_tokenizer
from lactchain.models.prompting import PromptTemplate
from lactchain_extras.stages.train_mc import TrainMCConfig

PAIRS = [
    {"prompt": f"{x} 0 up 1 1", "chosen": chain_of(1), "rejected": chain_of(2)} for x in range(6)
]
FIELDS = ("observations", "completions", "rewards", "terminated")
TEXTS = ["0 0 up 1 1", "0 1 up 1 1", "1 1 up 1 1"]
TOLD = [
    (TEXTS, [chain_of(1), chain_of(2)], [-1.0, 4.0], True),
    (["0 0 left 1 1", "0 1 left 1 1"], [chain_of(1)], [-1.0], False),
]
EPISODES = [dict(zip(FIELDS, told, strict=True)) for told in TOLD] * 4


def write(rows, path, kind):
    """Rows in a format; returns what is given to a script."""
    path.mkdir(parents=True, exist_ok=True)
    if kind == "datasets":
        Dataset.from_list(rows).save_to_disk(path)
        return path
    file = path / f"data.{kind}"
    if kind == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), file)
    return file


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "datasets"])
def test_pairs_and_episodes_of_ones_own_are_read_from_each_format(tmp_path, kind):
    pairs = open_pairs(write(PAIRS, tmp_path / "pairs", kind))
    assert pairs == [PreferencePair(**row) for row in PAIRS]
    first, second = open_trajectories(write(EPISODES, tmp_path / "played", kind))[:2]
    assert first.returns(0.5).tolist() == [-1 + 0.5 * 4, 4] and first.terminated
    assert first.actions == (Action(chain_of(1)), Action(chain_of(2)))
    assert second.truncated and second.returns(0.5, final_value=8).tolist() == [3]
    assert [episode.infos[-1]["success"] for episode in (first, second)] == [None, None]
    said = [row | {"success": well} for row, well in zip(EPISODES, (False, True), strict=False)]
    told = open_trajectories(write(said, tmp_path / "told", kind))
    assert [episode.infos[-1]["success"] for episode in told] == [False, True]


def test_an_ending_needs_no_last_observation_and_a_cut_does(tmp_path):
    ended = EPISODES[0] | {"observations": EPISODES[0]["observations"][:2]}
    [episode] = open_trajectories(write([ended], tmp_path, "jsonl"))
    assert len(episode.observations) == 3 and episode.returns(1.0).tolist() == [3, 4]
    with pytest.raises(DataError, match=r"data.jsonl: row 0 is no episode: observations: expected"):
        open_trajectories(write([ended | {"terminated": False}], tmp_path, "jsonl"))


def test_a_lost_manifest_of_ours_is_missed_beside_others(tmp_path):
    for number in range(3):
        write_trajectories(tmp_path / f"{number:05d}-of-00003.parquet", episodes())
    assert pq.read_table(tmp_path).num_rows == 3 * len(episodes())  # as pandas reads it
    (tmp_path / "_00001-of-00003.manifest").unlink()
    with pytest.raises(DataError, match="00001-of-00003"):
        open_trajectories(tmp_path)
    for manifest in tmp_path.glob("*.manifest"):
        manifest.unlink()
    assert len(open_trajectories(tmp_path)) == 3 * len(episodes())


@pytest.mark.parametrize(("column", "odd"), [("rewards", [["x"]]), ("infos", [3])])
def test_of_a_folder_the_file_is_named_whose_rows_are_no_episodes(column, odd, tmp_path):
    table = TRAJECTORIES.table(episodes()[:1])
    place = table.schema.get_field_index(column)
    for number, rows in enumerate((table, table.set_column(place, column, pa.array(odd)))):
        write_table(tmp_path / f"{number:05d}-of-00002.parquet", rows, "trajectories", 1)
    with pytest.raises(DataError, match="00001-of-00002.parquet: its rows are no trajectories"):
        open_trajectories(tmp_path)


def test_folders_in_folders_are_those_of_data_sets_and_of_a_single_run(tmp_path):
    write(PAIRS, tmp_path / "hub/data", "parquet")
    assert len(open_pairs(tmp_path / "hub")) == len(PAIRS)
    with open_run(tmp_path / "runs/first") as run:
        write_pairs(run.path("pairs/0.parquet"), [PreferencePair("x", "a", "b", (1,), (2,), 1, 0)])
        write_trajectories(run.path("trajectories/0.parquet"), episodes())
    assert open_trajectories(run.directory / "trajectories") == episodes()
    assert open_trajectories(run.directory) == episodes() and len(open_pairs(run.directory)) == 1
    runs = run.directory.parent
    for read, folder in [
        *((read, runs) for read in (open_trajectories, open_pairs)),
        *((read, run.directory) for read in (read_pairs, read_trajectories)),
    ]:
        with pytest.raises(DataError, match=f"{folder}: expected a parquet file or a folder"):
            read(folder)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "datasets"])
def test_what_is_missing_is_named_in_one_line(tmp_path, kind):
    rows = [{"prompt": "x", "chosen": "a", "loser": "b"}]
    message = r"row 0: expected prompt, chosen, rejected, got prompt, chosen, loser; rejected missi"
    with pytest.raises(DataError, match=message) as error:
        open_pairs(write(rows, tmp_path / "pairs", kind))
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)
    rows = [{"observations": ["x"], "actions": ["a"], "rewards": [1.0]}]
    with pytest.raises(DataError, match="completions, terminated missing, rename or add"):
        open_trajectories(write(rows, tmp_path / "played", kind))


def test_a_conversation_is_a_prompt_by_the_chat_template_alone(weights, tmp_path):
    talk = [{"role": "user", "content": PAIRS[0]["prompt"]}]
    chosen, rejected = ([{"role": "assistant", "content": chain_of(n)}] for n in (1, 2))
    rows = [PAIRS[0], {"prompt": talk, "chosen": chosen, "rejected": rejected}]
    text, said = open_pairs(write(rows, tmp_path, "jsonl"))
    assert (said.chosen, said.rejected) == (text.chosen, text.rejected)
    tokenizer = load_tokenizer(weights / "actor", padding_side="left", chat=True)
    template = PromptTemplate(tokenizer)
    first, second = template.encode_batch([text.prompt, said.prompt])
    assert first == second
    longer = [*talk, {"role": "assistant", "content": "no"}, {"role": "user", "content": "why"}]
    expected = tokenizer.apply_chat_template(longer, add_generation_prompt=True)["input_ids"]
    assert template.encode_batch([longer, text.prompt]) == [expected, first]
    rows[1]["chosen"] = longer
    with pytest.raises(DataError, match="row 1: expected one prompt before the last messages"):
        open_pairs(write(rows, tmp_path, "jsonl"))


def test_every_training_takes_data_of_ones_own(weights, tmp_path):
    pairs = str(write(PAIRS, tmp_path / "pairs", "jsonl"))
    played = str(write(EPISODES, tmp_path / "played", "datasets"))
    simpo = config_of("train_simpo", weights, tmp_path / "simpo", pairs=pairs)
    assert run_here("train_simpo", simpo)["num_pairs"] == len(PAIRS)
    cloned = config_of("train_bc", weights, tmp_path / "bc", trajectories=played)
    assert run_here("train_bc", cloned)["num_examples"] == 12
    critic = config_of("train_critic", weights, tmp_path / "critic", trajectories=played)
    assert run_here("train_critic", critic)["num_chains"] == 12
    shared = {name: getattr(cloned, name) for name in ("environment", "actor", "training")}
    values = TrainMCConfig(run=RunConfig(str(tmp_path / "mc")), trajectories=played, **shared)
    assert run_here("train_mc", values)["num_decisions"] == 12
    assert load_values(tmp_path / "mc").meaning.method == "mc"
