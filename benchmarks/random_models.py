"""Checkpoints of the true architecture with random weights: a rehearsal needs no hub.

`build_actor` writes what `mistralai/Mistral-7B-Instruct-v0.3` is and `build_encoder` what
`Salesforce/SFR-Embedding-Mistral` is: their files, names of tensors, dtype and shards, their real
vocabularies (which the package mistral-common carries), and the actor's published chat template.
Width and depth are free. Weights are drawn and written a shard at a time, so that 7B take 5 GB.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mistral_common
import torch
from safetensors.torch import save_file
from transformers import (
    GenerationConfig,
    LlamaTokenizer,
    MistralConfig,
    MistralForCausalLM,
    MistralModel,
    PreTrainedModel,
)

from lactchain.models.runtime import quiet


def _mistral_7b(vocab_size: int, sliding_window: int | None, rope_theta: float) -> MistralConfig:
    return MistralConfig(
        vocab_size=vocab_size, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=32768,
        tie_word_embeddings=False,
        sliding_window=sliding_window,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
    )  # fmt: skip


SHAPES = {
    "mistralai/Mistral-7B-Instruct-v0.3": _mistral_7b(32768, None, 1e6),
    "Salesforce/SFR-Embedding-Mistral": _mistral_7b(32000, 4096, 1e4),
}
"""The shapes of the models of the founding document, as their own config.json has them."""

ACTOR, ENCODER = SHAPES
VOCABULARIES = Path(mistral_common.__file__).parent / "data"
ACTOR_VOCABULARY = VOCABULARIES / "mistral_instruct_tokenizer_240323.model.v3"
ENCODER_VOCABULARY = VOCABULARIES / "tokenizer.model.v1"

# What the published template of Mistral-7B-Instruct-v0.3 makes of a conversation without tools.
CHAT_TEMPLATE = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("expected user and assistant in turns, after a system message") }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- else %}
        {{- raise_exception("expected the roles system, user and assistant") }}
    {%- endif %}
{%- endfor %}
"""


def build_actor(folder: str | Path, seed: int = 0, **size: Any) -> None:
    """Writes a causal language model, its tokenizer and chat template to a folder.

    Args:
        size: see `_write_model`.
    """
    _write_model(Path(folder), MistralForCausalLM, SHAPES[ACTOR], seed, **size)
    GenerationConfig(bos_token_id=1, eos_token_id=2).save_pretrained(folder)
    _write_tokenizer(Path(folder), ACTOR_VOCABULARY, {"chat_template": CHAT_TEMPLATE})


def build_encoder(folder: str | Path, seed: int = 1, **size: Any) -> None:
    """Writes a bare decoder without a head, and its tokenizer; arguments as `build_actor`."""
    _write_model(Path(folder), MistralModel, SHAPES[ENCODER], seed, **size)
    _write_tokenizer(Path(folder), ENCODER_VOCABULARY, {"pad_token": "</s>", "add_eos_token": True})


def _at_size(shape: MistralConfig, hidden_size: int, num_layers: int) -> MistralConfig:
    """A shape at another width and depth; the vocabulary stays."""
    num_heads = max(4, hidden_size // 128)
    changes = {
        "hidden_size": hidden_size,
        "intermediate_size": hidden_size * 7 // 2,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads // 4,
        "head_dim": hidden_size // num_heads,
        # Sums over a width of terms of one size stay of one size.
        "initializer_range": shape.initializer_range * (4096 / hidden_size) ** 0.5,
    }
    return MistralConfig(**(shape.to_dict() | changes))


def _write_model(
    folder: Path,
    model_class: type[PreTrainedModel],
    true_shape: MistralConfig,
    seed: int,
    *,
    hidden_size: int = 4096,
    num_layers: int = 32,
    dtype: torch.dtype = torch.bfloat16,
    max_shard_size: int = 5 * 10**9,
) -> None:
    """Configuration, weights and their index.

    Args:
        hidden_size: a multiple of 8; all other widths follow from it as in the true model.
        max_shard_size: of a weight file, in bytes; a larger tensor has one for itself.
    """
    shape = _at_size(true_shape, hidden_size, num_layers)
    folder.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"), quiet():
        model = model_class(shape).to(dtype)
    shape.architectures, shape.dtype = [model_class.__name__], dtype
    shape.save_pretrained(folder)
    shards = list(_split(model.state_dict(), max_shard_size))
    generator = torch.Generator().manual_seed(seed)
    places: dict[str, str] = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_shard(folder / name, tensors, shape.initializer_range, generator)
        places |= dict.fromkeys(tensors, name)
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def _split(
    tensors: dict[str, torch.Tensor], max_shard_size: int
) -> Iterator[dict[str, torch.Tensor]]:
    """The tensors in their order, in shards of at most so many bytes."""
    shard: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if shard and sum(t.nbytes for t in shard.values()) + tensor.nbytes > max_shard_size:
            yield shard
            shard = {}
        shard[name] = tensor
    yield shard


def _write_shard(
    file: Path, shapes: dict[str, torch.Tensor], std: float, generator: torch.Generator
) -> None:
    """A weight file of ones for norms, and random numbers for all else."""
    drawn = {name: torch.ones(tensor.shape, dtype=tensor.dtype) for name, tensor in shapes.items()}
    for name, weights in drawn.items():
        if "norm" not in name:
            weights.normal_(0.0, std, generator=generator)
    save_file(drawn, file, {"format": "pt"})


def _write_tokenizer(folder: Path, vocabulary: Path, settings: dict[str, str | bool]) -> None:
    """`tokenizer.json` of a sentencepiece vocabulary, and `settings` in `tokenizer_config.json`."""
    shutil.copy(vocabulary, folder / "tokenizer.model")
    tokenizer = LlamaTokenizer.from_pretrained(
        folder, add_bos_token=True, legacy=False, model_max_length=32768
    )
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    written = json.loads(file.read_text("utf-8")) | settings
    file.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
