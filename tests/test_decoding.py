"""Decoding: the model's own distribution, whatever is shared, cut off, branched or merged."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from decoding_setups import (
    ACTIONS,
    PREFIX,
    PROMPTS,
    constrained,
    logprobs_of,
    make_model,
    shared_model,
)
from test_tiny_models import TOKENIZER
from transformers import MistralForCausalLM

from lactchain.config.settings import ActorConfig, GuidedActorConfig, LoraSettings
from lactchain.errors import ConfigError, NonFiniteError
from lactchain.functional.random_streams import draw, uniform
from lactchain.models.actor import LanguageActor
from lactchain.models.adapters import attach_lora, merged
from lactchain.models.generation import cascade
from lactchain.models.generation.cascade import COLUMNS, RowCache, prefix_keys_values
from lactchain.models.generation.decoding import Decoder
from lactchain.types import ChainGrammar


def generated(model, prompt, num_tokens, eos=None):
    """What the library's own greedy `generate` answers to one prompt."""
    settings = {"max_new_tokens": num_tokens, "do_sample": False, "pad_token_id": 0}
    model.generation_config.eos_token_id = eos
    return model.generate(torch.tensor([prompt]), **settings)[0, len(prompt) :].tolist()


@pytest.mark.parametrize("prefix", [PREFIX, ()])
def test_greedy_tokens_are_those_of_generate(prefix):
    model = shared_model()
    decoder = Decoder(model, -1, prefix, max_new_tokens=2 * COLUMNS, temperature=0)
    rows = decoder.sample(PROMPTS, range(len(PROMPTS)))
    for prompt, row in zip(PROMPTS, rows, strict=True):
        assert list(row.token_ids) == generated(model, prompt, 2 * COLUMNS)


def test_rows_that_end_leave_the_batch_and_change_nothing_for_the_others():
    model, num_tokens = shared_model(), 24
    prompts = [[*PREFIX, a, b] for a in range(50, 54) for b in range(60, 70)]
    free = Decoder(model, -1, PREFIX, num_tokens, temperature=0).sample(prompts, range(40))
    said = [token for row in free for token in row.token_ids]
    eos = max(set(said), key=said.count)
    rows = Decoder(model, eos, PREFIX, num_tokens, temperature=0).sample(prompts, range(40))
    lengths = {len(row.token_ids) for row in rows}
    assert len(lengths) > 4 and num_tokens in lengths, "the rows should end at different times"
    for prompt, row in zip(prompts[::4], rows[::4], strict=True):
        assert list(row.token_ids) == generated(model, prompt, num_tokens, eos)


@pytest.mark.parametrize("prefix", [PREFIX, ()])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_a_plain_forward(prefix, temperature):
    decoder = Decoder(shared_model(), -1, prefix, max_new_tokens=12, temperature=temperature)
    rows = decoder.sample(PROMPTS, range(len(PROMPTS)))
    for prompt, row in zip(PROMPTS, rows, strict=True):
        completion = list(row.token_ids)
        plain = logprobs_of(shared_model(), prompt, completion, temperature)
        expected = plain[range(len(completion)), completion]
        torch.testing.assert_close(torch.tensor(row.logprobs), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_free_samples_follow_the_distribution_of_the_model(temperature):
    count = 20_000
    decoder = Decoder(shared_model(), -1, PREFIX, max_new_tokens=1, temperature=temperature)
    rows = decoder.sample([PROMPTS[0]] * count, range(count))
    counts = np.bincount([r.token_ids[0] for r in rows], minlength=shared_model().vocab_size)
    expected = logprobs_of(shared_model(), PROMPTS[0], [0], temperature)[0].exp().numpy()
    assert (np.abs(counts / count - expected) < 4 * np.sqrt(expected / count) + 2e-4).all()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_of_given_completions_are_those_of_the_model(temperature):
    decoder = Decoder(shared_model(), TOKENIZER.eos_token_id, PREFIX, temperature=temperature)
    completions = [(60, 61, 2), (60, 2), (70, 71, 72, 2)]
    found = decoder.log_probs(PROMPTS[:2], completions)
    for prompt, row in zip(PROMPTS, found, strict=False):
        for completion, log_prob in zip(completions, row, strict=True):
            logits = shared_model()(torch.tensor([[*prompt, *completion]])).logits[0]
            said = (logits / temperature).log_softmax(-1)[len(prompt) - 1 : -1]
            expected = said[range(len(completion)), list(completion)].sum().item()
            assert log_prob == pytest.approx(expected, abs=1e-4)
    with pytest.raises(ValueError, match="expected a free decoder"):
        constrained()[0].log_probs(PROMPTS[:1], completions)


@pytest.mark.parametrize("make", [
    lambda: Decoder(shared_model(), 2, PREFIX, max_new_tokens=10),
    lambda: constrained("mistral")[0],
], ids=["free", "constrained"])  # fmt: skip
def test_equal_seeds_give_equal_tokens_in_any_batch(make):
    decoder = make()
    prompts, seeds = PROMPTS * 4, list(range(7, 27))
    rows = decoder.sample(prompts, seeds)
    assert len({row.token_ids for row in rows}) > 5
    order = np.random.default_rng(0).permutation(len(prompts))
    shuffled = decoder.sample([prompts[i] for i in order], [seeds[i] for i in order])
    assert [row.token_ids for row in shuffled] == [rows[i].token_ids for i in order]
    in_threes = [
        row
        for start in range(0, len(prompts), 3)
        for row in decoder.sample(prompts[start : start + 3], seeds[start : start + 3])
    ]
    assert [row.token_ids for row in in_threes] == [row.token_ids for row in rows]
    assert make().sample(prompts, seeds) == rows


def test_random_numbers_are_uniform_and_depend_on_seed_and_step_alone():
    seeds = np.array([0, 1, 2, 2**63, 2**64 - 1], dtype=np.uint64)
    assert (uniform(seeds, 3) == [uniform(seeds[i : i + 1], 3)[0] for i in range(5)]).all()
    # The first two words of the authors' SplitMix64 from seed 0 (splitmix64.c of S. Vigna).
    words = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    assert [draw(0, step, 2**64) for step in range(2)] == words
    assert [uniform(seeds[:1], step)[0] for step in range(2)] == [(w >> 11) / 2**53 for w in words]
    draws = np.stack([uniform(np.arange(20_000, dtype=np.uint64), step) for step in range(2)])
    assert draws.min() >= 0 and draws.max() < 1
    counts = np.histogram2d(*draws, bins=4, range=[[0, 1], [0, 1]])[0]
    assert (np.abs(counts - 1250) < 4 * np.sqrt(1250)).all()


def test_samples_of_one_prompt_share_one_reading_of_it():
    model, fed = make_model(), []
    decoder = Decoder(model, -1, PREFIX, max_new_tokens=3)

    def note(module, args, kwargs):
        fed.append(tuple(kwargs["input_ids"].shape))

    model.model.register_forward_pre_hook(note, with_kwargs=True)
    rows = decoder.sample([PROMPTS[0]] * 6 + [PROMPTS[1]] * 2, range(8))
    assert fed == [(2, 3), (8, 1), (8, 1)]
    alone = [
        decoder.sample([prompt], [seed])[0]
        for seed, prompt in enumerate([PROMPTS[0]] * 6 + [PROMPTS[1]] * 2)
    ]
    assert [row.token_ids for row in rows] == [row.token_ids for row in alone]


def test_reading_prompts_in_parts_changes_nothing(monkeypatch):
    decoder = Decoder(shared_model(), -1, PREFIX, max_new_tokens=6)
    whole = decoder.sample(PROMPTS, range(5))
    monkeypatch.setitem(cascade.CHUNK_TOKENS, "cpu", 20)
    parts = decoder.sample(PROMPTS, range(5))
    assert [row.token_ids for row in parts] == [row.token_ids for row in whole]


def test_the_cache_of_rows_grows_and_branches():
    prefix = prefix_keys_values(shared_model(), PREFIX)
    assert prefix.shape == (2, 2, 2, len(PREFIX), 8)
    cache = RowCache.allocate(2, COLUMNS, prefix)
    blocks = torch.randn(2, 2, 2, COLUMNS + 3, 8)  # B, K and V, Hkv, Q, D
    valid = torch.ones(2, COLUMNS + 3, dtype=torch.bool)
    valid[1, :2] = False
    for part in (slice(0, COLUMNS), slice(COLUMNS, COLUMNS + 3)):
        visible = cache.append(valid[:, part])
        for layer in range(2):
            keys, values = cache.update(blocks[:, 0, :, part], blocks[:, 1, :, part], layer)
    assert visible.shape == (2, 3, 2 * COLUMNS)
    assert (visible.sum(dim=-1) - COLUMNS).tolist() == [[1, 2, 3], [-1, 0, 1]]
    assert torch.equal(keys[:, :, : cache.length], blocks[:, 0].transpose(0, 1))
    assert torch.equal(values[:, :, : cache.length], blocks[:, 1].transpose(0, 1))
    assert not keys[:, :, cache.length :].any()

    rows = cache.select(torch.tensor([1, 0, 1]))
    assert torch.equal(rows.columns[0, 0, :, 1, : cache.length], blocks[0, 0])
    assert torch.equal(rows.valid[:, : cache.length], valid[[1, 0, 1]])


def test_a_part_of_the_rows_is_written_in_place():
    cache = RowCache.allocate(3, COLUMNS, prefix_keys_values(shared_model(), PREFIX))
    part = cache.part(1, 3)
    block = torch.randn(2, 2, 1, 8)
    part.append(torch.ones(2, 1, dtype=torch.bool))
    part.update(block, block, 0)
    assert torch.equal(cache.columns[0, 0, :, 1:, 0], block[:, :, 0].transpose(0, 1))
    assert not cache.columns[:, :, :, 0].any()
    assert cache.valid[:, 0].tolist() == [False, True, True]


def with_lora() -> torch.nn.Module:
    """A model with an adapter that changes what it says."""
    lora = attach_lora(make_model(), LoraSettings(r=4, alpha=32), "CAUSAL_LM")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for name, parameter in lora.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.2)
    return lora


def test_an_adapter_speaks_the_same_merged_and_as_it_is():
    lora = with_lora()
    settings = {"prefix_ids": PREFIX, "max_new_tokens": 8, "temperature": 0}
    as_it_is = Decoder(lora, -1, **settings).sample(PROMPTS, range(5))
    expected = [generated(lora, prompt, 8) for prompt in PROMPTS]
    whole = Decoder(merged(lora), -1, **settings).sample(PROMPTS, range(5))
    base = Decoder(make_model(), -1, **settings).sample(PROMPTS, range(5))
    for one, other, tokens in zip(whole, as_it_is, expected, strict=True):
        assert list(one.token_ids) == list(other.token_ids) == tokens
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert [row.token_ids for row in base] != [row.token_ids for row in whole]


def test_a_model_in_training_is_put_back_as_it_was():
    model = make_model(attn_implementation="eager").train()
    model.activation_checkpointing_enable()
    before = model.config._attn_implementation
    decoder = Decoder(model, -1, PREFIX, max_new_tokens=6, temperature=0)
    rows = decoder.sample(PROMPTS, range(5))
    assert model.training and model.config._attn_implementation == before == "eager"
    assert [list(row.token_ids) for row in rows] == [
        generated(shared_model_like(model), prompt, 6) for prompt in PROMPTS
    ]
    assert model(torch.tensor([PROMPTS[0]])).logits.requires_grad


def shared_model_like(model) -> MistralForCausalLM:
    """The same weights in a model that nothing was done to."""
    other = make_model()
    other.load_state_dict(model.state_dict())
    return other


def test_a_model_is_put_back_also_when_sampling_fails():
    model = make_model().train()
    decoder = Decoder(model, -1, PREFIX)
    before = model.config._attn_implementation
    with pytest.raises(IndexError):
        decoder.sample([[*PREFIX, 10**6]], [0])
    assert model.training and model.config._attn_implementation == before


def test_completions_are_cut_at_the_longest_and_say_so():
    decoder = Decoder(shared_model(), -1, PREFIX, max_new_tokens=5)
    rows = decoder.sample(PROMPTS, range(5))
    assert {(len(row.token_ids), len(row.logprobs), row.stop_reason) for row in rows} == {
        (5, 5, "length")
    }
    eos = rows[0].token_ids[1]
    ended = Decoder(shared_model(), eos, PREFIX, max_new_tokens=5).sample(PROMPTS[:1], [0])[0]
    assert ended.token_ids == rows[0].token_ids[: rows[0].token_ids.index(eos) + 1]
    assert ended.stop_reason == "stop"


def test_no_prompts_get_no_completions():
    assert Decoder(shared_model(), 2).sample([], []) == []


@pytest.mark.parametrize("decoding", ["free", "constrained"])
def test_a_prompt_without_room_for_a_completion_is_named(decoding):
    grammar = ChainGrammar(ACTIONS, max_chain_length=2)
    config = ActorConfig(strategy="Go on! ", decoding=decoding, max_new_tokens=16)

    def actor(context):
        model = make_model(max_position_embeddings=context)
        return LanguageActor(model, TOKENIZER, config, grammar)

    free = actor(1000)
    observation = "You are at (1, 2)."
    needed = len(free.template.encode(observation)) + free.decoder.longest_completion
    assert actor(needed).act([observation], [0])
    with pytest.raises(ConfigError, match=f"'You are at .* but the model reads {needed - 1}; sh"):
        actor(needed - 1).act(["", observation], [0, 1])


def test_a_copy_with_another_config_ranks_by_the_same_scorer():
    asked = []

    def longest(observations, completions):
        asked.append(len(completions))
        return np.array([len(text) for text in completions], dtype=float)

    config = GuidedActorConfig(decoding="scored", num_candidates=4)
    grammar = ChainGrammar(ACTIONS, max_chain_length=2)
    actor = LanguageActor(make_model(), TOKENIZER, config, grammar, scorer=longest)
    copy = actor.with_config(replace(config, temperature=0.5), grammar)
    assert [len(a.act(["You are at (1, 2)."], [0])) for a in (actor, copy)] == [1, 1]
    assert asked == [4, 4]


def test_misuse_is_refused():
    free = Decoder(shared_model(), 2, PREFIX)
    with pytest.raises(ValueError, match="constrained"):
        free.enumerate(PROMPTS)
    for prompt in ([9, 9, 9], list(PREFIX), [*PREFIX[:-1], 9, 9]):
        with pytest.raises(ValueError, match="prefix"):
            free.sample([prompt], [0])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_is_not_finite_is_an_error_and_not_a_completion(value):
    model = make_model()
    decoder = Decoder(model, 2, PREFIX)
    with torch.no_grad():
        model.model.norm.weight[3] = value
    with pytest.raises(NonFiniteError, match="weights"):
        decoder.sample(PROMPTS, range(5))
