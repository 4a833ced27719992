"""Completions that are held to a grammar, beside the library's own way of doing it."""

import weakref
from functools import partial

import numpy as np
import pytest
import test_decoding
from test_decoding import PREFIX, PROMPTS, TOKENIZERS, constrained, legal_completions, logprobs_of
from test_tiny_models import TOKENIZER

from lactchain import ChainGrammar, DataError
from lactchain.models.generation.automaton import build_automaton
from lactchain.models.generation.cascade import CACHE_BYTES, RowCache
from lactchain.models.generation.decoding import Decoder


def masked_logprob(prompt, completion, completions, temperature):
    """Log-probability of a completion when only what continues one of `completions` may be said."""
    logprobs = logprobs_of(test_decoding.shared_model(), prompt, completion, temperature)
    total = 0.0
    for place, token in enumerate(completion):
        allowed = sorted({a[place] for a in completions if a[:place] == completion[:place]})
        row = logprobs[place, allowed].log_softmax(-1)
        total += float(row[allowed.index(token)])
    return total


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("extractor", ["json_list", "json_object"])
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_enumeration_is_the_exact_distribution_over_all_chains(tokenizer, extractor, temperature):
    decoder, reader = constrained(tokenizer, extractor, temperature=temperature)
    completions, probabilities = decoder.enumerate(PROMPTS[:3])
    expected = legal_completions(reader.grammar, TOKENIZERS[tokenizer])
    assert sorted(completions) == sorted(expected)
    assert decoder.automaton.longest == max(map(len, expected))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-6)
    for prompt, row in zip(PROMPTS[:2], probabilities, strict=False):
        for place in range(0, len(completions), 5):
            logprob = masked_logprob(prompt, completions[place], expected, temperature)
            assert np.log(row[place]) == pytest.approx(logprob, abs=1e-5)


def test_constrained_samples_follow_the_enumerated_distribution():
    decoder, _ = constrained("mistral", max_chain_length=2)
    completions, (probabilities,) = decoder.enumerate(PROMPTS[:1])
    count = 20_000
    rows = decoder.sample(PROMPTS[:1] * count, range(count))
    place = {completion: i for i, completion in enumerate(completions)}
    counts = np.bincount([place[row.token_ids] for row in rows], minlength=len(completions))
    error = np.abs(counts / count - probabilities)
    assert (error < 4 * np.sqrt(probabilities / count) + 2e-4).all()
    for row in rows[:50]:
        assert np.exp(sum(row.logprobs)) == pytest.approx(probabilities[place[row.token_ids]])


def peak_bytes(monkeypatch, work):
    """Most bytes of keys and values that lived at the same time while `work` was done."""
    living, totals = [], [0]

    def note(cache):
        living.append(weakref.ref(cache.columns))
        columns = [tensor for ref in living if (tensor := ref()) is not None]
        totals.append(sum(c.numel() * c.element_size() for c in columns))
        return cache

    allocate, branch = RowCache.allocate, RowCache.branch
    with monkeypatch.context() as patch:
        patch.setattr(RowCache, "allocate", lambda *args: note(allocate(*args)))
        patch.setattr(RowCache, "branch", lambda *args: note(branch(*args)))
        result = work()
    return max(totals), result


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_enumeration_keeps_to_its_bytes_and_does_not_depend_on_them(tokenizer, monkeypatch):
    """363 completions to three prompts, whose caches take more than 2 MB at once."""
    work = partial(constrained(tokenizer, max_chain_length=5)[0].enumerate, PROMPTS[:3])
    peak, (completions, expected) = peak_bytes(monkeypatch, work)
    assert len(completions) == 363 and peak > 2e6
    for budget in (300_000, 1_000_000):
        monkeypatch.setitem(CACHE_BYTES, "cpu", budget)
        peak, (same_completions, found) = peak_bytes(monkeypatch, work)
        assert budget / 8 < peak <= budget
        assert completions == same_completions
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_one_row_is_held_where_none_fits(monkeypatch):
    decoder, _ = constrained()
    together = decoder.enumerate(PROMPTS)[1]
    monkeypatch.setitem(CACHE_BYTES, "cpu", 1)
    narrow = decoder.enumerate(PROMPTS)[1]
    np.testing.assert_allclose(narrow, together, atol=1e-6)


@pytest.mark.parametrize("max_chain_length", [1, 2])
def test_the_shortest_chains_can_be_enumerated_without_any_prompt(max_chain_length):
    decoder, reader = constrained(max_chain_length=max_chain_length)
    completions, probabilities = decoder.enumerate([])
    assert sorted(completions) == sorted(legal_completions(reader.grammar, TOKENIZER))
    assert probabilities.shape == (0, len(completions))


def test_forced_tokens_are_fed_together():
    model = test_decoding.make_model(len(TOKENIZERS["mistral"]))
    grammar = ChainGrammar(test_decoding.ACTIONS[:2], max_chain_length=2)
    automaton = build_automaton(grammar, TOKENIZERS["mistral"])
    decoder, fed = Decoder(model, 2, PREFIX, automaton=automaton), test_decoding.shapes_fed(model)
    (row,) = decoder.sample(PROMPTS[1:2], [0])
    draws = sum(logprob != 0 for logprob in row.logprobs)
    assert len(fed) <= draws < len(row.token_ids)
    # The prompt with `["`; then `move forward`, `", "`, ...: two tokens each time.
    assert fed[0] == (1, 2) and set(fed[1:]) <= {(1, 2)}


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_names_that_begin_others_are_told_apart_by_what_follows(tokenizer):
    names = ("turn", "turn left")
    grammar = ChainGrammar(names, max_chain_length=2)
    tokenizer = TOKENIZERS[tokenizer]
    automaton = build_automaton(grammar, tokenizer)
    model, eos = test_decoding.shared_model(), tokenizer.eos_token_id
    decoder = Decoder(model, eos, PREFIX, automaton=automaton)
    completions, _ = decoder.enumerate(PROMPTS[:1])
    assert sorted(completions) == sorted(legal_completions(grammar, tokenizer))


@pytest.mark.parametrize(("names", "token", "said"), [
    # The token `", "a` leaves one border, right behind the name, and there `a` begins `ab`.
    (("a", "ab"), '", "a', "begin another's"),
    (("ab", "a"), '", "a', "begin another's"),
    (("a", "b"), 'a", "b', "straddle"),
])  # fmt: skip
def test_a_tokenizer_that_does_not_tell_actions_apart_is_refused(names, token, said):
    tokenizer = test_decoding.wrapped(test_decoding.with_words([token]))
    with pytest.raises(DataError, match=said):
        build_automaton(ChainGrammar(names), tokenizer)
