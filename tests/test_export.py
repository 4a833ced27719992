"""An exported actor is the trained one, in one folder that knows nothing of adapters."""

import json
import shutil
from pathlib import Path

import pytest
import random_models
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lactchain.config.settings import ActorConfig, LoraSettings, RunConfig
from lactchain.errors import DataError, NonFiniteError
from lactchain.models.adapters import merged, save_adapter
from lactchain.models.loading import load_actor
from lactchain.models.runtime import quiet
from lactchain.storage.manifests import verify_manifest
from lactchain_extras.stages import export
from lactchain_extras.stages.export import ExportConfig
from lactchain_extras.weights.merging import export_actor


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    random_models.build_actor(folder, hidden_size=32, num_layers=2, max_shard_size=1_500_000)
    return folder


@pytest.fixture(scope="module")
def adapter(base, tmp_path_factory) -> Path:
    """An adapter whose update is of the size that a short training gives it."""
    folder = tmp_path_factory.mktemp("adapter")
    config = ActorConfig(str(base), lora=LoraSettings(r=4), dtype="float32")
    model, _ = load_actor(config, trainable=True)
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=1e-3)
    save_adapter(model, folder)
    return folder


def logprobs(model) -> torch.Tensor:
    ids = torch.arange(3, 103).view(2, 50)
    with torch.inference_mode():
        return model(ids).logits.log_softmax(-1)


def test_in_float32_it_is_the_trained_model(base, adapter, tmp_path):
    config = ActorConfig(str(base), adapter=str(adapter), dtype="float32")
    facts = export_actor(config, tmp_path / "model", "float32")
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert model.dtype == torch.float32
    trained, tokenizer = load_actor(config)
    plain, _ = load_actor(ActorConfig(str(base), dtype="float32"))
    # Of unlikely tokens, at -13, the last digits of float32 alone are 1e-6 of that.
    torch.testing.assert_close(logprobs(model), logprobs(trained), atol=1e-5, rtol=1e-6)
    assert (logprobs(model) - logprobs(plain)).abs().max() > 1e-3
    assert facts["num_parameters"] == sum(p.numel() for p in model.parameters())
    assert facts["share_of_update_kept"] == pytest.approx(1, abs=1e-3)
    assert verify_manifest(tmp_path / "model")["adapter"] == str(adapter)
    exported = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert exported.chat_template == tokenizer.chat_template
    assert exported.get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_the_share_that_a_type_keeps_is_measured(dtype, base, adapter, tmp_path):
    actor = ActorConfig(str(base), adapter=str(adapter))
    config = ExportConfig(RunConfig(str(tmp_path / "run")), actor, dtype)
    summary = export.main(config)
    share = summary["share_of_update_kept"]
    assert summary["least_share_kept"] <= share
    assert summary["least_kept_in"].startswith("model.layers.")
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "run/model", dtype="auto")
        plain = AutoModelForCausalLM.from_pretrained(base, dtype="float32")
    assert model.dtype == getattr(torch, dtype)
    trained, _ = load_actor(ActorConfig(str(base), adapter=str(adapter), dtype="float32"))
    whole = merged(trained).state_dict()
    taken = total = 0.0
    for name, weight in plain.named_parameters():
        update = whole[name] - weight
        taken += ((model.state_dict()[name].float() - weight) * update).sum().item()
        total += update.square().sum().item()
    assert share == pytest.approx(taken / total, rel=1e-3)
    assert (0.9 if dtype == "float16" else 0.2) < share < 1.1
    assert export.main(config) == summary


def test_an_actor_without_an_adapter_is_rounded_only(base, tmp_path):
    facts = export_actor(ActorConfig(str(base)), tmp_path / "model", "bfloat16")
    assert facts.keys() == {"num_parameters", "dtype"}
    models = [load_actor(ActorConfig(str(f)))[0] for f in (base, tmp_path / "model")]
    assert torch.equal(*map(logprobs, models))


def test_what_cannot_be_merged_is_refused(base, adapter, tmp_path):
    other = shutil.copytree(adapter, tmp_path / "other")
    settings = json.loads((other / "adapter_config.json").read_text())
    (other / "adapter_config.json").write_text(json.dumps(settings | {"use_dora": True}))
    for folder, words in ((other, "sha256"), (tmp_path / "none", "no such folder")):
        with pytest.raises(DataError, match=words):
            export_actor(ActorConfig(str(base), adapter=str(folder)), tmp_path / "a", "bfloat16")


def test_weights_too_large_for_the_type_are_refused(tmp_path):
    random_models.build_actor(tmp_path / "base", hidden_size=32, num_layers=1)
    file = next((tmp_path / "base").glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-2:] = b"\x00\x48"  # the last weight becomes 131072
    file.write_bytes(content)
    with pytest.raises(NonFiniteError, match="too large for torch.float16"):
        export_actor(ActorConfig(str(tmp_path / "base")), tmp_path / "model", "float16")
