"""What families of language models do differently from Llama, computed here as they do.

Masks of our own (a shared prefix, two completions in one sequence, a tree of texts) take the place
of those that the library would make, and logits that are computed from hidden states get what a
family does behind its output layer. `docs/model_families.md` lists what was measured.
"""

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from lactchain.errors import ConfigError

FAMILIES = (
    "cohere", "cohere2", "gemma", "gemma2", "gemma3_text", "granite", "llama", "mistral",
    "mixtral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3", "starcoder2",
)  # fmt: skip
"""The `model_type` of those whose completions and log-probabilities were measured to be the same.

Another one may be silently wrong: some scale scores or logits by fields that are found nowhere
else. `benchmarks/families.py` measures one, by an entry in its list.
"""


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
