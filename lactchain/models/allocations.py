"""Counts the bytes of the tensors that code makes, whether there is memory behind them or not.

On the meta device a model of any size is built and run in a second and takes nothing: what the
code would have allocated is known from the shapes. So the memory of a training step is that of the
layers and adapters that will run, and not of a formula about them. What else a step does is written
down again in `meta_models`: losses, quantised layers, autocast; and attention here.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, use_gqa_in_sdpa

COUNTED = "lactchain_counted"
"""The attention of a model on the meta device."""


class Allocations(TorchDispatchMode):
    """Bytes of the tensors that are made while it is entered; those made before do not count.

    Attributes:
        live: bytes of the tensors that exist.
        peak: the greatest value of `live`.
        wide, wide_peak: the same, of tensors whose last dimension is `width`, such as logits.
    """

    def __init__(self, *before: Tensor, width: int = 0) -> None:
        """Counts nothing yet.

        Args:
            before: tensors that exist already, of which operations may return views.
            width: of the tensors to count apart.
        """
        super().__init__()
        self.live = self.peak = self.wide = self.wide_peak = 0
        self._width = width
        self._known: set[int] = {tensor.untyped_storage()._cdata for tensor in before}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._add(leaf)
        return result

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._known:
            return
        size = storage.nbytes()
        wide = size if tensor.shape[-1:] == (self._width,) else 0
        self._known.add(storage._cdata)
        weakref.finalize(storage, self._drop, storage._cdata, size, wide)
        self.live, self.wide = self.live + size, self.wide + wide
        self.peak, self.wide_peak = max(self.peak, self.live), max(self.wide_peak, self.wide)

    def _drop(self, key: int, size: int, wide: int) -> None:
        self._known.discard(key)
        self.live, self.wide = self.live - size, self.wide - wide


class _FusedAttention(torch.autograd.Function):
    """Attention without its numbers, which keeps for the backward pass what a fused kernel does."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        output = torch.empty_like(query)
        log_sums = torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)
        ctx.save_for_backward(query, key, value, mask, output, log_sums)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return *(torch.empty_like(tensor) for tensor in ctx.saved_tensors[:3]), None


def counted_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """What transformers does around torch's fused kernels; on the meta device torch has none."""
    # Under autocast rotated queries and keys are in float32, and attention is not.
    query, key = query.to(value.dtype), key.to(value.dtype)
    if not use_gqa_in_sdpa(attention_mask, key, value):
        groups = query.shape[1] // key.shape[1]
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    output = _FusedAttention.apply(query, key, value, attention_mask)
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(COUNTED, counted_attention)
