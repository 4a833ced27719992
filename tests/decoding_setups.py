"""Tokenizers, an untrained model with opinions, and decoders of it."""

import functools
import itertools

import torch
from test_tiny_models import TOKENIZER
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

from lactchain.environments.extractors import make_extractor
from lactchain.models.generation.automaton import build_automaton
from lactchain.models.generation.decoding import Decoder
from lactchain.types import ChainGrammar

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
    return Tokenizer(
        models.BPE(ids, list(dict.fromkeys(merges)), unk_token="<unk>", byte_fallback=True)
    )


def wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def mistral_like() -> PreTrainedTokenizerFast:
    """As Mistral-7B's: a space is written ▁ and put before a text, and `",` is one token."""
    tokenizer = with_words(
        ['▁["', '▁{"', '▁"', '["', '",', '"]', '":', '""', '"}', '"]}',
         "move", "▁forward", "turn", "▁left", "▁right", "explain", "moves"]
    )  # fmt: skip
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
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
