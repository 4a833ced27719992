"""Tiny Mistrals, built from a config instead of downloaded: the default models of a fresh machine.

They are saved as any Hugging Face model is, and loaded back by the very code that loads
`mistralai/Mistral-7B-Instruct-v0.3` and `Salesforce/SFR-Embedding-Mistral`.
"""

from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

from lactchain.config.weights import TinyModelConfig
from lactchain.models.runtime import quiet

BOS, EOS, PAD, OPEN, CLOSE = SPECIAL_TOKENS = ("<s>", "</s>", "<pad>", "[INST]", "[/INST]")

# What one token can at most hold. An action of a JSON list with the punctuation behind it is one
# piece (`"turn left", ` or, at the end, `"turn left"]`), so a chain of k actions costs k + 2 tokens
# with `[` and the end of sequence, and the same tokens may follow after every action. Digits stand
# alone but for a minus sign, as numbers of any size must be readable, and but for the letter of a
# square such as `e4`; a word takes its leading space with it.
PIECES = (
    r'"[^"\\\n]*"(?:, (?=")|\])'
    r"|\["
    r"| ?(?<!\p{N})\p{L}\p{N}(?![\p{L}\p{N}])"
    r"| ?\p{L}+"
    r"| ?-?\p{N}"
    r"| ?[^\s\p{L}\p{N}]+"
    r"|\s+"
)

# Mistral's arrangement: the system text, when there is one, opens the first user turn, and the end
# of sequence closes the assistant's. A prompt ends in `[/INST]`, which cannot merge with a
# completion.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}"
    "{% set system = messages[0]['content'] %}{% set turns = messages[1:] %}"
    "{% else %}"
    "{% set system = '' %}{% set turns = messages %}"
    "{% endif %}"
    "{% set opening = system + '\n\n' if system else '' %}"
    "{% for turn in turns %}"
    "{% if turn['role'] == 'user' %}"
    "{{ '[INST]' + (opening if loop.first else '') + turn['content'] + '[/INST]' }}"
    "{% elif turn['role'] == 'assistant' %}"
    "{% generation %}{{ turn['content'] + eos_token }}{% endgeneration %}"
    "{% else %}"
    "{{ raise_exception('expected the roles system, user and assistant, in this order') }}"
    "{% endif %}"
    "{% endfor %}"
)


def build_tiny_tokenizer(
    corpus: Iterable[str], vocab_size: int = TinyModelConfig.vocab_size
) -> PreTrainedTokenizerFast:
    """Byte-level BPE trained on `corpus`, with a Mistral-style chat template; no token is unknown.

    Merges stay inside `PIECES`; a piece that occurs once in the corpus is not worth a token.
    """
    tokenizer = Tokenizer(BPE())
    in_pieces = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([in_pieces, in_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        extra_special_tokens=[OPEN, CLOSE],
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def mistral_config(config: TinyModelConfig, tokenizer: PreTrainedTokenizerFast) -> MistralConfig:
    """A tiny shape as transformers wants it, with the vocabulary of `tokenizer`."""
    return MistralConfig(
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=2048,
        initializer_range=config.initializer_range,
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        sliding_window=None,
    )


def build_tiny_actor(
    path: str | Path, corpus: Iterable[str], config: TinyModelConfig | None = None, seed: int = 0
) -> None:
    """Writes an untrained actor to the folder `path`, and a tokenizer that learns from a corpus.

    The `seed` is of the weights; the global random state is left as it was.
    """
    config = config or TinyModelConfig()
    tokenizer = build_tiny_tokenizer(corpus, config.vocab_size)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MistralForCausalLM(mistral_config(config, tokenizer))
    with quiet():
        model.save_pretrained(path)
    tokenizer.save_pretrained(path)


def build_tiny_encoder(path: str | Path, actor: str | Path) -> None:
    """Writes an encoder, a bare `MistralModel`, that starts from the trunk of a tiny actor.

    SFR-Embedding-Mistral is a fine-tuned Mistral-7B in the same way: same shape, same tokenizer.
    """
    tokenizer = PreTrainedTokenizerFast.from_pretrained(actor)
    tokenizer.padding_side = "right"
    with quiet():
        actor_model = MistralForCausalLM.from_pretrained(actor, dtype="auto")
        actor_model.model.save_pretrained(path)
    tokenizer.save_pretrained(path)
