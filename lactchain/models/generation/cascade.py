"""Attention over a shared prefix and a row's own tokens, with a preallocated cache.

The prefix's keys and values are computed once; every row then attends to them by one matrix product
for the whole batch, and to its own few tokens separately, under one softmax. Source of the idea:
Hydragen (Juravsky et al. 2024, arXiv:2402.05099) and cascade inference in FlashInfer.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AttentionInterface, DynamicCache, PreTrainedModel

from lactchain.models.attention import additive_mask, check_family
from lactchain.models.runtime import evaluating

CASCADE = "lactchain_cascade"

# Room for so many new tokens is made at a time.
COLUMNS = 32

# Prompts are read in parts of about so many tokens. On a CPU activations of larger ones leave the
# caches. On a GPU a 7B model in bfloat16 takes about 150 kB a token, so this many take 2.5 GB.
CHUNK_TOKENS = {"cpu": 2048, "cuda": 16384}

# Keys and values that trees of completions are read with, at most: some 10 rows of the nine-move
# completions of a 7B model on a CPU, and some 75 on a GPU, which leaves room for two such models.
CACHE_BYTES = {"cpu": 2**30, "cuda": 2**33}


def cascade_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    prefix: Tensor,
    softcap: float | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Attends to the shared prefix and to the row's own columns under one softmax.

    Of the last layer a decoder reads the last position only: the others are not computed there,
    and get a copy of it. Heads stand before rows in what is multiplied here, so that the scores on
    the prefix are one matrix per key head.

    Args:
        query: (B, H, Q, D), the new tokens of each row.
        key, value: (Hkv, B, C, D), the row's own columns, the new ones included.
        attention_mask: additive (B, 1, Q, C), over the row's own columns.
        prefix: (layers, 2, Hkv, P, D), keys and values that all rows share; P may be 0.
        softcap: bound that scores approach (Gemma 2).

    Returns:
        (B, Q, H, D), and no weights.
    """
    prefix_key, prefix_value = prefix[module.layer_idx]
    kv_heads, shared, dim = prefix_key.shape
    batch, heads, new, _ = query.shape
    if module.layer_idx == len(prefix) - 1:
        query, attention_mask = query[:, :, -1:], attention_mask[:, :, -1:]
    steps = query.shape[2]
    # Query heads that share a key head stand in a group: (Hkv, B, Q, G).
    shape = (kv_heads, batch, steps, heads // kv_heads)
    grouped = query.transpose(1, 2).unflatten(2, (kv_heads, -1)).permute(2, 0, 1, 3, 4)
    grouped = grouped.contiguous().mul_(scaling)

    # One row of scores holds the prefix first and the row's own columns behind it; so both stand
    # under one softmax, though two products fill them. `by_head` is a view of the same numbers.
    scores = grouped.new_empty(kv_heads, grouped[0, ..., 0].numel(), shared + key.shape[2])
    by_head = scores.view(*shape, -1)
    torch.bmm(grouped.flatten(1, 3), prefix_key.mT, out=scores[..., :shared])
    own = torch.bmm(grouped.view(kv_heads * batch, -1, dim), key.flatten(0, 1).mT)
    if softcap is not None:
        for part in (scores[..., :shared], own):
            part.div_(softcap).tanh_().mul_(softcap)
    mask = attention_mask.transpose(1, 2)
    torch.add(own.view(*shape, -1), mask, out=by_head[..., shared:])
    weights = by_head.softmax(-1, dtype=torch.float32).to(value.dtype).view_as(scores)

    # The weighted sum comes in two parts as well, and the second is added in place.
    output = torch.bmm(weights[..., :shared], prefix_value)
    own_weights = weights.view(*own.shape[:2], -1)[..., shared:]
    output.view(*own.shape[:2], dim).baddbmm_(own_weights, value.flatten(0, 1))
    output = output.view(*shape, dim).permute(1, 2, 0, 3, 4).flatten(2, 3)
    return output.expand(-1, new, -1, -1), None


AttentionInterface.register(CASCADE, cascade_attention)


def trimmed(blocks: np.ndarray) -> np.ndarray:
    """Blocks (B, W) without the columns that are padding in all of them."""
    return blocks[:, (blocks >= 0).any(axis=0)]


@dataclass
class RowCache:
    """Keys and values of each row's own tokens, written in place into preallocated columns.

    All rows write to the same `columns`, (layers, 2, Hkv, B, C, D), so a step is a slice and not a
    scatter. Those from `length` on are not open yet, zero and masked: a batch of matrices is
    multiplied faster whole than cut. `valid` (B, C) is where a column holds a token of the row.
    """

    columns: Tensor
    valid: Tensor
    length: int = 0

    @classmethod
    def allocate(cls, batch: int, capacity: int, prefix: Tensor) -> Self:
        """A cache with room for so many columns, of rows that share `prefix`."""
        columns = prefix.new_zeros(*prefix.shape[:3], batch, capacity, prefix.shape[-1])
        return cls(columns, torch.zeros(batch, capacity, dtype=torch.bool, device=prefix.device))

    def select(self, rows: Tensor) -> Self:
        """A cache of the given rows (N,), repeats allowed: drops what is done, branches prompts."""
        return RowCache(self.columns.index_select(3, rows), self.valid[rows], self.length)

    def branch(self, rows: Tensor, room: int) -> Self:
        """The same, with the columns that are open and room for so many more, and no others."""
        shape = (*self.columns.shape[:3], len(rows), self.length + room, self.columns.shape[-1])
        columns = self.columns.new_zeros(shape)
        # Layer by layer: a selection of all of them, to copy from, is as large as the cache.
        for new, old in zip(columns, self.columns, strict=True):
            new[..., : self.length, :] = old[..., : self.length, :].index_select(2, rows)
        return RowCache(columns, pad(self.valid[rows, : self.length], (0, room)), self.length)

    def append(self, valid: Tensor) -> Tensor:
        """Opens columns for a block, `valid` (B, Q) but for padding; which they see, (B, Q, C)."""
        start, self.length = self.length, self.length + valid.shape[1]
        missing = self.length - self.valid.shape[1]
        if missing > 0:
            extra = max(missing, COLUMNS)
            self.valid = pad(self.valid, (0, extra))
            self.columns = pad(self.columns, (0, 0, 0, extra))
        self.valid[:, start : self.length] = valid
        columns = torch.arange(self.valid.shape[1], device=valid.device)
        causal = columns <= columns[start : self.length, None]
        return causal & self.valid[:, None]

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Writes a block (B, Hkv, Q, D) to the columns opened last; returns all (Hkv, B, C, D)."""
        keys, values = self.columns[layer_idx]
        start = self.length - key.shape[2]
        keys[:, :, start : self.length] = key.transpose(0, 1)
        values[:, :, start : self.length] = value.transpose(0, 1)
        return keys, values


class CascadeTrunk:
    """A causal language model without its output layer, fed a block at a time; see `Decoder`.

    The prefix's keys and values, (layers, 2, Hkv, P, D), are for the weights as they are.
    """

    @torch.inference_mode()
    def __init__(self, model: PreTrainedModel, prefix_ids: Sequence[int]) -> None:
        check_family(model)
        self.model = model
        self.prefix_ids = tuple(prefix_ids)
        self._backbone = model.get_decoder()
        # An empty prefix is a token that is cut off again: what comes out has the model's shapes.
        ids, cache = torch.tensor([self.prefix_ids or (0,)], device=model.device), DynamicCache()
        with evaluating(model):
            self._backbone(ids, past_key_values=cache)
        layers = [torch.cat([layer.keys, layer.values]) for layer in cache.layers]
        self._prefix = torch.stack(layers)[..., : len(self.prefix_ids), :].contiguous()

    @property
    def bytes_per_column(self) -> int:
        """Size of the keys and values of one token, in all layers."""
        layers, both, kv_heads, _, dim = self._prefix.shape
        return layers * both * kv_heads * dim * self._prefix.element_size()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Has the model attend so, in evaluation mode, and puts both back afterwards."""
        before = self.model.config._attn_implementation
        with evaluating(self.model):
            self.model.set_attn_implementation(CASCADE)
            try:
                yield
            finally:
                self.model.set_attn_implementation(before)

    def read(
        self, prompts: Sequence[Sequence[int]], opening: Sequence[int] = (), room: int = 0
    ) -> tuple[RowCache, Tensor, Tensor]:
        """Reads B prompts, each with the prefix, and what every completion opens with.

        Returns the rows' cache with `room` for so many columns behind them (it grows where they do
        not suffice), the rows' lengths (B,), and the last hidden states (B, D).
        """
        start = len(self.prefix_ids)
        if any(tuple(p[:start]) != self.prefix_ids or len(p) == start for p in prompts):
            raise ValueError("prompts: expected the decoder's prefix, and more, in each")
        rows = [[*prompt[start:], *opening] for prompt in prompts]
        longest = max(map(len, rows))
        blocks = np.full((len(rows), longest), -1)
        for block, row in zip(blocks, rows, strict=True):
            block[longest - len(row) :] = row
        cache = RowCache.allocate(len(rows), longest + room, self._prefix)
        size = max(1, CHUNK_TOKENS[self.model.device.type] // longest)
        blocks, parts = torch.from_numpy(blocks).to(self.model.device), []
        views = blocks.split(size), cache.columns.split(size, dim=3), cache.valid.split(size)
        for block, columns, valid in zip(*views, strict=True):
            lengths = torch.full((len(block),), start, device=block.device)
            parts.append(self.feed(block, lengths, RowCache(columns, valid)))
        cache.length = longest
        hidden, lengths = (torch.cat(part) for part in zip(*parts, strict=True))
        return cache, lengths, hidden

    def feed(self, blocks: Tensor, lengths: Tensor, cache: RowCache) -> tuple[Tensor, Tensor]:
        """Feeds each row its block (B, W), padded with -1 on the left.

        Returns the last hidden state (B, D), and the lengths (B,) with the block.
        """
        valid = blocks >= 0
        padding = (~valid).sum(dim=1)
        offsets = torch.arange(blocks.shape[1], device=blocks.device) - padding[:, None]
        hidden = self._backbone(
            input_ids=blocks.clamp_min(0),
            position_ids=(lengths[:, None] + offsets).clamp_min(0),
            attention_mask=additive_mask(cache.append(valid), cache.columns.dtype),
            past_key_values=cache,
            use_cache=True,
            prefix=self._prefix,
        ).last_hidden_state
        return hidden[:, -1], lengths + valid.sum(dim=1)
