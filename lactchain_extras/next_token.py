"""A causal language model as a next-token function: numpy in, numpy out.

What `lactchain_extras.token_env.TokenEnv` plays with, which knows nothing of torch.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from lactchain.config.settings import ActorConfig
from lactchain.models.loading import load_actor
from lactchain.models.prompting import PromptTemplate
from lactchain.models.runtime import free_memory


class CausalNextToken:
    """A `NextToken` of a causal language model, one sentence at a time.

    Keys and values are kept: a sentence that goes on by one token costs one token.

    Args:
        strategy: the instruction before each prompt, as in `ActorConfig`.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, strategy: str = "none"
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.template = PromptTemplate(tokenizer, strategy)
        self.vocab_size = model.config.vocab_size
        self.eos_token_id = tokenizer.eos_token_id
        self.max_length = model.config.max_position_embeddings
        self._forget()

    @classmethod
    def from_config(cls, config: ActorConfig) -> Self:
        """Loads model and adapter, frozen; see `load_actor` for the errors."""
        return cls(*load_actor(config), config.strategy)

    def encode(self, prompt: str) -> list[int]:
        """The token ids of a prompt, in the model's chat template."""
        return self.template.encode(prompt)

    def decode(self, token_ids: Sequence[int]) -> str:
        """What token ids read as; special tokens show."""
        return self.tokenizer.decode(list(token_ids))

    @torch.no_grad()
    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """Logits (V,) of the token that follows, in float32."""
        known = len(self._seen)
        if known >= len(token_ids) or self._seen != list(token_ids[:known]):
            self._forget()
            known = 0
        new = torch.tensor([list(token_ids[known:])], device=self.model.device)
        options = {"past_key_values": self._cache, "use_cache": True, "logits_to_keep": 1}
        try:
            output = self.model(input_ids=new, **options)
        except BaseException:  # a part of the layers remembers what it read
            self._forget()
            raise
        self._seen = list(token_ids)
        return output.logits[0, -1].float().cpu().numpy()

    def close(self) -> None:
        """Frees the model and its keys and values; `logits` cannot be asked any more."""
        self._forget()
        self.model = None
        free_memory()

    def _forget(self) -> None:
        self._seen: list[int] = []
        self._cache = DynamicCache()
