"""What a batch takes of memory, by formulas on its model's config.json.

A stage names the settings of its batches; `--dry_run` prints the formulas beside what the device
has. They are a first look at one process that holds all of a model: libraries, copies, and a critic
on another base that ranks beside the actor come on top. Nothing is refused by them.
"""

import os
from collections.abc import Sequence
from functools import reduce
from typing import Any

import psutil
import torch
from torch.nn import Linear
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from lactchain.config.settings import CriticConfig, EnvironmentConfig, LoraSettings, ModelConfig
from lactchain.config.strategies import resolve_strategy
from lactchain.environments.language import make_language_env
from lactchain.models.adapters import attach_lora
from lactchain.models.headed import value_encoder_class
from lactchain.models.loading import load_shape, resolve_dtype
from lactchain.models.runtime import device, free_memory, quiet
from lactchain.models.weights import resolve_weights
from lactchain.runs.console import console, plain, table
from lactchain.stages.stage_run import NOTHING_DONE, BatchSettings, mend

LETTERS_PER_TOKEN = 3
"""A cautious guess: English has more than four."""


def print_memory(config: Any, batches: Sequence[BatchSettings]) -> None:
    """Prints what each batch takes beside what the device has."""
    found = [(batch, sizes) for batch in batches if (sizes := memory_of(config, batch))]
    if not found:
        console.print(NOTHING_DONE)
    for batch, sizes in found:
        taken, free = sum(sizes.values()), available_memory()
        sizes |= {"total": taken, "available": free}
        title = f"{batch.rows or 'an episode'}, GiB on {device()}"
        table(title, [{name: f"{size / 2**30:.2f}" for name, size in sizes.items()}])
        if taken > free:
            console.print(plain(f"too much: {mend([batch])}"), soft_wrap=True)


def available_memory() -> int:
    """Bytes that the device has to give, this process's share of a computer's."""
    free_memory()
    if device().type == "cuda":
        return torch.cuda.mem_get_info(device())[0]
    return psutil.virtual_memory().available // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def memory_of(config: Any, batch: BatchSettings) -> dict[str, float]:
    """Bytes by what they are for; nothing where no model is loaded for such a batch."""
    group, model = _part(config, batch.rows), _part(config, batch.tokens)
    name = batch.rows.rpartition(".")[2]
    learns = name == "batch_size" and not getattr(model, "frozen", False)
    if None in (group, model) or (not learns and getattr(model, "served", None)):
        return {}
    built = on_meta(model, learns)
    shape = built.config.get_text_config()
    hidden, layers, vocabulary = shape.hidden_size, shape.num_hidden_layers, shape.vocab_size
    rows = getattr(group, name, 1) * getattr(group, "num_candidates", 1)
    prompt, completion = text_lengths(config.environment, model)
    tokens, answers = rows * (prompt + batch.texts * completion), rows * batch.texts * completion
    mixed = os.environ.get("ACCELERATE_MIXED_PRECISION") == "bf16"
    itemsize = 2 if mixed and learns else built.dtype.itemsize
    if not learns:
        return {
            "weights": weight_bytes(built, model.bits),
            "cache": 2 * _key_width(shape) * layers * tokens * itemsize,
            "logits": 16 * rows * vocabulary,  # with probabilities, and their sums in float64
        }
    heads = 4 * batch.heads * 2 * hidden * (hidden + vocabulary)
    learnt = heads + sum(w.nbytes for w in built.parameters() if w.requires_grad)
    # What a layer's backward pass reads: inputs of its norms and products, the adapter's as well.
    layer = 12 * hidden + 6 * (getattr(shape, "intermediate_size", None) or 4 * hidden)
    kept = layer + layers * hidden if group.gradient_checkpointing else layers * layer
    return {
        "weights": weight_bytes(built, model.bits) + batch.heads * heads,
        "gradients": learnt,
        "moments": 2 * learnt,
        "activations": tokens * kept * itemsize,
        "logits": 8 * answers * vocabulary * (1 + batch.heads),  # with their gradients
    }


def _key_width(shape: PretrainedConfig) -> int:
    """Width of the keys of a token in a layer."""
    queries = shape.num_attention_heads
    heads = getattr(shape, "num_key_value_heads", None) or queries
    return heads * (getattr(shape, "head_dim", None) or shape.hidden_size // queries)


def _part(config: Any, key: str) -> Any:
    """The part of a configuration in which a dotted setting is; None where there is none."""
    return reduce(lambda part, name: part and getattr(part, name), key.split(".")[:-1], config)


def text_lengths(environment: EnvironmentConfig, model: ModelConfig) -> tuple[int, int]:
    """Tokens of an episode's first prompt, and of a completion."""
    env = make_language_env(environment)
    names, longest = env.grammar.action_names, env.grammar.max_chain_length
    reads = isinstance(model, CriticConfig)
    text = model.instruction or "" if reads else resolve_strategy(model.strategy, names, longest)
    prompt = -(-len(text + env.reset(seed=0)[0]) // LETTERS_PER_TOKEN)
    return (min(prompt, model.max_length), 0) if reads else (prompt, model.max_new_tokens)


def on_meta(config: ModelConfig, learns: bool) -> PreTrainedModel:
    """The model as transformers and PEFT build it, of tensors without numbers."""
    reads = isinstance(config, CriticConfig)
    shape, lora = load_shape(resolve_weights(config.model)), getattr(config, "lora", None)
    if not reads and config.adapter is not None:
        lora = lora or LoraSettings()
    dtype = resolve_dtype(config, shape, all_trained=learns and lora is None)
    with torch.device("meta"), quiet():
        if reads:
            model = value_encoder_class(shape)._from_config(shape, dtype=dtype)
        else:
            model = AutoModelForCausalLM.from_config(shape, dtype=dtype)
        if not learns or lora is None:
            return model.requires_grad_(learns)
        return attach_lora(model, lora, "SEQ_CLS" if reads else "CAUSAL_LM")


def weight_bytes(model: PreTrainedModel, bits: int | None) -> float:
    """Bytes of all weights; those of linear layers are in fewer bits where they are quantised."""
    apart = {"lm_head", "score", "lora_A", "lora_B"}
    linear = [
        layer.weight
        for name, layer in model.named_modules()
        if isinstance(layer, Linear) and not apart & {*name.split(".")}
    ]
    saved = 0.0 if bits is None else sum(w.numel() * (w.itemsize - bits / 8) for w in linear)
    return sum(weight.nbytes for weight in model.parameters()) - saved
