"""Decoding: the model's own distribution, whatever is shared, cut off, branched or constrained."""

import functools
import itertools

import numpy as np
import pytest
import torch
from test_tiny_models import TOKENIZER
from tokenizers import Tokenizer, decoders, models, normalizers
from training_setups import nudge
from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

from lactchain import ActorConfig, ChainGrammar, LanguageActor, LoraSettings, make_extractor
from lactchain.errors import ConfigError, NonFiniteError
from lactchain.functional.random_streams import draw, uniform
from lactchain.models.adapters import attach_lora, merged
from lactchain.models.generation import cascade
from lactchain.models.generation.automaton import build_automaton
from lactchain.models.generation.decoding import Decoder

ACTIONS = ("move forward", "turn left", "turn right")
PREFIX = (1, 3, 40, 41, 42, 43, 44)
PROMPTS = [[*PREFIX, *range(50 + n, 50 + 2 * n)] for n in (3, 1, 6, 4, 9)]


def with_words(words: list[str], **kwargs) -> Tokenizer:
    """BPE that knows these words, earlier ones first, and all bytes."""
    merges = [(word[:i], word[i]) for word in words for i in range(1, len(word))]
    letters = sorted({letter for word in words for letter in word} | {"▁"})
    vocab = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *letters]
    pieces = dict.fromkeys([*vocab, *(left + right for left, right in merges)])
    ids = {piece: i for i, piece in enumerate(pieces)}
    merges = list(dict.fromkeys(merges))
    return Tokenizer(models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True))


def wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def mistral_like() -> PreTrainedTokenizerFast:
    """As Mistral-7B's: a space is written ▁ and put before a text, and `",` is one token."""
    tokenizer = with_words(
        ['▁["', '▁{"', '▁"', '["', '",', '"]', '":', '""', '"}', '"]}',
         "move", "▁forward", "turn", "▁left", "▁right", "explain", "moves"]
    )  # fmt: skip
    written = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(written)
    read = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(read)
    return wrapped(tokenizer)


TOKENIZERS = {"tiny": TOKENIZER, "mistral": mistral_like()}


def make_model(vocab_size: int = len(TOKENIZER), **kwargs) -> MistralForCausalLM:
    """An untrained model with opinions: its weights are large enough to make choices differ."""
    config = MistralConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, vocab_size=vocab_size, initializer_range=0.1, sliding_window=None,
        eos_token_id=TOKENIZER.eos_token_id, **kwargs,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MistralForCausalLM(config).eval()


@functools.cache
def shared_model() -> MistralForCausalLM:
    return make_model(max(map(len, TOKENIZERS.values()))).requires_grad_(False)


def logprobs_of(model, prompt, completion, temperature=1.0):
    """Log-probabilities (L, V) at every token of a completion, by a plain forward."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.float() / temperature, dim=-1)


def constrained(tokenizer_name="tiny", extractor="json_list", max_chain_length=3, **kwargs):
    """A constrained decoder, and the extractor whose grammar it speaks."""
    tokenizer = TOKENIZERS[tokenizer_name]
    reader = make_extractor(extractor, ACTIONS, max_chain_length)
    automaton = build_automaton(reader.grammar, tokenizer)
    eos = tokenizer.eos_token_id
    return Decoder(shared_model(), eos, PREFIX, automaton=automaton, **kwargs), reader


def legal_completions(grammar: ChainGrammar, tokenizer) -> list[tuple[int, ...]]:
    """The tokens of every legal completion, by the tokenizer itself."""
    chains = itertools.chain.from_iterable(
        itertools.product(range(len(grammar.action_names)), repeat=length)
        for length in range(1, grammar.max_chain_length + 1)
    )
    texts = [grammar.render(chain) for chain in chains]
    encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return [(*ids, tokenizer.eos_token_id) for ids in encoded]


def generated(model, prompt, num_tokens, eos=None):
    """What the library's own greedy `generate` answers to one prompt."""
    settings = {"max_new_tokens": num_tokens, "do_sample": False, "pad_token_id": 0}
    model.generation_config.eos_token_id = eos
    return model.generate(torch.tensor([prompt]), **settings)[0, len(prompt) :].tolist()


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
        plain = logprobs_of(shared_model(), prompt, row.token_ids, temperature)
        expected = plain[range(12), row.token_ids]
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
            plain = logprobs_of(shared_model(), prompt, completion, temperature)
            expected = plain[range(len(completion)), completion].sum().item()
            assert log_prob == pytest.approx(expected, abs=1e-4)
    with pytest.raises(ValueError, match="expected a free decoder"):
        constrained()[0].log_probs(PROMPTS[:1], completions)


@pytest.mark.parametrize("kind", ["free", "constrained"])
def test_equal_seeds_give_equal_tokens_in_any_batch(kind):
    free = Decoder(shared_model(), 2, PREFIX, max_new_tokens=10)
    decoder = free if kind == "free" else constrained("mistral")[0]
    prompts, seeds = PROMPTS * 4, list(range(7, 27))
    rows = decoder.sample(prompts, seeds)
    assert len({row.token_ids for row in rows}) > 5 and decoder.sample(prompts, seeds) == rows
    order = np.random.default_rng(0).permutation(len(prompts))
    for batch in (order, *order.reshape(-1, 4)):
        found = decoder.sample([prompts[i] for i in batch], [seeds[i] for i in batch])
        assert [row.token_ids for row in found] == [rows[i].token_ids for i in batch]


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


def shapes_fed(model):
    """The shapes of what a model reads from now on."""
    fed = []
    note = lambda module, args, kwargs: fed.append(tuple(kwargs["input_ids"].shape))  # noqa: E731
    model.model.register_forward_pre_hook(note, with_kwargs=True)
    return fed


def test_samples_of_one_prompt_share_one_reading_of_it():
    model = make_model()
    decoder, fed = Decoder(model, -1, PREFIX, max_new_tokens=3), shapes_fed(model)
    prompts = [PROMPTS[0]] * 6 + [PROMPTS[1]] * 2
    rows = decoder.sample(prompts, range(8))
    assert fed == [(2, 3), (8, 1), (8, 1)]
    alone = [decoder.sample([prompt], [seed])[0] for seed, prompt in enumerate(prompts)]
    assert [row.token_ids for row in rows] == [row.token_ids for row in alone]


def test_reading_prompts_in_parts_changes_nothing(monkeypatch):
    decoder = Decoder(shared_model(), -1, PREFIX, max_new_tokens=6)
    whole = decoder.sample(PROMPTS, range(5))
    monkeypatch.setitem(cascade.CHUNK_TOKENS, "cpu", 20)
    parts = decoder.sample(PROMPTS, range(5))
    assert [row.token_ids for row in parts] == [row.token_ids for row in whole]


def test_an_adapter_speaks_the_same_merged_and_as_it_is():
    lora = attach_lora(make_model(), LoraSettings(r=4, alpha=32), "CAUSAL_LM")
    nudge(lora, 0.2)  # it changes what the model says
    settings = {"prefix_ids": PREFIX, "max_new_tokens": 8, "temperature": 0}
    as_it_is = Decoder(lora, -1, **settings).sample(PROMPTS, range(5))
    expected = [generated(lora, prompt, 8) for prompt in PROMPTS]
    whole = Decoder(merged(lora), -1, **settings).sample(PROMPTS, range(5))
    base = Decoder(make_model(), -1, **settings).sample(PROMPTS, range(5))
    for one, other, tokens in zip(whole, as_it_is, expected, strict=True):
        assert list(one.token_ids) == list(other.token_ids) == tokens
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert [row.token_ids for row in base] != [row.token_ids for row in whole]


def test_a_model_in_training_is_put_back_as_it_was_also_when_sampling_fails():
    model, plain = make_model(attn_implementation="eager").train(), make_model()
    model.activation_checkpointing_enable()
    coldest = Decoder(model, -1, PREFIX, max_new_tokens=6, temperature=1e-40)
    decoder = Decoder(model, -1, PREFIX, max_new_tokens=6, temperature=0)
    rows = decoder.sample(PROMPTS, range(5))
    cold = coldest.sample(PROMPTS, range(5))
    assert [row.token_ids for row in cold] == [row.token_ids for row in rows]
    assert [list(row.token_ids) for row in rows] == [generated(plain, p, 6) for p in PROMPTS]
    with pytest.raises(IndexError):
        decoder.sample([[*PREFIX, 10**6]], [0])
    assert model.training and model.config._attn_implementation == "eager"
    assert model(torch.tensor([PROMPTS[0]])).logits.requires_grad


def test_completions_are_cut_at_the_longest_and_say_so():
    decoder = Decoder(shared_model(), -1, PREFIX, max_new_tokens=5)
    first, *rest = decoder.sample(PROMPTS, range(5))
    for row in (first, *rest):
        assert (len(row.token_ids), len(row.logprobs), row.stop_reason) == (5, 5, "length")
    eos = first.token_ids[1]
    ended = Decoder(shared_model(), eos, PREFIX, max_new_tokens=5).sample(PROMPTS[:1], [0])[0]
    assert ended.token_ids == first.token_ids[: first.token_ids.index(eos) + 1]
    assert ended.stop_reason == "stop"


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


def test_misuse_is_refused():
    free = Decoder(shared_model(), 2, PREFIX)
    assert free.sample([], []) == []
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
