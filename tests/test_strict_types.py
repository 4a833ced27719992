"""What others' files, adapters, settings and worlds say is taken as it is, or refused by name.

A text "false" is not false, a list of texts is no text, and a second value of a name does not take
the place of the first unseen.
"""

import json
import os
import shutil

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from script_setups import SHAPE
from test_adapters import of_peft
from test_foreign_transitions import dumped, h5
from transformers import AutoModelForCausalLM

from lactchain import ActorConfig, ConfigError, DataError, DiskError, command, open_run
from lactchain.config.yaml_files import load
from lactchain.data.sources import open_pairs, open_trajectories
from lactchain.models.adapters import load_adapter, merged
from lactchain.models.loading import load_actor
from lactchain.runs.run import read_metrics
from lactchain.storage.files import atomic_write, read_versioned_json, write_json
from lactchain.storage.manifests import write_run_file
from lactchain_extras.offline_data import read_h5_transitions

OURS = {
    "env_id": ["x"], "seed": [0], "policy": ["p"], "terminated": [True], "truncated": [False],
    "observations": [["a", "b"]], "actions": [["c"]], "token_ids": [[[1]]], "logprobs": [[[-0.1]]],
    "stop_reasons": [["stop"]], "rewards": [[1.0]], "infos": [["{}", "{}"]],
}  # fmt: skip


def written(folder, columns):
    pq.write_table(pa.table(columns), folder / "a.parquet")
    return folder / "a.parquet"


def test_episodes_in_our_columns_are_read_whoever_wrote_them(tmp_path):
    [episode] = open_trajectories(written(tmp_path, OURS))
    assert (episode.observations, episode.rewards, episode.seed) == (("a", "b"), (1.0,), 0)
    fixed = pa.array([["a", "b"]], pa.list_(pa.string(), 2))  # other lists than ours
    assert open_trajectories(written(tmp_path, OURS | {"observations": fixed})) == [episode]


OTHER_TYPES = {
    "terminated": (["false"], [None]),
    "truncated": ([0.5],),
    "seed": (["x"], [1.5]),
    "env_id": ([5],),
    "observations": (["ab"], [["a", None]], [[1, 2]]),
    "actions": ([[None]],),
    "token_ids": ([[["x"]]], [[[-5]]]),
    "logprobs": ([[[float("nan")]]], [[[1.0]]], [[[-1.0, -2.0]]]),
    "rewards": ([["1"]], [[True]]),
    "infos": ([["{},{}", "{}"]], [["null", "{}"]]),
}


@pytest.mark.parametrize("column", OTHER_TYPES)
def test_a_value_of_another_type_is_refused_by_its_column(tmp_path, column):
    for values in OTHER_TYPES[column]:
        with pytest.raises(DataError, match=rf"a\.parquet: row 0: ({column}: )?expected"):
            open_trajectories(written(tmp_path, OURS | {column: values}))


def test_a_column_that_nobody_reads_may_hold_anything(tmp_path):
    far = pa.array([2**60], pa.timestamp("us"))  # a year that Python has not
    pair = {"prompt": ["p"], "chosen": ["a"], "rejected": ["b"], "when": far}
    assert open_pairs(written(tmp_path, pair))[0].chosen == "a"


def test_two_values_of_one_name_are_refused(tmp_path):
    table = pa.table({"prompt": ["p"], "chosen": ["a"], "rejected": ["b"]})
    pq.write_table(table.append_column("chosen", pa.array(["z"])), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="each column once, got chosen twice"):
        open_pairs(tmp_path / "a.parquet")
    for text, told in (
        ("run: {seed: 1}\nrun: {seed: 2}\n", "run twice"),
        ("run: {seed: 1, seed: 2}\n", "seed twice"),
        ("1: 2\n", "expected a name, got 1;"),
        ("on: 3\n", "expected a name, got True;"),
    ):
        (tmp_path / "c.yaml").write_text(text)
        with pytest.raises(ConfigError, match=told):
            load(tmp_path / "c.yaml")


def test_copies_of_editors_are_not_learnt_from(tmp_path):
    row = '{"prompt": "p", "chosen": "a", "rejected": "b"}\n'
    (tmp_path / ".ipynb_checkpoints").mkdir()
    for name in ("a.jsonl", ".ipynb_checkpoints/a-checkpoint.jsonl"):
        (tmp_path / name).write_text(row)
    assert len(open_pairs(tmp_path)) == 1


def test_columns_of_hdf5_are_a_number_a_step(tmp_path):
    path = tmp_path / "a.h5"
    told = read_h5_transitions(h5(path, **dumped(rewards_0=np.arange(3.0), terminated_1=1.0)))
    assert told.rewards.tolist() == [0, 1, 2, 30, 40]
    assert told.terminated.tolist() == [False, False, True, False, True]
    for columns in (
        {"rewards_0": np.zeros((3, 2))},
        {"terminated_0": np.array([b"False"])},
        {"terminated_0": np.nan},
        {"actions_0": np.zeros((3, 2), int)},
        {"actions_0": np.full(3, 2**63 + 1, np.uint64)},
    ):
        told = next(iter(columns)).removesuffix("_0")
        with pytest.raises(DataError, match=f"{told}(_0)?: expected"):
            read_h5_transitions(h5(path, **dumped(**columns)))


def test_bytes_of_hdf5_are_of_the_file_itself_and_as_many(tmp_path):
    path = h5(tmp_path / "a.h5", **dumped())
    (tmp_path / "secret").write_bytes(b"\0" * 64)
    with h5py.File(path, "a") as file:
        del file["observations_0"]
        secret = [(str(tmp_path / "secret"), 0, 64)]
        file.create_dataset("observations_0", (4, 2), float, external=secret)
    with pytest.raises(DataError, match="observations_0: expected its numbers here"):
        read_h5_transitions(path)
    with h5py.File(path, "a") as file:
        del file["observations_0"]
        file.create_dataset("observations_0", (4, 2**35), float, chunks=(1, 2**10))
    with pytest.raises(DataError, match="observations_0: expected an array that fits"):
        read_h5_transitions(path)


def base(weights):
    return AutoModelForCausalLM.from_pretrained(weights / "actor", dtype=torch.float32)


def adapter(weights, folder, **settings):
    """An adapter that has learnt something, as PEFT saves it, and what it makes of a few tokens."""
    config = ActorConfig(str(weights / "actor"))
    model = of_peft(config, folder, target_modules=["q_proj"], **settings)
    return folder, answers(model)


@torch.inference_mode()
def answers(model):
    return model(torch.arange(3, 9)[None]).logits


def test_an_adapter_with_biases_answers_as_it_was_trained(weights, tmp_path):
    folder, expected = adapter(weights, tmp_path / "bias", lora_bias=True)
    model = merged(load_adapter(base(weights), folder))  # PEFT cannot merge it
    torch.testing.assert_close(answers(model), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "value", "told"), [
    ("use_rslora", "false", "use_rslora: expected true or false, got 'false'"),
    ("inference_mode", 1, "inference_mode: expected true or false, got 1"),
    ("lora_alpha", float("nan"), "lora_alpha: expected a number above 0, got nan"),
    ("r", "2", "r: expected a number above 0, got '2'"),
    ("layer_replication", [[0, 1], [0, 1]], "layer_replication: expected an adapter of each"),
    ("alora_invocation_tokens", [3], "alora_invocation_tokens: expected an adapter of each"),
    ("rank_pattern", 5, "rank_pattern|no settings of an adapter|AttributeError"),
    ("trainable_token_indices", [99_999_999], "IndexError"),
])  # fmt: skip
def test_settings_of_an_adapter_are_of_their_types(weights, tmp_path, name, value, told):
    folder, _ = adapter(weights, tmp_path / "adapter")
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    with pytest.raises((DataError, ConfigError), match=told):
        load_adapter(base(weights), folder)


@pytest.mark.parametrize("change", [
    lambda w: (100 * w).to(torch.int8), lambda w: w > 0, lambda w: w * float("nan"),
    lambda w: w.double() * 1e300,
])  # fmt: skip
def test_weights_of_an_adapter_are_finite_numbers(weights, tmp_path, change):
    folder, _ = adapter(weights, tmp_path / "adapter")
    file = folder / "adapter_model.safetensors"
    save_file({name: change(w) for name, w in load_file(file).items()}, file)
    with pytest.raises(DataError, match=r"lora_A\.weight: expected finite numbers, got"):
        load_adapter(base(weights), folder)


def load_with(weights, folder, name, weight):
    """Loads a copy of the actor with another weight of that name."""
    shutil.copytree(weights / "actor", folder, dirs_exist_ok=True)
    (folder / "manifest.json").unlink(missing_ok=True)
    file = folder / "model.safetensors"
    save_file(load_file(file) | {name: weight}, file, {"format": "pt"})
    load_actor(ActorConfig(str(folder)))


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.complex64])
def test_weights_of_a_model_are_floating_point(weights, tmp_path, kind):
    name = "model.layers.0.self_attn.q_proj.weight"
    with pytest.raises(DataError, match=r"q_proj\.weight: expected floating point, got"):
        load_with(weights, tmp_path, name, torch.ones(2 * [SHAPE.hidden_size], dtype=kind))


def test_weights_that_a_model_has_no_place_for_are_named(weights, tmp_path, caplog):
    place = f"model.layers.{SHAPE.num_layers}."
    load_with(weights, tmp_path, f"{place}input_layernorm.weight", torch.ones(SHAPE.hidden_size))
    assert f"no place for 1 of its weights ({place}" in caplog.text


METRICS = ('{"a": 1}', '{"step": null}', '{"step": [1]}', '{"step": 1, "time": "x"}')


@pytest.mark.parametrize("line", [*METRICS, '{"step": 1, "a": 1%s}' % ("0" * 400)])
def test_steps_and_times_of_a_run_are_numbers(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl: line 1: expected a step and a time"):
        read_metrics(tmp_path)


def test_a_record_of_a_run_stands_there_once(tmp_path):
    lines = [f'{{"step": 1, "time": 2.5, "loss": {loss}}}\n' for loss in (1, 2, 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    with pytest.raises(DataError, match="metrics.jsonl: line 3 is line 1 again; remove one"):
        read_metrics(tmp_path)


def test_settings_and_lines_are_read_from_plain_files_alone(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")  # nobody will ever write into it
    for place in ("/dev/zero", tmp_path / "metrics.jsonl", tmp_path):
        with pytest.raises(ConfigError, match="got a folder, a pipe or a device"):
            load(place)
    with pytest.raises(DataError, match="expected a file, got a folder, a pipe or a device"):
        read_metrics(tmp_path)
    with pytest.raises(DiskError, match="expected the name of a file"):
        atomic_write("", "x")
    write_json(tmp_path / "a.json", {"schema_version": True})
    with pytest.raises(DataError, match="expected schema version 1, got True"):
        read_versioned_json(tmp_path / "a.json", 1)


@pytest.mark.parametrize("world", [{"id": 5}, {"template": 5}, {"kwargs": {"size": 10**9}}])
def test_a_run_whose_world_cannot_be_made_is_shown_without_it(tmp_path, caplog, world):
    write_run_file(tmp_path, {"config": {"environment": world}})
    assert open_run(tmp_path).env is None and "shown without its world" in caplog.text


def test_a_game_that_cannot_begin_is_told_in_a_line(capsys):
    for words, told in (
        (["--environment.kwargs", '{"size": 1000000000}'], "no memory is left"),
        (["--seed", "-1"], "seed: expected at least 0"),
    ):
        with pytest.raises(SystemExit) as ended:
            command.run("play", words)
        assert ended.value.code == 2 and told in capsys.readouterr().err
