"""How much memory a model will take, from its shape alone: nothing is downloaded or allocated.

What a pass keeps and what comes and goes in it is counted and not guessed: the trainers' passes and
the decoder run on tensors without numbers (`meta_models`).
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Literal, Self

import torch
from torch import nn
from torch.nn import functional
from transformers import MistralConfig

from lactchain.models.generation.cascade import CHUNK_TOKENS, COLUMNS, CascadeTrunk, use_cascade
from lactchain.models.meta_models import (
    NO_NUMBERS,
    Allocations,
    Heads,
    ModelSpec,
    PassSize,
    TextLengths,
    at_depth,
    base_of,
    build,
    critic_values,
    in_training,
    loss_of,
    quantised_layers,
    target_of,
)
from lactchain.models.runtime import device
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

QUANTISED_BYTES = {4: 0.5 + 1 / 64, 8: 1.0}
"""Of a weight in bitsandbytes' NF4 with doubly quantised scales, and in int8."""


@dataclass(frozen=True)
class MemoryEstimate:
    """What one process keeps in memory at its peak, in bytes.

    Attributes:
        num_parameters: number of weights, adapter and heads included.
        weights: the base; `mapped` of them lie in their files, and may leave the memory.
        adapter: beside it.
        heads: of a value model, with their target network.
        gradients, optimizer: of the trainable weights; Adam keeps two moments of each.
        activations: what the backward pass needs, logits apart.
        logits: tensors as wide as the vocabulary.
        passing: what comes and goes: recomputed layers, gradients of activations, copies.
        cache: keys and values, of the shared prefix and of the rows.
        gathered: what several processes hold twice: buckets of DDP, units of FSDP2.
        process: libraries and the device's own, before a model is loaded.
    """

    num_parameters: int = 0
    weights: int = 0
    mapped: int = 0
    adapter: int = 0
    heads: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    logits: int = 0
    passing: int = 0
    cache: int = 0
    gathered: int = 0
    process: int = 0

    @property
    def total(self) -> int:
        """All together."""
        return sum(getattr(self, name) for name in PARTS)

    @property
    def private(self) -> int:
        """What is not mapped from files."""
        return self.total - self.mapped

    def __add__(self, other: Self) -> Self:
        """Both at the same time."""
        return MemoryEstimate(*map(operator.add, astuple(self), astuple(other)))


PARTS = tuple(
    field.name for field in fields(MemoryEstimate) if field.name not in ("num_parameters", "mapped")
)
"""The parts of the total, in the order in which they are printed."""


@dataclass(frozen=True)
class Sharing:
    """How the processes of a training share its memory.

    Attributes:
        num_processes: all of them.
        how: alone; ddp, each has all; fsdp, each has a shard of all that lasts.
    """

    num_processes: int = 1
    how: Literal["alone", "ddp", "fsdp"] = "alone"


def training_memory(
    spec: ModelSpec,
    batch: PassSize,
    *,
    checkpointing: bool = False,
    autocast: bool = False,
    heads: Heads | None = None,
    sharing: Sharing = Sharing(),
) -> MemoryEstimate:
    """The memory that training a model takes.

    Args:
        spec: with an adapter this is trained; else all weights are.
        checkpointing: recompute the activations of each layer in the backward pass.
        autocast: the accelerator computes in bfloat16 whatever the weights' type.
        heads: of a value model.
    """
    kept = passed = spec
    if sharing.how == "fsdp" and autocast and spec.lora is None:
        # accelerate keeps what FSDP2 trains in float32, however it was loaded, and gathers 16 bits.
        kept, passed = (replace(spec, dtype=t) for t in (torch.float32, torch.bfloat16))
    lasting = _at_full_depth(kept, lambda spec: _lasting(spec, in_training(spec, heads)))
    step = _at_full_depth(
        passed,
        lambda spec: _pass_memory(in_training(spec, heads, checkpointing), batch, autocast, heads),
    )
    if sharing.how == "alone":
        return lasting + step
    if sharing.how == "ddp":
        return lasting + step + MemoryEstimate(gathered=lasting.gradients)  # its buckets
    shards = MemoryEstimate(*(size // sharing.num_processes for size in astuple(lasting)))
    # A layer in use and the next on its way; and what is in none: the root does not give it back.
    gathered = sum(p.nbytes for p in in_training(at_depth(kept, 2), heads).parameters())
    # Before it is spread each process holds all of the model, and its shard.
    loading = replace(lasting + shards, gradients=0, optimizer=0)
    training = shards + step + MemoryEstimate(gathered=gathered)
    return max(training, loading, key=lambda estimate: estimate.total)


def rollout_memory(
    spec: ModelSpec, lengths: TextLengths, rows: int, distinct: int
) -> MemoryEstimate:
    """The memory that a batch of completions takes.

    Args:
        spec: with the adapter, unless that is merged.
        lengths: of its longest texts.
        distinct: different prompts among the rows.
    """
    model, shared = build(spec), [0] * lengths.prefix
    head = model.get_output_embeddings().weight[: lengths.columns].detach()
    with NO_NUMBERS, torch.inference_mode(), _counting(model, lengths.columns) as counter:
        block = torch.zeros(rows, 1, dtype=torch.long)
        trunk = CascadeTrunk(model, shared, CHUNK_TOKENS[device().type])
        prefix_bytes = counter.live
        # Without gradients a layer leaves nothing but its part of the cache, which has all of them:
        # a pass through two peaks where one through all would.
        decoder = model.get_decoder()
        layers, decoder.layers = decoder.layers, decoder.layers[:2]
        with use_cascade(model):
            room = min(lengths.completion, COLUMNS)
            cache, _, _ = trunk.read([[*shared, *[0] * lengths.prompt]] * distinct, (), room)
            cache, read = cache.select(block[:, 0]), block[:, 0]
            while cache.valid.shape[1] < lengths.prompt + lengths.completion:
                cache.length = cache.valid.shape[1]  # full: a token more makes room, by a copy
                hidden, _ = trunk.feed(block, read, cache)
                # What the decoder draws from: probabilities, and their sums.
                functional.softmax(functional.linear(hidden, head).float() / 1.0, dim=-1).cumsum(
                    -1, dtype=torch.float64
                )
        cache.select(block[: rows * 3 // 4, 0])
        decoder.layers = layers
        held, logits = prefix_bytes + cache.columns.nbytes, counter.wide_peak
    passing = max(0, counter.peak - held - logits)
    return _weights(spec, model) + MemoryEstimate(cache=held, logits=logits, passing=passing)


def _at_full_depth(
    spec: ModelSpec, estimate: Callable[[ModelSpec], MemoryEstimate]
) -> MemoryEstimate:
    """An estimate from those of the same model with few layers: each layer takes as much."""
    num_layers = spec.shape.get_text_config().num_hidden_layers
    if num_layers <= 4:
        return estimate(spec)
    two, four = (estimate(at_depth(spec, depth)) for depth in (2, 4))
    sizes = zip(astuple(two), astuple(four), strict=True)
    return MemoryEstimate(*(a + (b - a) // 2 * (num_layers - 2) for a, b in sizes))


def scoring_memory(spec: ModelSpec, *, rows: int, tokens: int) -> MemoryEstimate:
    """The memory that a critic takes to value so many texts at once."""
    model = build(at_depth(spec, 2))
    with torch.inference_mode(), _counting(model) as counter:
        critic_values(model, PassSize(rows, tokens))
    return resting_memory(spec) + MemoryEstimate(passing=counter.peak)


def resting_memory(spec: ModelSpec) -> MemoryEstimate:
    """The weights of a model, and its adapter, as they are loaded to be used."""
    return _at_full_depth(spec, lambda spec: _weights(spec, build(spec)))


def _counting(model: nn.Module, width: int = 0) -> Allocations:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    lasting = [*model.parameters(), *model.buffers(), *gradients, *target_of(model)]
    return Allocations(*lasting, width=width)


def _pass_memory(
    model: nn.Module, batch: PassSize, autocast: bool, heads: Heads | None = None
) -> MemoryEstimate:
    """What a forward and a backward pass take beyond what lasts, to which gradients belong."""
    for weight in model.parameters():
        weight.grad = torch.empty_like(weight) if weight.requires_grad else None
    with _counting(model, base_of(model).config.get_text_config().vocab_size) as counter:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = loss_of(model, batch, heads)
        kept = counter.live - counter.wide
        loss.backward()
    logits = counter.wide_peak
    return MemoryEstimate(
        activations=kept, logits=logits, passing=max(0, counter.peak - kept - logits)
    )


def _lasting(spec: ModelSpec, model: nn.Module) -> MemoryEstimate:
    """What is there between two updates."""
    gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return _weights(spec, model) + MemoryEstimate(gradients=gradients, optimizer=2 * gradients)


def _weights(spec: ModelSpec, model: nn.Module) -> MemoryEstimate:
    """Of each parameter by its name; and of a target network."""
    sizes = {"weights": 0, "adapter": 0, "heads": sum(t.nbytes for t in target_of(model))}
    for name, parameter in model.named_parameters():
        heads = "heads" if name.startswith(("q_heads.", "v_head.")) else "weights"
        sizes["adapter" if "lora_" in name else heads] += parameter.nbytes
    if spec.bits is not None:
        for layer in quantised_layers(model):
            bits = QUANTISED_BYTES[spec.bits] - layer.weight.element_size()
            sizes["weights"] += round(layer.weight.numel() * bits)
    count = sum(p.numel() for p in model.parameters())
    return MemoryEstimate(count, mapped=sizes["weights"] if spec.mapped else 0, **sizes)


def memory_table(lora: LoraSettings) -> list[dict[str, str]]:
    """GiB that training the `SHAPES` takes in mixed precision, of 8 rows of 256 tokens each.

    With checkpointing; adapters lie beside weights in bfloat16, and all weights are in float32.
    """
    columns = {}
    for role, shape in zip(("actor", "critic"), SHAPES.values(), strict=True):
        task, loss = ("CAUSAL_LM", "preferences") if role == "actor" else ("SEQ_CLS", "critic")
        batch = PassSize(8, 256, scored=80, loss=loss)
        for name, adapter in ((f"LoRA {lora.r}", lora), ("all", None)):
            dtype = torch.float32 if adapter is None else torch.bfloat16
            spec = ModelSpec(shape, task, dtype, lora=adapter)
            estimate = training_memory(spec, batch, checkpointing=True, autocast=True)
            columns[f"{role}, {name}"] = estimate
    count = {name: f"{estimate.num_parameters / 1e9:.2f} B" for name, estimate in columns.items()}
    return [{"GiB": "parameters"} | count, *parts_table(columns, digits=1)]


def parts_table(
    estimates: Mapping[str, MemoryEstimate], digits: int, more: Mapping[str, Sequence[int]] = {}
) -> list[dict[str, str]]:
    """GiB of the parts that some of the estimates have, and of the total.

    Args:
        more: bytes of further rows by their names; they belong to no estimate.
    """
    parts = [part for part in PARTS if any(getattr(e, part) for e in estimates.values())]
    sizes = {part: [getattr(e, part) for e in estimates.values()] for part in (*parts, "total")}
    return [
        {"GiB": name}
        | {n: f"{size / 2**30:.{digits}f}" for n, size in zip(estimates, row, strict=True)}
        for name, row in {**sizes, **more}.items()
    ]
