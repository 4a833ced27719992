"""Frozen models on one base have its matrices in memory once, and compute what each would alone."""

import gc
import shutil
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch
from script_setups import LORA
from test_loading import IDS
from training_setups import nudge

from lactchain import ActorConfig, CriticConfig, EmbeddingCritic
from lactchain.models import runtime
from lactchain.models.adapters import merged, save_adapter
from lactchain.models.loading import load_actor
from lactchain.models.weights import check_weights


@pytest.fixture(params=["float32", "bfloat16"])
def config(request, weights, tmp_path) -> ActorConfig:
    """An actor that is an adapter; beside it lies a critic on the same base."""
    copy = shutil.copytree(weights / "actor", tmp_path / "base")  # which no other test has loaded
    base = {"model": str(copy), "lora": LORA, "dtype": request.param}
    model, _ = load_actor(ActorConfig(**base), trainable=True)
    critic = EmbeddingCritic.from_config(CriticConfig(**base), trainable=True)
    for trained in (model, critic):
        nudge(trained, 0.1)
    critic.set_head(torch.linspace(-1, 1, critic.base.config.hidden_size), 0.5)
    save_adapter(model, tmp_path / "actor")
    critic.save(tmp_path / "critic")
    return replace(ActorConfig(**base), adapter=str(tmp_path / "actor"), lora=None)


@pytest.fixture
def loads(config, tmp_path):
    return {
        "actor": lambda **how: load_actor(config, **how)[0],
        "critic": lambda **how: EmbeddingCritic.load(tmp_path / "critic", **how).trunk,
    }


def places(model) -> set[int]:
    trunk = model.get_base_model().base_model
    return {p.data_ptr() for n, p in trunk.named_parameters() if p.dim() > 1 and "lora" not in n}


def hidden(model) -> torch.Tensor:
    return model.get_base_model().base_model(input_ids=IDS).last_hidden_state


@pytest.mark.parametrize("order", [("actor", "critic"), ("critic", "actor")])
def test_two_have_one_base_until_both_are_gone_and_compute_as_alone(config, loads, order):
    alone = {name: hidden(load(trainable=True).eval()) for name, load in loads.items()}
    models = {name: loads[name]() for name in order}
    assert places(models["actor"]) == places(models["critic"])
    assert not torch.equal(alone["actor"], alone["critic"])
    assert all(torch.equal(hidden(model), alone[name]) for name, model in models.items())
    files = sorted(set(check_weights(Path(config.model)).values()))
    held = runtime.held(files, models["actor"].dtype)
    for name in order:
        assert {p.data_ptr() for p in held.values()} == places(models.pop(name))
        gc.collect()
    assert not held


def test_what_is_trained_shares_nothing(loads):
    models = [load(trainable=on) for load in loads.values() for on in (True, False, True)]
    assert len(set(chain(*map(places, models)))) == 5 * len(places(models[0]))


def test_what_is_merged_leaves_the_base_of_others_as_it_is(loads):
    critic, actor = loads["critic"](), loads["actor"]()
    before = hidden(critic).clone(), actor(IDS).logits.clone()
    whole = merged(actor)
    assert (whole is actor) == (actor.dtype == torch.bfloat16)
    assert torch.equal(hidden(critic), before[0])
    torch.testing.assert_close(whole(IDS).logits, before[1])
