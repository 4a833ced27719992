"""Which token of an encoder is read: as its folder says, or as it is set."""

import logging
from pathlib import Path

import torch

from lactchain.config.settings import CriticConfig
from lactchain.errors import ConfigError
from lactchain.models.places import resolve_weights
from lactchain.models.weight_files import read_model_json

log = logging.getLogger(__name__)

KNOWN = {"mean": "mean", "mean_tokens": "mean", "lasttoken": "last"}
"""Our names of sentence-transformers' ways to pool."""


def resolve_pooling(config: CriticConfig) -> str:
    """The pooling that is set, else the folder's, else that of the last token.

    Raises:
        ConfigError: nothing is set, and the folder pools in a way that is not known here.
    """
    file, ways = _declared(resolve_weights(config.model))
    known = KNOWN.get(ways[0]) if len(ways) == 1 else None
    if config.pooling is not None:
        if ways and known != config.pooling:
            log.warning(
                "critic.pooling: %s, though %s says %s", config.pooling, file, " and ".join(ways)
            )
        return config.pooling
    if ways and known is None:
        raise ConfigError(
            f"critic.pooling: expected an encoder that was trained to pool the last token or the "
            f"mean, got {' and '.join(ways)} in {file}; set it to last or mean"
        )
    return known or "last"


def _declared(folder: Path) -> tuple[Path, list[str]]:
    """The file in which sentence-transformers says how an encoder pools, and what it says."""
    file = folder / "1_Pooling" / "config.json"
    if not (folder / "modules.json").is_file() or not file.is_file():
        return file, []
    stored = read_model_json(file)
    flags = [n for n, value in stored.items() if n.startswith("pooling_mode_") and value is True]
    named = [stored["pooling_mode"]] if "pooling_mode" in stored else flags
    return file, [str(name).removeprefix("pooling_mode_") for name in named]


def pool(hidden: torch.Tensor, attention_mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """One embedding (B, D) per row of `hidden` (B, L, D): its last real token, or their mean."""
    if pooling == "last":
        positions = torch.arange(hidden.shape[1], device=hidden.device)
        last = (positions * attention_mask).argmax(dim=1)
        return hidden[torch.arange(len(hidden), device=hidden.device), last]
    weights = attention_mask.unsqueeze(-1).to(torch.float32)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1)
