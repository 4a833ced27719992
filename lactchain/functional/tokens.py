"""Token-level plumbing: padding, masked means, pooling, log-probabilities of given tokens."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def pad(
    sequences: Sequence[Sequence[int]], value: int, side: Literal["left", "right"] = "right"
) -> Tensor:
    """Ids of B sequences of different lengths as one tensor (B, L), filled up with `value`."""
    rows = [torch.tensor(sequence, dtype=torch.long) for sequence in sequences]
    return pad_sequence(rows, batch_first=True, padding_value=value, padding_side=side)


def masked_mean(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of the entries where `mask` is true, over `dim` or over everything.

    Masked entries may hold anything, NaN included. A row with an empty mask is 0/0 and comes out
    as NaN on purpose: a row without tokens has no mean, and must be dropped before.
    """
    mask = mask.bool()
    return x.masked_fill(~mask, 0.0).sum(dim=dim) / mask.sum(dim=dim)


def token_logprobs(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Log-probability of each given token in float32, log softmax(logits)[token], (B, L).

    Gathers first and subtracts log Σ exp, so that no second (B, L, V) tensor of log-probabilities
    is made and kept for the backward pass.

    Args:
        logits: (B, L, V), already shifted: `logits[:, l]` predicts `token_ids[:, l]`.
        token_ids: (B, L).
    """
    if logits.shape[:-1] != token_ids.shape:
        raise ValueError(
            f"logits, token_ids: expected (B, L, V) and (B, L), got {tuple(logits.shape)} "
            f"and {tuple(token_ids.shape)}"
        )
    logits = logits.float()
    chosen = logits.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    return chosen - logits.logsumexp(dim=-1)


def pool(hidden: Tensor, attention_mask: Tensor, pooling: str) -> Tensor:
    """One embedding (B, D) per row of `hidden` (B, L, D): its last real token, or their mean."""
    if pooling == "last":
        positions = torch.arange(hidden.shape[1], device=hidden.device)
        last = (positions * attention_mask).argmax(dim=1)
        return hidden[torch.arange(len(hidden), device=hidden.device), last]
    weights = attention_mask.unsqueeze(-1).to(torch.float32)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1)
