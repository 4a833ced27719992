"""Models, tokenizers and adapters: loaded whole and belonging together, or refused by name."""

import json
import pickle
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lactchain import ActorConfig, ConfigError, CriticConfig, DataError, LoraSettings, parse
from lactchain.config.yaml_files import with_files
from lactchain.models.loading import load_actor, load_encoder
from lactchain.models.runtime import device
from lactchain.storage.manifests import write_manifest
from lactchain_extras.stages.prepare_weights import PrepareWeightsConfig

IDS = torch.tensor([[5, 60, 280, 7]])
LORA = LoraSettings(r=2, alpha=4)


def refused(actor, message) -> str:
    config = actor if isinstance(actor, ActorConfig) else ActorConfig(model=str(actor))
    with pytest.raises(DataError, match=message) as error:
        load_actor(config)
    return str(error.value)


def edit_json(file: Path, **changes) -> None:
    content = json.loads(file.read_text())
    kept = {key: value for key, value in content.items() if key not in changes}
    file.write_text(json.dumps(kept | {k: v for k, v in changes.items() if v is not None}))


def test_an_actor_comes_frozen_or_trainable(config):
    model, tokenizer = load_actor(config)
    assert not model.training and not any(w.requires_grad for w in model.parameters())
    assert model.dtype == torch.float32 and tokenizer.padding_side == "left"
    assert load_actor(replace(config, dtype="bfloat16"))[0].dtype == torch.bfloat16
    model, _ = load_actor(config, trainable=True)
    assert model.training and all(w.requires_grad for w in model.parameters())
    model, _ = load_actor(replace(config, lora=LORA), trainable=True)
    assert {"lora_" in n for n, w in model.named_parameters() if w.requires_grad} == {True}


def command(message):
    """The config of the command that a message ends with."""
    line = message.rpartition("run: lactchain prepare_weights ")[2]
    return parse(PrepareWeightsConfig, with_files("prepare_weights", shlex.split(line)))


@pytest.mark.parametrize(("model", "made"), [
    *((f"weights/{name}",) * 2 for name in ("tiny-actor", "maze/tiny-actor", "smollm2")),
    *((model, "nobody/no-model") for model in ("weights/nobody/no-model", "nobody/no-model")),
    ("no such thing", None),
    ("/no/such/tiny-folder", None),
])  # fmt: skip
def test_missing_weights_name_the_command_that_makes_just_them(model, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where no weights were prepared
    message = refused(model, f"{model}: no such folder")
    if made is None:
        assert "correct its name or copy it here whole" in message
    elif made.startswith("weights"):
        config = command(message)
        names = [*config.packages, *(["tiny-actor"] if config.tiny else [])]
        assert made in [f"{config.folder}/{name}" for name in names]
    else:
        assert command(message).download == [made]


def test_a_missing_shard_is_named_with_what_mends_it(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("weights/nobody/sharded")
    model, tokenizer = load_actor(config)
    model.save_pretrained(folder, max_shard_size="60KB")
    tokenizer.save_pretrained(folder)
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    load_actor(ActorConfig(str(folder)))
    shards[1].unlink()
    message = refused(folder, f"{shards[1]}: expected a weight file.*none")
    assert command(message).download == ["nobody/sharded"]
    (folder / "model.safetensors.index.json").write_text("{}")
    refused(folder, r"index\.json: damaged \(it has no weight_map\); if the hub has it")


def cut(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def text(file: Path) -> None:
    file.write_text("<html>Access to this model is restricted</html>")


@pytest.mark.parametrize("damage", [Path.unlink, cut, text])
@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
)
def test_missing_and_damaged_files_are_named(actor, name, damage):
    damage(actor / name)
    refused(actor, f"{name}.*copy it here whole")


def test_a_tokenizer_is_not_parsed_before_its_checksum_is_verified(actor):
    write_manifest(actor, {})
    (actor / "tokenizer.json").write_text('{"added_tokens": 1}')
    refused(actor, r"tokenizer\.json: expected \d+ bytes, got 19")


def test_weights_that_do_not_fit_the_configuration_are_named(actor):
    file = actor / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    refused(actor, r"layers\.1\.mlp\.up_proj")
    edit_json(actor / "config.json", intermediate_size=64)
    refused(actor, "another shape")


@pytest.mark.parametrize("shard", ["model-00002.safetensors", "../secret.safetensors", "/etc/x"])
def test_an_index_must_list_files_of_its_folder(actor, shard):
    index = {"weight_map": {"model.embed_tokens.weight": shard}}
    (actor / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(actor, "expected a weight file")


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('a pickle was run')",)


def test_neither_code_of_a_model_nor_a_pickle_is_run(actor):
    (actor / "bomb.py").write_text("raise SystemExit('code of the model was run')")
    auto_map = {"AutoConfig": "bomb.Config", "AutoModelForCausalLM": "bomb.Model"}
    edit_json(actor / "config.json", auto_map=auto_map)
    load_actor(ActorConfig(model=str(actor)))
    edit_json(actor / "config.json", model_type="bomb")
    refused(actor, "a model_type that transformers knows, got 'bomb'; take another")
    (actor / "model.safetensors").unlink()
    (actor / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    edit_json(actor / "config.json", model_type="mistral")
    refused(actor, "model.safetensors")


def test_without_a_pad_token_another_takes_its_place(actor):
    file = actor / "tokenizer_config.json"
    edit_json(file, pad_token=None, unk_token="<pad>")
    model, tokenizer = load_actor(ActorConfig(model=str(actor)))
    assert tokenizer.pad_token == "<pad>"  # as Mistral-7B-Instruct-v0.3: unk is never produced
    edit_json(file, unk_token=None)
    model, tokenizer = load_actor(ActorConfig(model=str(actor)))
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == model.config.pad_token_id
    edit_json(file, eos_token=None)
    refused(actor, "pad token")


@pytest.mark.parametrize("name", ["bos_token", "eos_token", "pad_token"])
def test_a_special_token_that_the_model_does_not_have_is_refused(actor, name):
    """The tokenizer gives it a number behind the last; the embeddings would have no row for it."""
    edit_json(actor / "tokenizer_config.json", **{name: "<tad>"})
    refused(actor, f"{name} '<tad>' in tokenizer_config.json is none of")


def test_an_actor_needs_a_chat_template_and_an_encoder_does_not(actor, small, tmp_path):
    (actor / "chat_template.jinja").unlink()
    refused(actor, "chat template")
    encoder = shutil.copytree(small / "encoder", tmp_path / "encoder")
    (encoder / "chat_template.jinja").unlink()
    load_encoder(CriticConfig(model=str(encoder)))


@pytest.mark.parametrize("bits", ["4bit", "8bit"])
def test_quantisation_needs_bitsandbytes(config, bits, monkeypatch):
    monkeypatch.setattr("lactchain.models.loading.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'lactchain\[quantization\]'"):
        load_actor(replace(config, dtype=bits))


def test_the_device_is_that_of_the_process(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device() == torch.device("cuda", 1)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert device() == torch.device("cpu")
