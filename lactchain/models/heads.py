"""The small heads that turn a hidden state into values, in float32 whatever the trunk computes in.

FSDP2's mixed precision hands out their weights in 16 bits; they compute in float32 even then.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class ScoreHead(nn.Linear):
    """Embeddings (B, D) → values (B, N): the head of a sequence classifier."""

    @classmethod
    def of(cls, layer: nn.Linear) -> ScoreHead:
        """The same weights in float32."""
        head = cls(layer.in_features, layer.out_features, bias=layer.bias is not None)
        head.load_state_dict(layer.state_dict())
        return head.to(layer.weight.device)

    def forward(self, hidden: Tensor) -> Tensor:
        """Values, without autocast."""
        return _linear(hidden, self.weight, self.bias)


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
        """Values; some of the outputs if so asked."""
        first, activation, last = self
        inner = activation(_linear(hidden, first.weight, first.bias))
        if columns is None:
            return _linear(inner, last.weight, last.bias)
        return _linear(inner, last.weight[columns], last.bias[columns])


def _linear(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        bias = None if bias is None else bias.float()
        return functional.linear(hidden.float(), weight.float(), bias)
