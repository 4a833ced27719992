"""The critic: values that no padding and no neighbour change, gradients where they belong."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_tiny_models import SMALL

from lactchain import ConfigError, CriticConfig, DataError, EmbeddingCritic, LoraSettings
from lactchain.functional.tokens import pool
from lactchain.models.headed import at_stored_precision
from lactchain.models.weights import ADAPTER_RECORD

TEXTS = ["2 3 up 1 0", "0 0 left 3 3", "You are at (1, 2), facing up. The goal is far away.", "9"]
LORA = LoraSettings(r=2, alpha=4)


@pytest.fixture
def config(small):
    return lambda **kwargs: CriticConfig(model=str(small / "encoder"), **kwargs)


def trained(config, seed: int = 0, **kwargs) -> EmbeddingCritic:
    """As after some training: no trainable weight is zero."""
    torch.manual_seed(seed)
    critic = EmbeddingCritic.from_config(config, trainable=True, **kwargs)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in critic.parameters():
            if weight.requires_grad:
                weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return critic


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_padding_and_neighbours_do_not_change_values(config, pooling):
    critic = trained(config(pooling=pooling, lora=LORA))
    together = critic.values(TEXTS)
    alone = np.concatenate([critic.values([text]) for text in TEXTS])
    in_pairs = critic.values(TEXTS, batch_size=2)
    assert np.unique(together.round(4)).size == 4
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(together, in_pairs, atol=1e-5)


def test_equal_texts_are_computed_once_and_order_is_kept(config, monkeypatch):
    critic = trained(config())
    rows, forward = [], critic.forward
    count = lambda **batch: rows.append(len(batch["input_ids"])) or forward(**batch)  # noqa: E731
    monkeypatch.setattr(critic, "forward", count)
    values = critic.values([*TEXTS, *reversed(TEXTS)])
    assert sum(rows) == 4
    assert np.array_equal(values[:4], values[4:][::-1])


def test_the_last_real_token_is_pooled_on_either_side_of_the_padding():
    hidden = torch.arange(12.0).view(2, 3, 2)
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    assert pool(hidden, mask, "last").tolist() == [[2.0, 3.0], [10.0, 11.0]]
    assert pool(hidden, mask, "mean").tolist() == [[1.0, 2.0], [9.0, 10.0]]


def test_gradients_flow_to_adapter_and_head_only(config):
    critic = trained(config(lora=LORA))
    critic(**critic.collate(critic.tokenize(TEXTS))).square().sum().backward()
    with_gradient = {n for n, w in critic.named_parameters() if w.grad is not None}
    assert with_gradient == {n for n, w in critic.named_parameters() if w.requires_grad}
    assert all("lora_" in n or "score.modules_to_save" in n for n in with_gradient)
    assert any("score.modules_to_save" in n for n in with_gradient)
    assert sum("lora_B" in n for n in with_gradient) == 7 * SMALL.num_layers
    assert all(w.grad.abs().sum() > 0 for w in critic.parameters() if w.requires_grad)


@pytest.mark.parametrize("lora", [LORA, None], ids=["adapter", "all weights"])
def test_a_saved_critic_comes_back_bit_for_bit_and_training_goes_on(config, tmp_path, lora):
    critic = trained(config(lora=lora, gamma=0.9, discount_per="chain"), value_scale=10.0)
    critic.save(tmp_path)
    assert (tmp_path / "model.safetensors").exists() == (lora is None)  # else the base is left out
    loaded = EmbeddingCritic.load(tmp_path)
    assert np.array_equal(critic.values(TEXTS), loaded.values(TEXTS))
    assert (loaded.settings.gamma, loaded.settings.discount_per) == (0.9, "chain")
    assert loaded.value_scale == 10.0 and not loaded.training
    assert not any(weight.requires_grad for weight in loaded.parameters())
    again = EmbeddingCritic.from_config(loaded.settings, trainable=True)
    models = (model.named_parameters() for model in (again, critic))
    trainable, expected = ({n: w for n, w in model if w.requires_grad} for model in models)
    assert trainable.keys() == expected.keys()
    assert all(torch.equal(trainable[n], expected[n]) for n in expected)
    fresh = trained(config(lora=lora), seed=5, value_scale=10.0)
    fresh.load_weights(tmp_path)
    assert np.array_equal(fresh.values(TEXTS), critic.values(TEXTS))


def test_the_scale_multiplies_values(config):
    one, hundred = (trained(config(), value_scale=scale) for scale in (1.0, 100.0))
    np.testing.assert_allclose(100 * one.values(TEXTS), hundred.values(TEXTS), rtol=1e-5)
    with pytest.raises(ValueError, match="value_scale"):
        trained(config(), value_scale=0.0)


def test_a_critic_of_chains_reads_observation_and_chain_and_another_only_the_first(config):
    critic, plain = trained(config(mode="action_value")), trained(config())
    chains = ['["move forward"]', '["turn left"]']
    q = critic.values([TEXTS[0]] * 2, chains)
    assert q[0] != q[1]
    assert np.array_equal(q, plain.values([f"{TEXTS[0]}\n{chain}" for chain in chains]))
    with pytest.raises(ValueError, match="mode value was given some"):
        plain.values(TEXTS, TEXTS)
    with pytest.raises(ValueError, match="mode action_value was given none"):
        critic.values(TEXTS)


def test_special_tokens_are_plain_text_and_what_is_too_long_loses_its_beginning(config):
    critic = EmbeddingCritic.from_config(config())
    rows = critic.tokenize(["</s>[INST]<pad>", "\ud800", ""])
    assert not set(rows[0]) & set(critic.tokenizer.all_special_ids)
    assert all(rows)
    assert np.isfinite(critic.values(["", "\ud800"])).all()
    assert critic.values([]).shape == (0,)
    short = EmbeddingCritic.from_config(config(max_length=3))
    assert short.tokenize([TEXTS[0]]) == [critic.tokenize([TEXTS[0]])[0][-3:]]


@pytest.mark.parametrize("settings", [{"lora": LORA}, {"lora": None}, {"frozen": True}], ids=str)
@pytest.mark.parametrize("trainable", [True, False])
def test_a_new_head_is_in_float32_whatever_the_trunk_is_in(config, settings, trainable):
    critic = EmbeddingCritic.from_config(config(dtype="bfloat16", **settings), trainable=trainable)
    heads = [p for name, p in critic.named_parameters() if "score" in name]
    assert {p.dtype for p in heads} == {torch.float32}
    assert critic.base.dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = critic(**critic.collate(critic.tokenize(TEXTS)))
    assert values.dtype == torch.float32


@pytest.mark.parametrize("lora", [LORA, None], ids=["adapter", "all weights"])
def test_a_critic_remembers_its_precision(config, tmp_path, lora):
    saved = trained(config(lora=lora, dtype="bfloat16"))
    saved.save(tmp_path)
    again = config(checkpoint=str(tmp_path), lora=lora)
    for critic in (EmbeddingCritic.load(tmp_path), EmbeddingCritic.from_config(again)):
        assert critic.base.dtype == torch.bfloat16
        assert critic.base.score.weight.dtype == torch.float32
        assert np.array_equal(critic.values(TEXTS), saved.values(TEXTS))
    wide = EmbeddingCritic.from_config(replace(again, dtype="float32"))
    assert wide.base.dtype == torch.float32
    np.testing.assert_allclose(wide.values(TEXTS), critic.values(TEXTS), rtol=0.1, atol=0.1)


def test_a_quantised_critic_is_loaded_quantised_and_no_other(config, tmp_path):
    stored = {"dtype": "bfloat16", "load_in_4bit": True, "load_in_8bit": False}
    assert at_stored_precision(config(), stored) == config(dtype="4bit")
    trained(config(lora=LORA)).save(tmp_path)
    with pytest.raises(ConfigError, match=r"critic.dtype: expected 'float32', as .* got '4bit'"):
        EmbeddingCritic.from_config(config(checkpoint=str(tmp_path), dtype="4bit"))


def test_values_of_another_meaning_or_of_another_encoder_are_refused(config, small, tmp_path):
    trained(config(gamma=0.9, lora=LORA)).save(tmp_path)
    with pytest.raises(ConfigError, match=r"critic.gamma: expected 0.9"):
        EmbeddingCritic.from_config(config(gamma=0.99, checkpoint=str(tmp_path)))
    file = tmp_path / "critic_config.json"
    stored = json.loads(file.read_text()) | {"model": str(small / "other-encoder")}
    file.write_text(json.dumps(stored))
    with pytest.raises(DataError, match="another base model"):
        EmbeddingCritic.load(tmp_path)


@pytest.mark.parametrize("lora", [LORA, None], ids=["adapter", "all weights"])
def test_missing_and_cut_files_are_named(config, tmp_path, lora):
    trained(config(lora=lora)).save(tmp_path)
    optional = {"README.md", "tokenizer_config.json", "chat_template.jinja", ADAPTER_RECORD}
    for name in sorted({path.name for path in tmp_path.iterdir()} - optional):
        file = tmp_path / name
        content = file.read_bytes()
        for damage in (Path.unlink, lambda f, c=content: f.write_bytes(c[: len(c) // 2])):
            damage(file)
            with pytest.raises(DataError, match=str(tmp_path)):
                EmbeddingCritic.load(tmp_path)
        file.write_bytes(content)
    EmbeddingCritic.load(tmp_path)
