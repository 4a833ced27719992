"""Tiny Mistrals grow without changing what they say; language actors evolve over their genes."""

from dataclasses import replace

import numpy as np
import pytest
import script_setups
import torch
from script_setups import LORA, PREFERENCES, SHAPE, TRAINING, build_weights, config_of, run_here
from transformers import GPT2Config, GPT2LMHeadModel, MistralForCausalLM

from lactchain.errors import ConfigError
from lactchain.genes import gene_values, genes
from lactchain.jobs import EvaluationConfig, TrainSimPOConfig
from lactchain.models.growth import add_layer, add_mlp_units, disturb, read_model, write_model
from lactchain.models.tiny import build_tiny_tokenizer, mistral_config
from lactchain.search.runs import read_lines, search
from lactchain.search.settings import (
    EvolutionConfig,
    LanguageConfig,
    MutationConfig,
    SearchConfig,
    SpaceConfig,
)
from lactchain.settings import ActorConfig, RunConfig

TOKENIZER = build_tiny_tokenizer(["a b c"] * 3)
GENES = ["training.learning_rate", "simpo.beta", "simpo.target_margin", "actor.lora.r"]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return MistralForCausalLM(mistral_config(SHAPE, TOKENIZER))


def logits(model, seed=0):
    torch.manual_seed(seed)
    ids = torch.randint(5, len(TOKENIZER), (3, 12))
    with torch.no_grad():
        return model(input_ids=ids).logits


def test_a_new_layer_leaves_every_logit_as_it_was(model):
    grown = add_layer(add_layer(model))
    assert grown.config.num_hidden_layers == SHAPE.num_layers + 2
    assert torch.equal(logits(grown), logits(model))
    cached = grown.generate(torch.tensor([[6, 7, 8]]), max_new_tokens=5, do_sample=False)
    plain = model.generate(torch.tensor([[6, 7, 8]]), max_new_tokens=5, do_sample=False)
    assert torch.equal(cached, plain)  # keys and values of the new layers are kept apart


def test_new_units_leave_the_logits_as_they_were(model):
    grown = add_mlp_units(model, 16, seed=3)
    assert grown.config.intermediate_size == SHAPE.intermediate_size + 16
    torch.testing.assert_close(logits(grown), logits(model), rtol=1e-6, atol=1e-6)
    again = add_mlp_units(model, 16, seed=3).state_dict()
    assert all(torch.equal(again[name], w) for name, w in grown.state_dict().items())


def test_growth_leaves_its_model_alone_and_learns_in_what_is_new(model):
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    grown = add_mlp_units(add_layer(model), 16)
    optimizer = torch.optim.SGD(grown.parameters(), lr=0.1)
    start = {name: weight.clone() for name, weight in grown.state_dict().items()}
    for _ in range(2):
        ids = torch.randint(5, len(TOKENIZER), (3, 12))
        grown(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    last = f"model.layers.{SHAPE.num_layers}."
    for name, weight in grown.state_dict().items():
        if name.startswith(last) and "layernorm" not in name:
            assert not torch.equal(weight, start[name]), name
    assert all(torch.equal(weight, before[n]) for n, weight in model.state_dict().items())


def test_a_model_of_another_build_is_refused():
    other = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16))
    for grow in (add_layer, lambda model: add_mlp_units(model, 4)):
        with pytest.raises(ConfigError, match="built like Llama to grow, got GPT2LMHeadModel"):
            grow(other)


def test_noise_is_relative_to_each_weight(model):
    noisy = disturb(model, 0.1, seed=1).state_dict()
    for name, weight in model.state_dict().items():
        change = (noisy[name] - weight).square().mean().sqrt() / weight.square().mean().sqrt()
        assert 0.05 < change < 0.2, name


def test_a_grown_model_is_read_as_any_other(tmp_path):
    weights = build_weights(tmp_path)
    actor = ActorConfig(str(weights / "actor"), dtype="float32")
    grown = add_layer(read_model(actor))
    write_model(grown, actor, tmp_path / "grown")
    again = read_model(replace(actor, model=str(tmp_path / "grown")))
    assert torch.equal(logits(again), logits(grown))


def test_the_trainers_declare_their_genes():
    assert set(genes(TrainSimPOConfig)) == set(GENES)
    without_adapter = gene_values(TrainSimPOConfig())
    assert "actor.lora.r" not in without_adapter and without_adapter["simpo.beta"] == 2.5


def language_search(weights, run_dir, **changes):
    train = config_of("train_simpo", weights, run_dir)
    train = replace(
        train,
        actor=replace(train.actor, lora=LORA),
        preferences=replace(PREFERENCES, num_states=32),
        training=replace(TRAINING, max_steps=2, save_every_updates=0),
    )
    mutation = MutationConfig(weights={"hyper": 0.5, "architecture": 0.5}, gene_step=0.3)
    return SearchConfig(
        run=RunConfig(run_dir=str(run_dir)),
        language=LanguageConfig(train, EvaluationConfig(num_samples=0), "episode_return"),
        space=SpaceConfig(genes=GENES),
        evolution=EvolutionConfig(
            population_size=3, num_generations=3, start="given", mutation=mutation
        ),
    )


class Stop(Exception):
    """Stands for a kill."""


@pytest.mark.slow
def test_language_actors_evolve_and_a_search_that_was_cut_goes_on_exactly(tmp_path):
    weights = build_weights(tmp_path / "weights")
    calls = []

    def train(config):
        calls.append(config)
        if len(calls) == cut_at:
            raise Stop
        return run_here("train_simpo", config)

    stages = {"train": train, "evaluate": lambda config: run_here("evaluate", config)}
    cut_at = 0
    whole = search(language_search(weights, tmp_path / "whole"), stages)
    assert len({config.training.learning_rate for config in calls}) > 1
    calls, cut_at = [], 5
    with pytest.raises(Stop):
        search(language_search(weights, tmp_path / "cut"), stages)
    cut_at = 0
    cut = search(language_search(weights, tmp_path / "cut"), stages)
    folders = [summary.pop("best/folder") for summary in (whole, cut)]
    for summary in (whole, cut):  # genes and figures; folders have other names
        assert summary["num_env_steps"] > 9 * 32 * PREFERENCES.num_candidates
    assert whole == cut
    lineages = [read_lines(tmp_path / name / "lineage.jsonl") for name in ("whole", "cut")]
    assert lineages[0] == lineages[1] and len(lineages[0]) == 9
    models = [read_model(ActorConfig(folder, dtype="float32")).state_dict() for folder in folders]
    assert all(torch.equal(models[1][name], weight) for name, weight in models[0].items())
    kinds = {line["mutation"] for line in lineages[0]}
    assert {"newcomer", "elite"} < kinds
    assert np.isfinite([line["fitness"] for line in lineages[0]]).all()
    assert script_setups.SHAPE.num_layers == 1
