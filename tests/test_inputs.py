"""What a run reads from elsewhere is held against what it was, as far as it is read."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lactchain.errors import DataError
from lactchain.inputs import check_inputs, inputs_of
from lactchain.manifests import write_manifest, write_with_manifest
from lactchain.settings import CriticConfig, PlayerConfig
from lactchain.stages.train_critic import TrainCriticConfig

FILES = (
    "config.json", "tokenizer.json", "tokenizer.model", "model.safetensors",
    "old.bin", "model.gguf", "original/params.json", "original/model.pth", "notes.md",
)  # fmt: skip
READ = {"config.json", "tokenizer.json", "tokenizer.model", "model.safetensors"}


@dataclass(frozen=True)
class Trained:
    model: str
    trajectories: str | None = None


@pytest.fixture
def config(tmp_path):
    for name in FILES:
        file = tmp_path / "model" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/00000-of-00001.parquet").write_text("rows")
    return Trained(str(tmp_path / "model"), str(tmp_path / "data"))


def check(recorded, config):
    check_inputs(recorded, inputs_of(config), Path("run"))


@pytest.mark.parametrize("key, name", [
    ("trajectories", "more.parquet"), ("trajectories", "train/more.parquet"),
    ("model", "adapter_config.json"), ("model", "chat_template.jinja"),
    ("model", "model-00002-of-00002.safetensors"),
])  # fmt: skip
def test_a_file_that_would_be_read_as_well_is_refused(key, name, config):
    recorded = inputs_of(config)
    file = Path(getattr(config, key)) / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("new")
    with pytest.raises(DataError, match=f"{name} of {key} was not there when this run began"):
        check(recorded, config)


def test_of_a_model_only_what_is_loaded_counts(config):
    recorded = inputs_of(config)
    assert recorded["model"].keys() == READ
    for name in FILES[4:]:
        (Path(config.model) / name).unlink()
    check(recorded, config)
    (Path(config.model) / "tokenizer.model").unlink()
    with pytest.raises(DataError, match="tokenizer.model of model is not as it was"):
        check(recorded, config)


def test_weights_in_pickles_count_where_there_are_no_others(config):
    (Path(config.model) / "model.safetensors").unlink()
    recorded = inputs_of(config)
    (Path(config.model) / "old.bin").write_text("other")
    with pytest.raises(DataError, match="old.bin of model is not as it was"):
        check(recorded, config)


def test_a_checksum_is_taken_from_the_manifest_where_one_lists_the_file(config):
    before, data = inputs_of(config), Path(config.trajectories) / "00000-of-00001.parquet"
    write_manifest(config.model, {})
    write_with_manifest(data, b"rows", {})
    found = inputs_of(config)
    file = Path(config.model) / "model.safetensors"
    assert found["model"][file.name] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert found["trajectories"][data.name] == hashlib.sha256(b"rows").hexdigest()
    with pytest.raises(DataError, match="of trajectories (was not there|is not as it was)"):
        check({"trajectories": before["trajectories"]}, config)
    file.write_text("of quite another length")
    with pytest.raises(DataError, match="model.safetensors of model is not as it was"):
        check(found, config)


def test_models_that_are_never_read_are_not_held_against_anything(config):
    model = config.model
    critic = CriticConfig(model=model, checkpoint=str(config.trajectories))
    played = TrainCriticConfig(actor=PlayerConfig(model=model), critic=critic)
    assert {"actor.model", "critic.checkpoint"} <= inputs_of(played).keys()
    assert "critic.model" not in inputs_of(played)
    assert "critic.model" in inputs_of(replace(played, critic=replace(critic, checkpoint=None)))
    read = replace(played, trajectories=config.trajectories)
    assert "actor.model" not in inputs_of(read)
