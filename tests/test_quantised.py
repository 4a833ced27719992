"""Base models in 4 and 8 bits, rehearsed on a CPU: they answer, adapters on them learn."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import training_setups
from safetensors.torch import load_file
from script_setups import LORA, TRAINING, build_weights, config_of, run_here

from lactchain import ActorConfig, EmbeddingCritic
from lactchain.functional.tokens import token_logprobs
from lactchain.models.adapters import is_quantised
from lactchain.models.loading import load_actor
from lactchain_extras.memory import on_meta, weight_bytes

BITS = ("4bit", "8bit")
SHAPE = replace(training_setups.SHAPE, hidden_size=64, intermediate_size=128)
IDS = torch.arange(3, 63).view(2, 30)
FEW = replace(TRAINING, max_steps=2, extra={"warmup_steps": 0})


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    return build_weights(tmp_path_factory.mktemp("weights"), SHAPE)


def config(weights: Path, bits: str) -> ActorConfig:
    values = {"actor.dtype": bits, "actor.lora": LORA}
    return config_of("train_simpo", weights, weights / "none", values).actor


@pytest.mark.parametrize("bits", BITS)
def test_fewer_bits_give_nearly_the_same_completions_in_the_memory_that_is_estimated(bits, weights):
    actor = config(weights, bits)
    with torch.inference_mode():
        exact = load_actor(ActorConfig(str(weights / "actor")))[0](IDS).logits.log_softmax(-1)
        model, _ = load_actor(actor)
        found = model(IDS).logits.float().log_softmax(-1)
    assert is_quantised(model) and 0 < (exact.exp() * (exact - found)).sum(-1).mean() < 0.01
    whole = sum(p.nbytes for p in model.parameters())
    assert weight_bytes(on_meta(actor, learns=False), actor.bits) == pytest.approx(whole, rel=0.05)


@pytest.mark.parametrize("bits", BITS)
def test_an_adapter_learns_on_fewer_bits(bits, weights):
    torch.manual_seed(0)
    model, _ = load_actor(config(weights, bits), trainable=True)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    optimizer = torch.optim.Adam(trained.values(), lr=5e-2)
    with torch.inference_mode():
        model.eval()(IDS)  # what was looked at learns all the same
    model.train()
    losses = []
    for _ in range(20):
        loss = -token_logprobs(model(IDS).logits[:, :-1], IDS[:, 1:]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05


@pytest.mark.parametrize("bits", [BITS[0], pytest.param(BITS[1], marks=pytest.mark.slow)])
def test_a_round_runs_on_models_of_fewer_bits(bits, weights, tmp_path):
    actor = replace(config(weights, bits), decoding="constrained")
    values = {"critic.dtype": bits, "critic.lora": LORA, "compare_with_exact": False}
    values |= {"actor": actor, "training": FEW}
    run_here("train_critic", config_of("train_critic", weights, tmp_path / "critic", values))
    folder = str(tmp_path / "critic/critic")
    assert EmbeddingCritic.load(folder).values(["1 1 up 0 0", "0 1 left 0 0"]).std() > 0

    values = {"critic": folder, "actor": actor, "training": FEW}
    run_here("train_simpo", config_of("train_simpo", weights, tmp_path / "simpo", values))
    adapter = str(tmp_path / "simpo/actor")
    trained, _ = load_actor(replace(actor, adapter=adapter))
    base, _ = load_actor(replace(actor, lora=None))
    with torch.inference_mode():
        assert not torch.equal(trained(IDS).logits, base(IDS).logits)

    judged = replace(actor, adapter=adapter, temperature=0.0)
    stage = config_of("evaluate", weights, tmp_path / "evaluation", actor=judged)
    summary = run_here("evaluate", stage)
    assert summary["invalid_rate"] == 0 < summary["sampled_invalid_rate"] <= 1


def test_cloning_trains_and_saves_its_adapter_in_float32(weights, tmp_path):
    changes = {"actor": config(weights, BITS[0]), "training": FEW}
    run_here("train_bc", config_of("train_bc", weights, tmp_path / "bc", changes))
    saved = load_file(tmp_path / "bc/actor/adapter_model.safetensors")
    assert {weight.dtype for weight in saved.values()} == {torch.float32}
    learnt = torch.cat([w.flatten() for name, w in saved.items() if "lora_B" in name])
    assert not torch.equal(learnt, learnt.bfloat16().float())
