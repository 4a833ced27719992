"""What families of language models do differently from Llama, computed here as they do.

Masks of our own (a shared prefix, two answers in one sequence, a tree of texts) take the place of
those that the library would make, so the sliding window of a layer has to be put into them; and
logits that are computed from hidden states get what a family does behind its output layer.
`docs/model_families.md` lists what was measured.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from lactchain.errors import ConfigError

WINDOWED, FULL = "sliding_attention", "full_attention"
"""Types of layers, as the library names them, whose attention is computed here."""


def check_family(model: PreTrainedModel) -> None:
    """Refuses a model whose attention does not take masks and a cache of our own.

    Raises:
        ConfigError: naming the model and what it does differently.
    """
    config = model.config
    unknown = sorted(set(_layer_types(config)) - {WINDOWED, FULL})
    if unknown:
        raise _refusal(config, f"layers of type {', '.join(unknown)}")
    if not model._supports_attention_backend:
        raise _refusal(config, "attention of its own, outside the library's interface")


def shortest_window(config: PreTrainedConfig) -> int | None:
    """Tokens that the layer that looks back least sees, itself included; None: all."""
    return _settings(config)["sliding_window"] if WINDOWED in _layer_types(config) else None


def attention_masks(
    config: PreTrainedConfig, visible: Tensor, queries: Tensor, keys: Tensor, dtype: torch.dtype
) -> Tensor | dict[str, Tensor]:
    """Additive masks (B, 1, Q, K), as the model takes them: one, or one for each type of layer.

    Args:
        config: of the model.
        visible: (B, Q, K), whom a token may see in a text without end.
        queries, keys: (B, Q) and (B, K), places of the tokens in their texts; windows are measured
            in these, and not in columns.
    """
    window, full = shortest_window(config), additive_mask(visible, dtype)
    if window is None or window >= visible.shape[-1]:
        return full
    near = queries[:, :, None] - keys[:, None] < window
    masks = {FULL: full, WINDOWED: additive_mask(visible & near, dtype)}
    kinds = set(_layer_types(config))
    return masks if len(kinds) > 1 else masks[kinds.pop()]


def additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores (B, 1, Q, K): nothing, or the least number where not `visible`."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]


def finished_logits(config: PreTrainedConfig, logits: Tensor) -> Tensor:
    """What Cohere, Granite and Gemma 2 do with the numbers (…, V) of their output layer."""
    settings = _settings(config)
    if scale := settings.get("logit_scale"):
        logits = logits * scale
    if divisor := settings.get("logits_scaling"):
        logits = logits / divisor
    if cap := settings.get("final_logit_softcapping"):
        logits = cap * torch.tanh(logits / cap)
    return logits


def _settings(config: PreTrainedConfig) -> dict[str, Any]:
    """The fields of a family's configuration: not every family has each."""
    return vars(config.get_text_config(decoder=True))


def _layer_types(config: PreTrainedConfig) -> list[str]:
    """The type of each layer; configurations without such a list have layers that are all alike."""
    settings = _settings(config)
    alike = FULL if settings.get("sliding_window") is None else WINDOWED
    return settings.get("layer_types") or [alike]


def _refusal(config: PreTrainedConfig, feature: str) -> ConfigError:
    return ConfigError(
        f"model {config.name_or_path or config.model_type} ({config.model_type}): has {feature}, "
        "which is not computed here; use a model of a family in docs/model_families.md"
    )
