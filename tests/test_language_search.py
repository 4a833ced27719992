"""Tiny Mistrals grow without changing what they say; language actors evolve over their tunables."""

import shutil
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from script_setups import LORA, PREFERENCES, SHAPE, config_of
from training_setups import nudge
from transformers import GPT2Config, GPT2LMHeadModel, MistralForCausalLM

from lactchain import ActorConfig, Run, RunConfig
from lactchain.data.evaluations import write_episodes
from lactchain.errors import CollapseError, ConfigError, NonFiniteError, NoPairsError
from lactchain.models.adapters import save_adapter
from lactchain.models.loading import load_actor
from lactchain.models.tiny import build_tiny_tokenizer, mistral_config
from lactchain.search.evolution import Evolution, Individual
from lactchain.search.settings import EvolutionConfig, MutationConfig, SpaceConfig
from lactchain.stages import evaluate as evaluation
from lactchain.stages import train_simpo
from lactchain.stages.evaluate import EvaluationConfig
from lactchain.stages.search import LanguageConfig, SearchConfig
from lactchain.stages.search import main as search
from lactchain.storage.files import read_json_lines
from lactchain_extras.language_search.actors import LanguageSpecies
from lactchain_extras.language_search.growth import add_layer, add_mlp_units, disturb, write_model

TOKENIZER = build_tiny_tokenizer(["a b c"] * 3)
TUNABLES = ["training.learning_rate", "loss.beta", "loss.target_margin", "loss.nll_weight"]


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


def test_a_grown_model_is_read_as_any_other(weights, tmp_path):
    actor = ActorConfig(str(weights / "actor"), dtype="float32")
    grown = add_layer(load_actor(actor)[0])
    write_model(grown, actor, tmp_path / "grown")
    again, _ = load_actor(replace(actor, model=str(tmp_path / "grown")))
    assert torch.equal(logits(again), logits(grown))


def language_search(weights, run_dir, lora=LORA):
    """Members are adapters, or whole models where there is no `lora`."""
    changes = {"actor.lora": lora, "actor.dtype": "bfloat16" if lora else "float32"}
    changes |= {"preferences.num_states": 32, "training.max_steps": 2}
    train = config_of("train_simpo", weights, run_dir, changes | {"training.save_every_updates": 0})
    kinds = {"hyper": 0.5, "none" if lora else "architecture": 0.5}
    language = LanguageConfig(train, EvaluationConfig(num_samples=0), "episode_return")
    evolution = {"population_size": 3, "num_generations": 3, "start": "given"}
    evolution["mutation"] = MutationConfig(weights=kinds, tunable_step=0.3)
    parts = {"space": SpaceConfig(tunables=TUNABLES), "evolution": EvolutionConfig(**evolution)}
    return SearchConfig(run=RunConfig(run_dir=str(run_dir)), language=language, **parts)


@contextmanager
def species_of(config, train=None, evaluate=None, folder=None):
    """The species of a search, whose members are trained and evaluated by these functions."""
    run = Run.open(folder or config.run.run_dir, config)
    with pytest.MonkeyPatch.context() as patch, run:
        patch.setattr(train_simpo, "main", train)
        patch.setattr(evaluation, "main", evaluate)
        yield LanguageSpecies(config, run)


def evaluated(stage, episode_return):
    """A stage's folder as an evaluation leaves it."""
    Path(stage.run.run_dir).mkdir(parents=True, exist_ok=True)
    write_episodes(Path(stage.run.run_dir) / "episodes.json", [])
    return {"episode_return": episode_return}


def member_of(config, number, state, settings=None, parent=None):
    return Individual(number, parent, "newcomer", {}, settings or config.language.train, state)


def given(weights):
    return {"model": str(weights / "actor"), "adapter": None}


class Stop(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("elite, patience", [("champion", 1), ("generation", 0)])
def test_a_champion_and_two_last_checkpoints_keep_their_weights(elite, patience, weights, run_dir):
    """Also beside newcomers only, and where the elite of its generation is another one."""
    config = language_search(weights, run_dir)
    settings = replace(config.evolution, elite=elite, patience=patience, num_generations=4)
    config = replace(config, evolution=settings)
    fitness = iter(range(100, 0, -1))

    def train(stage):
        random_adapter(stage.actor, f"{stage.run.run_dir}/actor")

    def evaluate(stage):
        load_actor(stage.actor)
        return evaluated(stage, next(fitness))

    with species_of(config, train, evaluate) as species:
        evolution, checkpoints = Evolution(species, settings), []
        for _ in evolution:
            checkpoints.append(deepcopy(evolution.state_dict()))
            assert evolution.champion.id == 0
            assert (run_dir / evolution.champion.state["adapter"]).is_dir()
        living = {member.state["adapter"] for member in evolution.members}
    adapter = evolution.champion.state["adapter"]
    assert (adapter in living) == (elite == "champion" and not patience)
    with species_of(config, train, evaluate) as species:  # the last one may be damaged
        again = Evolution(species, settings)
        again.load_state_dict(checkpoints[-3])
        for _ in range(2):
            again.advance()
    assert [line["id"] for line in again.lineage] == [line["id"] for line in evolution.lineage]


def random_adapter(actor, folder):
    """An adapter on an actor's model that changes something, as if trained."""
    model, _ = load_actor(actor, trainable=True)
    nudge(model, 0.1, seed=len(str(folder)))
    save_adapter(model, folder)


def test_children_inherit_adapters_and_nothing_is_merged(weights, run_dir):
    config = language_search(weights, run_dir)
    trained = []

    def train(stage):
        trained.append(stage.actor)
        random_adapter(stage.actor, f"{stage.run.run_dir}/actor")

    with species_of(config, train) as species:
        rng = np.random.default_rng(0)
        newcomers = [Individual(i, None, "newcomer", {}, *species.newcomer(i, rng)[:2])
                     for i in range(2)]  # fmt: skip
        species.keep(newcomers)
        states = species.train(newcomers, 0)
        assert all(state["model"] == str(weights / "actor") for state in states)
        parent = replace(newcomers[1], state=states[1])
        for kind in ("architecture", "parameters", "activation"):
            assert species.mutate(kind, parent, rng) is None
        config_h, inherited, _ = species.mutate("hyper", parent, rng)
        assert inherited == parent.state and config_h != parent.config
        children = [member_of(config, 2, inherited, config_h, parent=1)]
        species.keep(children)
        species.train(children, 1)
    assert trained[2].adapter == str(run_dir / inherited["adapter"])
    assert trained[2].lora == config.language.train.actor.lora
    folders = {path.name for path in (run_dir / "members").iterdir()}
    assert folders == {"1", "2"}  # nobody comes from 0
    assert not list(run_dir.rglob("model*.safetensors"))


def test_a_copied_search_goes_on_with_its_own_members_and_prunes_no_others(weights, tmp_path):
    config = language_search(weights, tmp_path / "run")
    models = ("members/3/actor", None), ("members/noise-7", None), (str(weights), "members/4/actor")
    states = [{"model": model, "adapter": adapter} for model, adapter in models]
    with species_of(config) as original:
        for name in ("3/actor", "4/actor", "noise-7", "8"):
            (original.folder / name).mkdir(parents=True)
        members = [member_of(config, 9, state) for state in states]
        evolution = Evolution(original, config.evolution, members=members)
        told = evolution.state_dict()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with species_of(config, folder=tmp_path / "copy") as copy:
        again = Evolution(copy, config.evolution)
        again.load_state_dict(told)
    assert again.members == members
    actor = copy._actor(again.members[2].state)
    assert (actor.model, actor.adapter) == (str(weights), str(copy.folder / "4/actor"))
    copy.keep(again.members)
    assert {path.name for path in copy.folder.iterdir()} == {"3", "4", "noise-7"}
    assert {path.name for path in original.folder.iterdir()} == {"3", "4", "noise-7", "8"}


def test_members_are_judged_by_what_they_may_practise(weights, tmp_path):
    config = language_search(weights, tmp_path / "run")
    name = config.language.fitness
    member = member_of(config, 0, given(weights))
    for figures in ({name: 0.25}, {name: 0.9, f"practised/{name}": 0.25}):

        def evaluate(stage, figures=figures):
            return evaluated(stage, 0.0) | figures

        folder = tmp_path / f"run{len(figures)}"
        with species_of(config, evaluate=evaluate, folder=folder) as species:
            assert species.evaluate([member], 0) == [0.25]


@pytest.mark.parametrize("error", [NoPairsError, NonFiniteError, CollapseError])
def test_a_member_whose_round_fails_does_not_end_the_search(weights, run_dir, error):
    config = language_search(weights, run_dir)

    def train(config):
        raise error("nothing was learnt")

    member = member_of(config, 5, given(weights))
    with species_of(config, train, lambda stage: evaluated(stage, 0.25)) as species:
        assert species.train([member], 0) == [member.state]
        assert species.num_env_steps == 32 * PREFERENCES.num_candidates  # they were asked for
        fitness = 0.25 if error is NoPairsError else np.nan
        np.testing.assert_equal(species.evaluate([member], 0), [fitness])


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LORA])
def test_a_search_of_language_actors_goes_on_exactly(weights, tmp_path, lora, monkeypatch):
    calls, train_one = [], train_simpo.main

    def train(config):
        calls.append(config)
        if len(calls) == cut_at:
            raise Stop
        return train_one(config)

    monkeypatch.setattr(train_simpo, "main", train)
    cut_at = 0
    whole = search(language_search(weights, tmp_path / "whole", lora))
    tuned = [(c.training.learning_rate, c.loss) for c in calls]
    assert any(settings != tuned[0] for settings in tuned)
    calls, cut_at = [], 5
    with pytest.raises(Stop):
        search(language_search(weights, tmp_path / "cut", lora))
    cut_at = 0
    cut = search(language_search(weights, tmp_path / "cut", lora))
    found = [(told.pop("best/folder"), told.pop("best/adapter")) for told in (whole, cut)]
    best = [ActorConfig(folder, adapter=adapter) for folder, adapter in found]
    assert all((actor.adapter is None) == (lora is None) for actor in best)
    assert whole == cut  # tunables and figures; folders have other names
    assert whole["num_env_steps"] > 9 * 32 * PREFERENCES.num_candidates
    lineages = [read_json_lines(tmp_path / name / "lineage.jsonl") for name in ("whole", "cut")]
    assert lineages[0] == lineages[1] and len(lineages[0]) == 9
    models = [load_actor(actor)[0].state_dict() for actor in best]
    assert all(torch.equal(models[1][name], weight) for name, weight in models[0].items())
    assert {"newcomer", "elite"} < {line["mutation"] for line in lineages[0]}
    assert np.isfinite([line["fitness"] for line in lineages[0]]).all()
