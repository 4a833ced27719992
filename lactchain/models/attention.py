"""Attention over masks of our own, and what families of language models do differently from Llama.

The masks (a shared prefix, two completions in one sequence, a tree of texts) take the place of
those that the library would make. `docs/model_families.md` lists what was measured.

Training passes read what texts share at their beginning once, with its gradient. Rows of a batch
whose prompts all begin with the policy's instruction are one sequence (1, P + B · T): the P shared
tokens, and the B rows of T columns behind them. Layers take tokens one by one, and only attention
tells whose they are: a row sees the shared tokens, and itself. Source of the idea: Hydragen
(Juravsky et al. 2024, arXiv:2402.05099), here for training.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.models.llama.modeling_llama import eager_attention_forward

from lactchain.errors import ConfigError

FAMILIES = (
    "cohere", "cohere2", "gemma", "gemma2", "gemma3_text", "granite", "llama", "mistral",
    "mixtral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3", "starcoder2",
)  # fmt: skip
"""The `model_type` of those whose completions and log-probabilities were measured to be the same.

Another one may be silently wrong: some scale scores or logits by fields that are found nowhere
else. `benchmarks/families.py` measures one, by an entry in its list.
"""

READ_ONCE = "lactchain_read_once"

WORTH = 0.25
"""The share of a batch's tokens that has to be saved by taking it apart, which costs tiny models up
to a tenth of a step."""


def check_family(model: PreTrainedModel) -> None:
    """`ConfigError` for a model not known to compute the same with masks and cache of our own."""
    config = model.config
    if config.model_type not in FAMILIES:
        raise ConfigError(
            f"actor.model {config.name_or_path}: expected a model of a family whose attention is "
            f"computed here ({', '.join(FAMILIES)}), got {config.model_type}; use one of these, "
            "see docs/model_families.md"
        )


def context_length(config: PreTrainedConfig) -> int | None:
    """Tokens that a model reads at most; None: its configuration does not say.

    A longer text may change how earlier tokens are read: beyond their first context length, rotary
    embeddings of two kinds turn all keys another way, those in the cache and those of shorter rows
    in the batch among them. And where layers look back over a window alone, no text is longer than
    that, so that they see all of it.
    """
    settings = vars(config)
    most, rope = settings.get("max_position_embeddings"), settings.get("rope_parameters") or {}
    if rope.get("rope_type") in ("longrope", "dynamic"):
        most = rope.get("original_max_position_embeddings", most)
    if "sliding_attention" in (settings.get("layer_types") or ["sliding_attention"]):
        most = min(filter(None, (most, settings.get("sliding_window"))), default=None)
    return most


def additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores (B, 1, Q, K): nothing, or the least number where not `visible`."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]


def finished_logits(config: PreTrainedConfig, logits: Tensor) -> Tensor:
    """What Cohere, Granite and Gemma 2 do with the numbers (…, V) of their output layer."""
    settings = vars(config)
    if scale := settings.get("logit_scale"):
        logits = logits * scale
    if divisor := settings.get("logits_scaling"):
        logits = logits / divisor
    if cap := settings.get("final_logit_softcapping"):
        logits = cap * torch.tanh(logits / cap)
    return logits


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
        return _attend(module, query, key, value, attention_mask, **kwargs)
    num_rows, _, steps, seen = attention_mask.shape
    (before, asked), (keys, own_keys), (values, own_values) = (
        _split(tensor, seen - steps, num_rows) for tensor in (query, key, value)
    )
    shared, _ = _attend(module, before, keys, values, None, **kwargs)
    keys, values = (
        torch.cat([common.expand(num_rows, -1, -1, -1), own], dim=2)
        for common, own in ((keys, own_keys), (values, own_values))
    )
    own, _ = _attend(module, asked, keys, values, attention_mask, **kwargs)
    return torch.cat([shared, own.flatten(0, 1)[None]], dim=1), None


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """The library's `sdpa`, or its plain products where these learn faster.

    On a CPU in bfloat16 sdpa takes 42 ms back through 8 rows of 150 tokens, they take 9 (torch
    2.13, AMX).
    """
    plain = query.requires_grad and query.is_cpu and query.dtype == torch.bfloat16
    if mask is None or not plain:
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)
    if mask.dtype == torch.bool:
        mask = additive_mask(mask[:, 0], query.dtype)
    return eager_attention_forward(module, query, key, value, mask, **kwargs)


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
    stand behind these shared tokens, and the logits (1, B · K, V) behind each other. `visible`
    (B, T, T) says whom a token sees in its row; it sees all shared tokens.
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
