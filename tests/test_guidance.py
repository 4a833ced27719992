"""Acting by token values, against plain forward passes without trees, caches or batches."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_value_trainers import alone, shaken
from training_setups import MAKERS, STATES, nudge, open_run

from lactchain import ChainGrammar, ConfigError, DataError, LanguageActor
from lactchain.config.settings import ActorConfig, GuidedActorConfig, RankingConfig
from lactchain.models.generation.cascade import CACHE_BYTES, CascadeTrunk
from lactchain.models.loading import load_actor
from lactchain.models.prompting import PromptTemplate
from lactchain.models.tiny import build_tiny_actor
from lactchain.trainers.base import save_result
from lactchain_extras.token_values.guidance import TrainedValues, best_of
from lactchain_extras.token_values.model import ValueModel

GRAMMAR = ChainGrammar(("move forward", "turn left"), max_chain_length=3)
WEIGHT = 3.0


@pytest.fixture(scope="module", params=["ilql-lora", "ilql-full", "mc-full"])
def values(request, tiny, tmp_path_factory):
    """The folder of a value model with random heads and another target network."""
    kind, _, how = request.param.partition("-")
    folder = tmp_path_factory.mktemp(request.param)
    with open_run(folder / "run") as run:
        trainer = shaken(MAKERS[kind](tiny, run, lora=how == "lora"))
        nudge(trainer.values, 0.1)
        save_result(trainer, folder / "values")
    return folder / "values"


def config_of(tiny, values, **changes) -> GuidedActorConfig:
    settings = {"values": str(values), "value_weight": WEIGHT, "max_new_tokens": 8} | changes
    return GuidedActorConfig(str(tiny / "actor"), **settings)


def test_a_value_model_remembers_its_precision(tiny, tmp_path):
    actor = ActorConfig(str(tiny / "actor"), dtype="bfloat16")
    ValueModel.from_actor(actor, method="mc", gamma=0.9, num_q_heads=1).save(tmp_path)
    assert ValueModel.load(tmp_path).trunk.dtype == torch.bfloat16
    assert ValueModel.load(tmp_path, ActorConfig(dtype="auto")).trunk.dtype == torch.bfloat16
    assert ValueModel.load(tmp_path, replace(actor, dtype="float32")).trunk.dtype == torch.float32


def test_a_saved_value_model_computes_the_same(values):
    model = ValueModel.load(values)
    ids = list(range(8))
    q, v = alone(model, ids)
    again_q, again_v = alone(ValueModel.load(values), ids)
    assert torch.equal(q, again_q) and torch.equal(v, again_v)
    assert not any(p.requires_grad for p in model.parameters())
    if model.target:
        assert not torch.allclose(alone(model, ids, target=True)[0], q)


@torch.no_grad()
def test_free_decoding_adds_the_least_target_value_to_the_logits(tiny, values):
    config = config_of(tiny, values, temperature=0.5)
    model, tokenizer = load_actor(replace(config, values=None, decoding="free"))
    actor = LanguageActor(model, tokenizer, config, GRAMMAR)
    table = ValueModel.load(values)
    for completion, state in zip(actor.act(STATES[:4], range(4)), STATES, strict=False):
        ids = actor.template.encode(state)
        for token, logprob in zip(completion.token_ids, completion.logprobs, strict=True):
            q, _ = alone(table, ids, target=True)
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
            guided = (logits + WEIGHT * q[:, -1].amin(0)) / config.temperature
            expected = guided.log_softmax(-1)[token].item()
            np.testing.assert_allclose(logprob, expected, atol=2e-4)
            ids.append(token)


@pytest.fixture(scope="module")
@torch.no_grad()
def passes(tiny, values):
    """Of some states and all completions: each token's least target value, and the values before.

    Both (num_states, num_completions, num_tokens), in lists.
    """
    actor = LanguageActor.from_config(config_of(tiny, values), GRAMMAR)
    table, tokenizer = ValueModel.load(values), actor.tokenizer
    found = []
    for state in STATES[:3]:
        prompt, row = actor.template.encode(state), []
        for text in GRAMMAR.completions():
            said = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
            q, _ = alone(table, prompt + said, target=True)
            _, v = alone(table, prompt + said)
            places = range(len(prompt) - 1, len(prompt) + len(said) - 1)
            least = [q[:, place, token].amin() for place, token in zip(places, said, strict=True)]
            row.append((least, [v[place] for place in places]))
        found.append(row)
    return found


@pytest.mark.parametrize("ranking", ["sum", "first", "last"])
def test_scored_decoding_takes_the_greatest_advantage(ranking, tiny, values, passes):
    config = config_of(tiny, values, decoding="scored", ranking=RankingConfig(ranking))
    actor = LanguageActor.from_config(config, GRAMMAR)
    texts, gamma = list(GRAMMAR.completions()), ValueModel.load(values).meaning.gamma
    assert len(texts) == GRAMMAR.num_completions == 14
    worth = {
        "sum": lambda least, v: sum(least) - sum(v),
        "first": lambda least, v: least[0] - v[0],
        "last": lambda least, v: gamma ** (len(least) - 1) * least[-1] - v[0],
    }[ranking]
    advantages = np.array([[float(worth(*one)) for one in row] for row in passes])
    np.testing.assert_allclose(actor.ranking.advantages(STATES[:3]), advantages, atol=2e-4)
    said = [completion.text for completion in actor.act([*STATES[:3], STATES[0]], range(4))]
    worth_of = [dict(zip(texts, row, strict=True)) for row in advantages]
    assert all(of[text] > max(of.values()) - 4e-4 for of, text in zip(worth_of, said, strict=False))
    assert said[3] == said[0]


def test_completions_that_begin_alike_are_equals_of_which_the_shortest_is_taken(tiny, values):
    config = config_of(tiny, values, decoding="scored", ranking=RankingConfig("first"))
    actor = LanguageActor.from_config(config, GRAMMAR)
    assert len({action.token_ids[0] for action in actor.ranking.actions}) == 1
    assert all(len(set(row.tolist())) == 1 for row in actor.ranking.advantages(STATES[:6]))
    assert {action.text for action in actor.act(STATES[:6], range(6))} == {'["turn left"]'}


def test_scores_do_not_depend_on_the_bytes_of_a_batch(tiny, values, monkeypatch):
    read, scores, sizes = CascadeTrunk.read, [], []

    def note(trunk, prompts, **kwargs):
        sizes.append(len(prompts))
        return read(trunk, prompts, **kwargs)

    monkeypatch.setattr(CascadeTrunk, "read", note)
    for budget in (2**30, 10):
        monkeypatch.setitem(CACHE_BYTES, "cpu", budget)
        config = config_of(tiny, values, decoding="scored")
        scores.append(LanguageActor.from_config(config, GRAMMAR).ranking.scores(STATES[:6]))
    assert set(sizes) == {6, 1}
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)


@pytest.mark.parametrize("floor", [0.0, 0.01])
def test_the_cloned_policy_counts_as_much_as_it_is_told(tiny, values, floor):
    config = config_of(tiny, values, decoding="scored", ranking=RankingConfig("sum", 0.25, floor))
    ranking = LanguageActor.from_config(config, GRAMMAR).ranking
    model, tokenizer = load_actor(replace(config, values=None, decoding="free"))
    template = PromptTemplate(tokenizer, config.strategy, GRAMMAR)
    expected = ranking.advantages(STATES[:3]).copy()
    with torch.no_grad():
        for row, state in enumerate(STATES[:3]):
            prompt = template.encode(state)
            for column, completion in enumerate(ranking.actions):
                ids = torch.tensor([prompt + list(completion.token_ids)])
                logprobs = model(input_ids=ids).logits[0].log_softmax(-1)
                places = range(len(prompt) - 1, ids.shape[1] - 1)
                said = [logprobs[place, ids[0, place + 1]].item() for place in places]
                expected[row, column] += 0.25 * math.log(math.exp(sum(said)) + floor)
    np.testing.assert_allclose(ranking.scores(STATES[:3]), expected, atol=2e-4)


@torch.no_grad()
def test_constrained_decoding_keeps_to_the_grammar_and_is_guided(tiny, values):
    config = config_of(tiny, values, decoding="constrained")
    actor = LanguageActor.from_config(config, GRAMMAR)
    plain = LanguageActor.from_config(replace(config, values=None), GRAMMAR)
    completions, probabilities = actor.enumerate(STATES[:3])
    assert set(completions) == set(GRAMMAR.completions())
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    assert not np.allclose(probabilities, plain.enumerate(STATES[:3])[1], atol=1e-3)


def test_the_same_weights_are_asked_in_another_way(tiny, values):
    config = config_of(tiny, values, decoding="scored")
    free = replace(config, decoding="free")
    asked = LanguageActor.from_config(config, GRAMMAR).with_config(free, GRAMMAR)
    expected = LanguageActor.from_config(free, GRAMMAR).act(STATES[:4], range(4))
    assert asked.act(STATES[:4], range(4)) == expected


def test_what_values_do_not_fit_and_a_ranking_without_any_are_refused(tiny, values, tmp_path):
    with pytest.raises(ValueError, match="^values: expected trained values, which rank chains"):
        GuidedActorConfig(decoding="scored")
    many = replace(GRAMMAR, max_chain_length=12)
    with pytest.raises(ConfigError, match="at most 4096 completions, the grammar has 8190"):
        LanguageActor.from_config(config_of(tiny, values, decoding="scored"), many)
    with pytest.raises(ConfigError, match="actor.strategy: expected 'none'.*got 'direct'"):
        LanguageActor.from_config(config_of(tiny, values, strategy="direct"), GRAMMAR)
    build_tiny_actor(tmp_path / "other", ["quite other words"] * 2)
    _, tokenizer = load_actor(ActorConfig(str(tmp_path / "other")))
    with pytest.raises(DataError, match="another tokenizer"):
        TrainedValues(config_of(tiny, values), tokenizer)


@pytest.mark.parametrize("name", ["values_config.json", "values.safetensors"])
def test_damage_is_named(name, values, tiny, tmp_path):
    folder = shutil.copytree(values, tmp_path / "values")
    (folder / "manifest.json").unlink()
    (folder / name).write_bytes(b"{}")
    with pytest.raises(DataError, match=name):
        ValueModel.load(folder)
    with pytest.raises(DataError, match="train_ilql or train_mc"):
        ValueModel.load(tiny / "actor")


@pytest.mark.parametrize("rounding", [0.0, 3e-7, -3e-7])
def test_the_best_is_the_greatest_and_of_equals_the_shortest_and_of_those_the_first(rounding):
    lengths = np.array([9, 4, 4, 1])
    scores = np.array([[2.0 + rounding, 2.0, 2.0 + rounding, 1.0], [1.0, 1.0, 1.1, 1.0]])
    assert best_of(scores, lengths).tolist() == [1, 2]
    assert best_of(scores, np.stack([lengths[::-1], lengths])).tolist() == [0, 2]
    assert best_of(1000 * scores, lengths).tolist() == [1, 2]
    assert best_of(np.full((1, 3), -np.inf), np.array([3, 2, 2])).tolist() == [1]
