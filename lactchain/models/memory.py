"""How much memory a model will take, from its shape alone: nothing is downloaded or allocated."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    MistralConfig,
    PretrainedConfig,
)

from lactchain.models.adapters import Task, attach_lora
from lactchain.models.loading import quiet
from lactchain.settings import LoraSettings

_MISTRAL_7B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
SHAPES = {
    "mistralai/Mistral-7B-Instruct-v0.3": MistralConfig(
        vocab_size=32768,
        sliding_window=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        **_MISTRAL_7B,
    ),
    "Salesforce/SFR-Embedding-Mistral": MistralConfig(
        vocab_size=32000,
        sliding_window=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        **_MISTRAL_7B,
    ),
}
"""The shapes of the models of the founding document, as their own config.json has them."""


@dataclass(frozen=True)
class MemoryEstimate:
    """What one process that trains keeps in memory, in bytes.

    Attributes:
        num_parameters, num_trainable: numbers of weights, adapter included.
        weights: base and adapter.
        gradients, optimizer: of the trainable weights; Adam keeps two moments of each.
        activations: what the backward pass needs, logits included; rough.
    """

    num_parameters: int
    num_trainable: int
    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All together."""
        return self.weights + self.gradients + self.optimizer + self.activations


def estimate_memory(
    shape: PretrainedConfig,
    task: Task = "CAUSAL_LM",
    lora: LoraSettings | None = None,
    *,
    bytes_per_weight: float = 2.0,
    batch_size: int = 8,
    num_tokens: int = 256,
    checkpointing: bool = False,
) -> MemoryEstimate:
    """The memory that training a model of this shape takes.

    Args:
        lora: the adapter, kept in float32; None trains all weights.
        bytes_per_weight: of the base: 4 float32, 2 bfloat16, 1 and 0.5 quantised. Activations
            take as much per number, and at least 2 bytes.
        batch_size, num_tokens: rows of a forward pass, and tokens of each.
        checkpointing: recompute the activations of each layer in the backward pass.
    """
    num_base, num_all, num_trainable = _count(shape, task, lora)
    num_adapter = num_all - num_base
    bytes_per_number = max(2.0, bytes_per_weight)
    bytes_per_trainable = 4.0 if lora is not None else bytes_per_weight
    numbers = _activations(shape, batch_size * num_tokens, checkpointing)
    logits = shape.vocab_size * batch_size * num_tokens if task == "CAUSAL_LM" else 0
    return MemoryEstimate(
        num_parameters=num_all,
        num_trainable=num_trainable,
        weights=round(num_base * bytes_per_weight + num_adapter * 4),
        gradients=round(num_trainable * bytes_per_trainable),
        optimizer=round(num_trainable * bytes_per_trainable * 2),
        # Logits once as they are; in float32, log-probabilities and their gradient.
        activations=round(numbers * bytes_per_number + logits * (bytes_per_number + 8)),
    )


def _count(shape: PretrainedConfig, task: Task, lora: LoraSettings | None) -> tuple[int, int, int]:
    """Numbers of weights of the base, of base and adapter, and of those that are trained."""
    with torch.device("meta"), quiet():
        if task == "CAUSAL_LM":
            model = AutoModelForCausalLM.from_config(shape)
        else:
            labelled = copy.deepcopy(shape)
            labelled.num_labels = 1
            model = AutoModelForSequenceClassification.from_config(labelled)
        num_base = sum(weight.numel() for weight in model.parameters())
        if lora is not None:
            model = attach_lora(model, lora, task)
    weights = list(model.parameters())
    trainable = sum(weight.numel() for weight in weights if weight.requires_grad)
    return num_base, sum(weight.numel() for weight in weights), trainable


def _activations(shape: PretrainedConfig, num_positions: int, checkpointing: bool) -> int:
    """Numbers that the layers of a Llama-like model keep for the backward pass.

    Each layer keeps, per position: inputs, norms and sums of both halves (about 8 hidden sizes),
    queries, keys and values before and after rotation, and the MLP's four intermediate results.
    Attention is computed without keeping its matrix. With checkpointing each layer keeps its input,
    and one layer at a time is whole.
    """
    head = shape.hidden_size // shape.num_attention_heads
    attention = 2 * head * (shape.num_attention_heads + 2 * shape.num_key_value_heads)
    per_layer = 8 * shape.hidden_size + attention + 4 * shape.intermediate_size
    if not checkpointing:
        return num_positions * per_layer * shape.num_hidden_layers
    return num_positions * (shape.hidden_size * shape.num_hidden_layers + per_layer)


def memory_table(lora: LoraSettings) -> list[dict[str, str]]:
    """GiB that training the `SHAPES` takes: bfloat16, 8 rows of 256 tokens, checkpointing."""
    columns = {}
    tasks: tuple[Task, ...] = ("CAUSAL_LM", "SEQ_CLS")
    for role, shape, task in zip(("actor", "critic"), SHAPES.values(), tasks, strict=True):
        columns[f"{role}, LoRA {lora.r}"] = estimate_memory(shape, task, lora, checkpointing=True)
        columns[f"{role}, all"] = estimate_memory(shape, task, checkpointing=True)
    parts = ("weights", "gradients", "optimizer", "activations", "total")
    count = {name: f"{estimate.num_parameters / 1e9:.2f} B" for name, estimate in columns.items()}
    return [{"GiB": "parameters"} | count] + [
        {"GiB": part}
        | {name: f"{getattr(estimate, part) / 2**30:.1f}" for name, estimate in columns.items()}
        for part in parts
    ]
