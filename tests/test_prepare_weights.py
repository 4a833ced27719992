"""Weights are prepared once, mended when damaged, and their absence is explained."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
from conftest import ROOT
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from safetensors.torch import load_file

from lactchain import ConfigError, DataError, make_language_env, parse
from lactchain.config.settings import ActorConfig, EnvironmentConfig, TrainingConfig
from lactchain.config.weights import TinyModelConfig
from lactchain.environments.scripted import random_play_texts
from lactchain.models.adapters import base_checksum
from lactchain.models.loading import load_actor
from lactchain.models.weights import resolve_weights
from lactchain.stages import train_bc
from lactchain.stages.train_bc import BehaviorConfig, WarmStartConfig
from lactchain.storage.manifests import verify_manifest
from lactchain_extras.stages.prepare_weights import PrepareWeightsConfig, main
from lactchain_extras.weights.fetching import download

MISTRAL = "mistralai/Mistral-7B-Instruct-v0.3"
SHORT = EnvironmentConfig(template="{x} {y} {orientation} {goal_x} {goal_y}")
SMALL = TinyModelConfig(hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1)
BRIEF = WarmStartConfig(BehaviorConfig(num_chains=32), TrainingConfig(batch_size=16))


@pytest.fixture
def config(tmp_path):
    return PrepareWeightsConfig(folder=str(tmp_path / "w"), tiny=SMALL, environment=SHORT)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Made once, from the shipped configuration but for the size."""
    folder = tmp_path_factory.mktemp("weights")
    file = str(ROOT / "configs/prepare_weights/gridworld_tiny.yaml")
    shipped = parse(PrepareWeightsConfig, ["--config", file])
    main(replace(shipped, folder=str(folder), tiny=SMALL, warm_start=BRIEF))
    return folder


@pytest.mark.parametrize("name", ["tiny-base/model.safetensors", "tiny-encoder/config.json"])
def test_the_same_command_again_makes_but_damaged_models_again(config, caplog, name):
    caplog.set_level("INFO", "lactchain")
    main(config)
    files = {path: path.stat().st_mtime_ns for path in Path(config.folder).rglob("*")}
    main(config)
    assert (caplog.text.count(": ready"), caplog.text.count("already there")) == (2, 2)
    assert files == {path: path.stat().st_mtime_ns for path in Path(config.folder).rglob("*")}
    file = Path(config.folder) / name
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    main(config)
    assert f"is made again ({file}" in caplog.text and file.read_bytes() == content


def test_the_tiny_actor_is_the_base_after_its_warm_start(prepared):
    folders = prepared / "tiny-base", prepared / "tiny-actor"
    base, actor = (load_file(folder / "model.safetensors") for folder in folders)
    trained = load_file(prepared / "tiny-warm-start" / "actor" / "model.safetensors")
    assert all(torch.equal(actor[name], trained[name]) for name in base)
    assert not all(torch.equal(actor[name], base[name]) for name in base)
    manifest = verify_manifest(prepared / "tiny-actor")
    assert manifest["made_from"]["base"] == base_checksum(prepared / "tiny-base")
    assert manifest["made_from"]["warm_start"]["behavior"]["num_chains"] == 32


def test_a_warm_start_killed_anywhere_is_finished_by_the_same_command(config, monkeypatch):
    """While it clones, and when it has cloned and not yet copied; other settings are refused."""
    config, interrupted = replace(config, warm_start=BRIEF), Mock(side_effect=KeyboardInterrupt)
    actor = Path(config.folder) / "tiny-actor"
    for place, name in ((train_bc, "main"), (shutil, "copytree")):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(place, name, interrupted)
            main(config)
    assert not (actor / "manifest.json").exists()
    main(config)
    weights = (actor / "model.safetensors").read_bytes()
    shutil.rmtree(actor)
    monkeypatch.setattr("lactchain.trainers.base.train", interrupted)  # it is not cloned again
    main(config)
    assert (actor / "model.safetensors").read_bytes() == weights
    other = replace(BRIEF, behavior=BehaviorConfig(num_chains=48))
    refused = {"base: .*seed": {"seed": 1}, "actor: .*num_chains": {"warm_start": other}}
    for words, changes in refused.items():
        with pytest.raises(ConfigError, match=words):
            main(replace(config, **changes))


def test_the_texts_of_an_environment_hold_all_that_it_says():
    env = make_language_env(EnvironmentConfig())
    texts = list(random_play_texts(env, num_episodes=20))
    for said in ("You bumped into", "not a legal chain", "facing left", '["turn left'):
        assert any(said in text for text in texts)
    assert texts == list(random_play_texts(env, num_episodes=20))
    assert len({text for text in texts if text.startswith("[")}) > 50


def test_without_network_the_command_and_the_licence_are_named(tmp_path):
    with pytest.raises(DataError) as error:
        main(PrepareWeightsConfig(folder=str(tmp_path), download=[MISTRAL]))
    assert f"https://huggingface.co/{MISTRAL}" in str(error.value)
    command = f"run: lactchain prepare_weights --download '[{MISTRAL}]'"
    assert str(error.value).endswith(command)


@pytest.mark.parametrize(("error_class", "says"), [
    (GatedRepoError, "accept its licence"), (RepositoryNotFoundError, "no such"),
])  # fmt: skip
def test_a_model_without_access_is_explained(tmp_path, monkeypatch, error_class, says):
    refuse = Mock(side_effect=error_class.__new__(error_class))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(DataError, match=f"{MISTRAL}.*{says}.*hf auth login"):
        download(MISTRAL, tmp_path)


def test_a_half_finished_download_does_not_count(tmp_path, monkeypatch):
    """Without a network the hub's client returns any folder that is not empty."""
    folder = tmp_path / "some" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "mistral"}))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, local_dir, **__: local_dir)
    with pytest.raises(DataError, match="model.safetensors"):
        main(PrepareWeightsConfig(folder=str(tmp_path), download=["some/model"]))
    assert not (folder / "manifest.json").exists()


def test_a_downloaded_model_is_found_by_its_hub_id(prepared, tmp_path, monkeypatch):
    def fetch(model, *, local_dir, allow_patterns, ignore_patterns):
        assert "*.safetensors" in allow_patterns and "*.bin" not in allow_patterns
        assert "consolidated*" in ignore_patterns
        shutil.copytree(prepared / "tiny-actor", local_dir)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    monkeypatch.setattr("lactchain.models.weights.WEIGHTS_FOLDER", tmp_path)
    main(PrepareWeightsConfig(folder=str(tmp_path), download=["some/model"]))
    assert resolve_weights("some/model") == tmp_path / "some/model"
    load_actor(ActorConfig(model="some/model"))
