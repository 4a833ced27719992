"""An encoder of any family under a linear head of one value.

transformers has sequence classifiers for most families, but they differ in what a critic needs:
the head's name and layers, and what it reads. This one is the same for a Mistral and for a BERT.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoModel, PretrainedConfig, PreTrainedModel


def value_encoder_class(
    shape: PretrainedConfig, trust_remote_code: bool = False
) -> type[PreTrainedModel]:
    """The class of encoders of this family with a head `score`, to be loaded `from_pretrained`.

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
