"""An exported actor or critic is the trained one, in one folder that needs no adapters."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import random_models
import torch
import transformers
from safetensors.torch import load_file
from test_critic_model import LORA, TEXTS, trained
from training_setups import nudge
from transformers import AutoTokenizer

from lactchain.config.settings import (
    ActorConfig,
    CriticConfig,
    LoraSettings,
    PlayerConfig,
    RunConfig,
)
from lactchain.errors import ConfigError, DataError, NonFiniteError
from lactchain.models.adapters import merged, save_adapter
from lactchain.models.loading import load_actor
from lactchain.models.runtime import quiet
from lactchain.storage.manifests import verify_manifest
from lactchain_extras.foreign_critics import RewardModel
from lactchain_extras.stages import export
from lactchain_extras.stages.export import ExportConfig
from lactchain_extras.weights.critic_export import export_critic
from lactchain_extras.weights.merging import export_actor


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    random_models.build_actor(folder, hidden_size=32, num_layers=2, max_shard_size=1_500_000)
    return folder


def test_an_export_whose_model_is_gone_is_no_finished_one(weights, tmp_path):
    config = ExportConfig(RunConfig(str(tmp_path / "run")), PlayerConfig(str(weights / "actor")))
    export.main(config)
    shutil.rmtree(tmp_path / "run/model")
    with pytest.raises(DataError, match="is gone; remove"):
        export.main(config)


@pytest.fixture(scope="module")
def adapter(base, tmp_path_factory) -> Path:
    """An adapter whose update is of the size that a short training gives it."""
    folder = tmp_path_factory.mktemp("adapter")
    config = ActorConfig(str(base), lora=LoraSettings(r=4), dtype="float32")
    model, _ = load_actor(config, trainable=True)
    nudge(model, 1e-3)
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
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert model.dtype == torch.float32
    trained, tokenizer = load_actor(config)
    plain, _ = load_actor(ActorConfig(str(base), dtype="float32"))
    # Of unlikely tokens, at -13, the last digits of float32 alone are some 1e-6 of that.
    torch.testing.assert_close(logprobs(model), logprobs(trained), atol=1e-4, rtol=1e-5)
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
        read = transformers.AutoModelForCausalLM.from_pretrained
        model, plain = read(tmp_path / "run/model", dtype="auto"), read(base, dtype="float32")
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


def test_an_export_rounds_no_model_beside_it_and_only_rounds_a_plain_actor(base, adapter, tmp_path):
    beside, _ = load_actor(ActorConfig(str(base), dtype="float32"))
    before = logprobs(beside)
    actor = ActorConfig(str(base))
    for name, config in enumerate((replace(actor, adapter=str(adapter)), actor)):
        facts = export_actor(config, tmp_path / str(name), "bfloat16")
        assert {weight.dtype for weight in beside.parameters()} == {torch.float32}
        assert torch.equal(logprobs(beside), before)
    assert facts.keys() == {"num_parameters", "dtype"}
    models = [load_actor(ActorConfig(str(folder)))[0] for folder in (base, tmp_path / "1")]
    assert torch.equal(*map(logprobs, models))


def test_weights_too_large_for_the_type_are_refused(tmp_path):
    random_models.build_actor(tmp_path / "base", hidden_size=32, num_layers=1)
    file = next((tmp_path / "base").glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-2:] = b"\x00\x48"  # the last weight becomes 131072
    file.write_bytes(content)
    with pytest.raises(NonFiniteError, match="too large for torch.float16"):
        export_actor(ActorConfig(str(tmp_path / "base")), tmp_path / "model", "float16")


def saved(weights, folder, **kwargs):
    """A critic whose values have a scale and an offset, and its folder."""
    critic = trained(CriticConfig(str(weights / "encoder"), **kwargs), value_scale=3.0)
    critic.value_offset = -7.5
    critic.save(folder)
    return critic


def batch_of(folder):
    return AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")


@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "adapter"])
def test_a_reward_model_of_one_label_has_the_values_of_the_critic(weights, tmp_path, lora):
    critic = saved(weights, tmp_path / "critic", lora=lora)
    run, critic_folder = RunConfig(str(tmp_path / "run")), str(tmp_path / "critic")
    summary = export.main(ExportConfig(run, critic=critic_folder))
    folder = tmp_path / "run/model"
    with quiet():
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert model.config.num_labels == 1
    assert summary["value_offset"] == model.config.value_offset == -7.5
    with torch.inference_mode():
        scores = model(**batch_of(folder)).logits[:, 0]
    expected = torch.from_numpy(critic.values(TEXTS))
    assert expected.std() > 0.1
    torch.testing.assert_close(scores - 7.5, expected, atol=1e-5, rtol=1e-5)
    judged = RewardModel(str(folder), 0.9).values(TEXTS)
    torch.testing.assert_close(torch.from_numpy(judged).float(), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(DataError, match="expected a reward model, got a critic; leave reward: out"):
        RewardModel(critic_folder, 0.9)
    assert verify_manifest(folder)["critic"] == critic_folder


def test_a_reward_model_is_read_and_discounted_as_the_critic_was(weights, tmp_path):
    meaning = {"instruction": "Where is the goal?", "max_length": 12, "gamma": 0.7}
    critic = saved(weights, tmp_path / "critic", discount_per="chain", **meaning)
    export_critic(tmp_path / "critic", tmp_path / "model", "sequence_classifier")
    judged = RewardModel(str(tmp_path / "model"), 0.9)
    assert (judged.gamma, judged.discount_per) == (0.7, "chain")
    texts = (*TEXTS, "far " * 30 + TEXTS[0], "</s><s>[INST] 9 \ud800")
    np.testing.assert_allclose(judged.values(texts), critic.values(texts), atol=1e-4)
    told = json.loads((tmp_path / "model/config.json").read_text())
    told["lactchain_critic"]["instruction"] = 5
    (tmp_path / "model/config.json").write_text(json.dumps(told))
    with pytest.raises(DataError, match="lactchain_critic: expected what export writes"):
        RewardModel(str(tmp_path / "model"), 0.9)


@pytest.mark.parametrize(("form", "mode", "message"), [
    ("sequence_classifier", "action_value", "expected a critic of states, got one of chains"),
    ("token_classifier", "value", "expected a label for a text, got one for each token"),
])  # fmt: skip
def test_what_says_no_value_of_a_state_is_no_reward_model(weights, tmp_path, form, mode, message):
    saved(weights, tmp_path / "critic", mode=mode)
    export_critic(tmp_path / "critic", tmp_path / "model", form)
    with pytest.raises(DataError, match=message):
        RewardModel(str(tmp_path / "model"), 0.9)


@pytest.mark.parametrize("form", ["sequence_classifier", "sentence_transformer"])
def test_a_critic_that_computes_no_numbers_is_not_exported(weights, tmp_path, form):
    critic = saved(weights, tmp_path / "critic")
    critic.value_offset = 1e299  # more than a float32 can be
    critic.save(tmp_path / "critic")
    with pytest.raises(NonFiniteError, match="the critic computes NaN or infinities"):
        export_critic(tmp_path / "critic", tmp_path / "model", form)


def test_a_value_model_has_the_value_of_every_beginning_of_a_text(weights, tmp_path):
    critic = saved(weights, tmp_path / "critic")
    export_critic(tmp_path / "critic", tmp_path / "model", "token_classifier")
    with quiet():
        kind = transformers.AutoModelForTokenClassification
        model = kind.from_pretrained(tmp_path / "model").eval()
    batch = batch_of(tmp_path / "model")
    with torch.inference_mode():
        values = model(**batch).logits[..., 0]
        for length in range(1, batch["input_ids"].shape[1] + 1):
            whole = batch["attention_mask"][:, :length].sum(dim=1) == length
            part = {name: column[whole, :length] for name, column in batch.items()}
            expected = critic(part["input_ids"], part["attention_mask"])
            torch.testing.assert_close(values[whole, length - 1], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_sentence_transformer_embeds_a_text_as_its_value(weights, tmp_path, pooling):
    """By the rules of its layout: encoder, pooling, and a product with a bias."""
    critic = saved(weights, tmp_path / "critic", pooling=pooling)
    export_critic(tmp_path / "critic", folder := tmp_path / "model", "sentence_transformer")
    parts = json.loads((folder / "modules.json").read_text())
    assert [part["path"] for part in parts] == ["", "1_Pooling", "2_Dense"]
    flags = json.loads((folder / "1_Pooling/config.json").read_text())
    assert flags["pooling_mode_mean_tokens"] == (pooling == "mean")
    with quiet():
        encoder = transformers.AutoModel.from_pretrained(folder).eval()
    batch = batch_of(folder)
    with torch.inference_mode():
        hidden = encoder(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
    last = hidden[torch.arange(len(TEXTS)), mask.sum(dim=1)[:, 0] - 1]
    dense = load_file(folder / "2_Dense/model.safetensors")
    embedding = mean if pooling == "mean" else last
    got = embedding @ dense["linear.weight"].T + dense["linear.bias"]
    expected = torch.from_numpy(critic.values(TEXTS))
    torch.testing.assert_close(got[:, 0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", ["sequence_classifier", "token_classifier"])
def test_what_a_classifier_would_read_otherwise_is_refused(weights, tmp_path, form):
    saved(weights, tmp_path / "critic", pooling="mean")
    with pytest.raises(ConfigError, match="expected sentence_transformer"):
        export_critic(tmp_path / "critic", tmp_path / "model", form)
    assert not list((tmp_path / "model").glob("*.safetensors"))


def test_no_text_ends_in_what_a_reward_model_takes_for_padding(weights, tmp_path):
    critic = saved(weights, tmp_path / "critic")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "critic")
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(tmp_path / "critic")
    assert tokenizer.unk_token is None
    with pytest.raises(ConfigError, match="a pad_token of its own"):
        export_critic(tmp_path / "critic", tmp_path / "model", "sequence_classifier")
    assert critic.values(TEXTS).shape == (4,)
