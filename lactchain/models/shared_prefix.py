"""Training passes over texts that begin alike: what they share is read once, with its gradient.

Rows of a batch whose prompts all begin with the policy's instruction are one sequence
(1, P + B · T): the P shared tokens, and the B rows of T columns behind them. Layers take tokens one
by one, and only attention tells whose they are: a row sees the shared tokens, and itself. Source of
the idea: Hydragen (Juravsky et al. 2024, arXiv:2402.05099), here for training.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lactchain.models.families import FAMILIES, additive_mask

READ_ONCE = "lactchain_read_once"

WORTH = 0.25
"""The share of a batch's tokens that has to be saved by taking it apart, which costs tiny models up
to a tenth of a step."""


def shared_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """The library's `sdpa`, which also takes B rows behind shared tokens as one sequence.

    That is (1, H, P + B · T, D), under an additive mask (B, 1, T, P + T), of each row over the
    shared tokens and itself.
    """
    if attention_mask is None or len(attention_mask) <= len(query):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    num_rows, _, steps, seen = attention_mask.shape
    (before, asked), (keys, own_keys), (values, own_values) = (
        _split(tensor, seen - steps, num_rows) for tensor in (query, key, value)
    )
    shared, _ = sdpa_attention_forward(module, before, keys, values, None, **kwargs)
    keys, values = (
        torch.cat([common.expand(num_rows, -1, -1, -1), own], dim=2)
        for common, own in ((keys, own_keys), (values, own_values))
    )
    own, _ = sdpa_attention_forward(module, asked, keys, values, attention_mask, **kwargs)
    return torch.cat([shared, own.flatten(0, 1)[None]], dim=1), None


def _split(tensor: Tensor, shared: int, num_rows: int) -> tuple[Tensor, Tensor]:
    """The shared part (1, H, P, D) and the rows (B, H, T, D) of (1, H, P + B · T, D)."""
    rows = tensor[0, :, shared:].unflatten(1, (num_rows, -1))
    return tensor[:, :, :shared], rows.transpose(0, 1)


AttentionInterface.register(READ_ONCE, shared_attention)
AttentionMaskInterface.register(READ_ONCE, sdpa_mask)


def can_read_once(model: PreTrainedModel) -> bool:
    """Whether a model reads what the rows of a batch share once; if it can, it does so from now on.

    Other kinds of attention than sdpa cannot.
    """
    config = model.config
    able = config.model_type in FAMILIES and config._attn_implementation in ("sdpa", READ_ONCE)
    if able:
        model.set_attn_implementation(READ_ONCE)
    return able


def shared_length(prompts: Sequence[Sequence[int]], longest: int) -> int:
    """How many tokens of all prompts are worth reading once, never the last one of a prompt.

    The `longest` row has so many tokens, completions included.
    """
    shared = min(common_prefix(min(prompts), max(prompts)), min(map(len, prompts)) - 1)
    saved, all_tokens = (len(prompts) - 1) * shared, len(prompts) * longest
    return shared if saved and saved >= WORTH * all_tokens else 0


def one_sequence(
    batch: Mapping[str, Tensor], visible: Tensor, columns: Tensor, dtype: torch.dtype
) -> dict[str, Tensor]:
    """The arguments by which a model computes logits, of which `columns` (K,) of each row.

    A `batch` has `input_ids` and `position_ids` (B, T). Where it has `prefix_ids` (P,), the rows
    stand behind these shared tokens, and the logits (1, B · K, V) behind each other.

    Args:
        visible: (B, T, T), whom a token sees in its row; it sees all shared tokens.
    """
    ids, positions = batch["input_ids"], batch["position_ids"]
    if "prefix_ids" in batch:
        prefix, (num_rows, steps) = batch["prefix_ids"], ids.shape
        starts = len(prefix) + steps * torch.arange(num_rows, device=columns.device)
        columns = (starts[:, None] + columns).flatten()
        before = torch.arange(len(prefix), device=positions.device)
        positions = torch.cat([before, positions.flatten()])[None]
        ids = torch.cat([prefix, ids.flatten()])[None]
        visible = functional.pad(visible, (len(prefix), 0), value=True)
    return {
        "input_ids": ids,
        "position_ids": positions,
        "attention_mask": additive_mask(visible, dtype),
        "logits_to_keep": columns,
    }


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin alike with."""
    pairs = zip(one, other, strict=False)
    shortest = min(len(one), len(other))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), shortest)
