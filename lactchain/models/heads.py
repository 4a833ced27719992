"""The small MLP heads that turn a hidden state into values."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class ValueHead(nn.Sequential):
    """Hidden states (…, D) → values (…, N), in float32, by one hidden layer.

    The last layer starts at weights 0 and a bias of about the average return (LMRL-Gym, Abdulhai
    et al. 2023), so that learning begins with differences and not with the level.

    Args:
        width: D, of the trunk.
        hidden_size: of the layer between.
        num_outputs: N, the vocabulary for Q(s, ·), 1 for V(s).
        start: what every output is at first.
    """

    def __init__(self, width: int, hidden_size: int, num_outputs: int, start: float = 0.0) -> None:
        super().__init__(
            nn.Linear(width, hidden_size), nn.ReLU(), nn.Linear(hidden_size, num_outputs)
        )
        nn.init.zeros_(self[-1].weight)
        nn.init.constant_(self[-1].bias, start)

    def forward(self, hidden: Tensor, columns: Tensor | None = None) -> Tensor:
        """Values, whatever precision the trunk computes in; some of the outputs if so asked."""
        with torch.autocast(hidden.device.type, enabled=False):
            first, activation, last = self
            inner = activation(first(hidden.float()))
            if columns is None:
                return last(inner)
            return functional.linear(inner, last.weight[columns], last.bias[columns])
