"""Target networks: slow copies of trained parameters."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


@torch.no_grad()
def polyak_update(targets: Mapping[str, Tensor], online: Mapping[str, Tensor], tau: float) -> None:
    """θ̂ ← τ θ + (1 − τ) θ̂ in place, for every target; `online` may hold more.

    Source: Polyak & Juditsky 1992; Lillicrap et al. 2016, "Continuous control with deep
    reinforcement learning", algorithm 1.

    Raises:
        ValueError: τ is not in (0, 1].
    """
    if not 0.0 < tau <= 1.0:
        raise ValueError(f"tau: expected a number in (0, 1], got {tau}")
    torch._foreach_lerp_(list(targets.values()), [online[name] for name in targets], tau)
