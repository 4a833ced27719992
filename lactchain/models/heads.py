"""Heads that turn hidden states into values, in float32 whatever the trunk computes in.

FSDP2's mixed precision hands out their weights in 16 bits; they compute in float32 even then.
"""

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel, PretrainedConfig, PreTrainedModel


class ScoreHead(nn.Linear):
    """Embeddings (B, D) → values (B, N): the head of a sequence classifier."""

    @classmethod
    def of(cls, layer: nn.Linear) -> Self:
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


def value_encoder_class(
    shape: PretrainedConfig, trust_remote_code: bool = False
) -> type[PreTrainedModel]:
    """The class of encoders of this family with a head `score`, to be loaded `from_pretrained`.

    transformers has sequence classifiers for most families, but they differ in the head's name and
    layers, and in what it reads. This one is the same for a Mistral and for a BERT.

    The trunk has the name that its family gives it, so that checkpoints of bare encoders, of
    language models and of these classifiers can all be read; with a causal trunk the result is
    what transformers calls `MistralForSequenceClassification`, weight for weight.
    """
    with torch.device("meta"):
        trunk_class = type(AutoModel.from_config(shape, trust_remote_code=trust_remote_code))

    class ValueEncoder(trunk_class.__base__):
        """A trunk and a linear head, without a forward pass: the critic pools between the two."""

        config_class = type(shape)

        def __init__(self, config: PretrainedConfig) -> None:
            super().__init__(config)
            trunk = trunk_class(config)
            trunk.pooler = None  # BERT's reads the first token, and would get no gradient
            self.add_module(self.base_model_prefix, trunk)
            self.score = nn.Linear(config.hidden_size, 1, bias=False)
            self.post_init()

    return ValueEncoder


def _linear(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        bias = None if bias is None else bias.float()
        return functional.linear(hidden.float(), weight.float(), bias)
