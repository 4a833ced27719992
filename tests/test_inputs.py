"""What a run reads from elsewhere is held against what it was, as far as it is read."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lactchain.config.settings import CriticConfig, PlayerConfig
from lactchain.errors import DataError
from lactchain.runs.folder import check_inputs, inputs_of
from lactchain.stages.train_critic import TrainCriticConfig

FILES = ("config.json", "tokenizer.json", "model.safetensors", "original/params.json")


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
    with pytest.raises(DataError, match=f"{name} of {key} is not as it was when this run began"):
        check(recorded, config)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_changed_or_is_missing_is_refused(name, config):
    recorded, file = inputs_of(config), Path(config.model) / name
    for change in (lambda: file.write_text("x" * len(name)), file.unlink):
        change()
        with pytest.raises(DataError, match=f"{name} of model is not as it was"):
            check(recorded, config)


def test_a_card_and_hidden_files_may_change(config):
    recorded = inputs_of(config)
    for name in ("README.md", ".DS_Store"):
        (Path(config.model) / name).write_text("new")
    check(recorded, config)


def test_models_that_are_never_read_are_not_held_against_anything(config):
    model = config.model
    critic = CriticConfig(model=model, checkpoint=str(config.trajectories))
    played = TrainCriticConfig(actor=PlayerConfig(model=model), critic=critic)
    assert {"actor.model", "critic.checkpoint"} <= inputs_of(played).keys()
    assert "critic.model" not in inputs_of(played)
    assert "critic.model" in inputs_of(replace(played, critic=replace(critic, checkpoint=None)))
    read = replace(played, trajectories=config.trajectories)
    assert "actor.model" not in inputs_of(read)
