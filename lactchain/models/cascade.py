"""Attention over a shared prefix and a row's own tokens, with a preallocated cache.

All prompts of a language policy begin with the same instruction. Its keys and values are computed
once per policy version; every row then attends to them by one matrix product for the whole batch,
and to its own few tokens separately, under one softmax. Source of the idea: Hydragen (Juravsky
et al. 2024, arXiv:2402.05099) and cascade inference in FlashInfer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import AttentionInterface, DynamicCache, PreTrainedModel

CASCADE = "lactchain_cascade"


def cascade_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    prefix: list[tuple[Tensor, Tensor]],
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Attends to the shared prefix and to the row's own columns under one softmax.

    Args:
        query: (B, H, Q, D), the new tokens of each row.
        key: (B, Hkv, L, D), the row's own columns so far, the new ones included.
        value: like `key`.
        attention_mask: additive (B, 1, Q, L), over the row's own columns.
        scaling: the factor on the scores.
        prefix: per layer, keys and values (Hkv, P, D) that all rows share; P may be 0.

    Returns:
        (B, Q, H, D), and no weights.
    """
    prefix_key, prefix_value = prefix[module.layer_idx]
    batch, heads, steps, dim = query.shape
    kv_heads, prefix_length = prefix_key.shape[:2]
    per_row = (batch, kv_heads, heads // kv_heads * steps)
    grouped = (query * scaling).reshape(*per_row, dim)
    shared = grouped.transpose(0, 1).reshape(kv_heads, -1, dim)

    scores = grouped.new_empty(*per_row, prefix_length + key.shape[2])
    to_prefix = shared @ prefix_key.transpose(1, 2)
    scores[..., :prefix_length] = to_prefix.view(kv_heads, batch, -1, prefix_length).transpose(0, 1)
    own = grouped @ key.transpose(2, 3)
    own_by_step = own.view(batch, heads, steps, -1) + attention_mask
    scores[..., prefix_length:] = own_by_step.view_as(own)
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)

    output = weights[..., prefix_length:] @ value
    prefix_weights = (
        weights[..., :prefix_length].transpose(0, 1).reshape(kv_heads, -1, prefix_length)
    )
    output = output + (prefix_weights @ prefix_value).view(kv_heads, *per_row[::2], dim).transpose(
        0, 1
    )
    return output.view(batch, heads, steps, dim).transpose(1, 2), None


AttentionInterface.register(CASCADE, cascade_attention)


@contextmanager
def use_cascade(model: PreTrainedModel) -> Iterator[None]:
    """Runs `model` in evaluation mode with cascade attention, and puts both back afterwards.

    With gradient checkpointing on and in train mode a loop with cached keys is silently wrong.
    """
    was_training, before = model.training, model.config._attn_implementation
    model.eval()
    model.set_attn_implementation(CASCADE)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
        model.train(was_training)


@torch.inference_mode()
def prefix_keys_values(
    model: PreTrainedModel, prefix_ids: Sequence[int]
) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of the shared prefix, (Hkv, P, D) per layer, for the current weights."""
    config = model.config
    if not prefix_ids:
        kv_heads = config.num_key_value_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        nothing = torch.empty(kv_heads, 0, dim, dtype=model.dtype, device=model.device)
        return [(nothing, nothing)] * config.num_hidden_layers
    cache = DynamicCache()
    model.get_decoder()(torch.tensor([prefix_ids], device=model.device), past_key_values=cache)
    return [(layer.keys[0], layer.values[0]) for layer in cache.layers]


class RowCache:
    """Keys and values of each row's own tokens, written in place into preallocated columns.

    All rows write to the same columns, so a step is a slice and not a scatter; `valid` (B, L) says
    which columns of a row hold a token of its own and which hold padding.
    """

    def __init__(self, batch: int, capacity: int, device: torch.device) -> None:
        self.capacity, self.length = capacity, 0
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.valid = torch.zeros(batch, capacity, dtype=torch.bool, device=device)

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Writes a block of new columns (B, Hkv, Q, D); returns all columns so far."""
        batch, kv_heads, steps, dim = key.shape
        if layer_idx == len(self.keys):
            shape = (batch, kv_heads, self.capacity, dim)
            self.keys.append(key.new_empty(shape))
            self.values.append(value.new_empty(shape))
        start = self.length - steps
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys[:, :, start : self.length] = key
        values[:, :, start : self.length] = value
        return keys[:, :, : self.length], values[:, :, : self.length]

    def append(self, valid: Tensor, dtype: torch.dtype) -> Tensor:
        """Opens columns for a block of tokens; returns its additive mask (B, 1, Q, L).

        Args:
            valid: (B, Q), False where the block is padding.
            dtype: of the scores that the mask is added to.
        """
        steps = valid.shape[1]
        start, self.length = self.length, self.length + steps
        if self.length > self.capacity:
            self._grow(max(self.length, 2 * self.capacity))
        self.valid[:, start : self.length] = valid
        columns = torch.arange(self.length, device=valid.device)
        causal = columns <= torch.arange(start, self.length, device=valid.device)[:, None]
        visible = causal & self.valid[:, None, : self.length]
        mask = torch.zeros(visible.shape, dtype=dtype, device=valid.device)
        return mask.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]

    def select(self, rows: Tensor, capacity: int | None = None) -> RowCache:
        """A cache of the given rows (N,), repeats allowed: drops finished rows, branches prompts."""
        selected = RowCache(len(rows), capacity or self.capacity, rows.device)
        selected.length = used = self.length
        selected.valid[:, :used] = self.valid[rows, :used]
        for mine, theirs in ((self.keys, selected.keys), (self.values, selected.values)):
            for tensor in mine:
                copy = tensor.new_empty(
                    len(rows), tensor.shape[1], selected.capacity, tensor.shape[3]
                )
                torch.index_select(tensor[:, :, :used], 0, rows, out=copy[:, :, :used])
                theirs.append(copy)
        return selected

    def _grow(self, capacity: int) -> None:
        extra = capacity - self.capacity
        self.capacity = capacity
        self.valid = torch.nn.functional.pad(self.valid, (0, extra))
        self.keys = [torch.nn.functional.pad(key, (0, 0, 0, extra)) for key in self.keys]
        self.values = [torch.nn.functional.pad(value, (0, 0, 0, extra)) for value in self.values]
