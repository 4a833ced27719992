"""A transformer with heads of our own: what critics share with models of other values.

Heads compute in float32 whatever the trunk computes in, and mixed precision hands out.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from peft import PeftModel
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from lactchain.config.settings import ModelConfig
from lactchain.models.adapters import load_adapter_weights, save_adapter
from lactchain.models.runtime import put, quiet, whole_state
from lactchain.models.weights import ADAPTER_FILES, check_weights, read_tensors

Config = TypeVar("Config", bound=ModelConfig)

QUANTISATION = ("load_in_4bit", "load_in_8bit")
"""What is stored with trained weights, beside their `dtype`."""


class HeadedModel(nn.Module):
    """A trunk, perhaps with an adapter, saved, checkpointed and sharded as the transformer it is.

    It has no `config`, which `transformers.Trainer` would take for one of its own and write to.
    """

    config_file: ClassVar[str]
    """The file beside the weights that says what the values mean."""
    schema_version: ClassVar[int] = 1
    """Of that file."""
    heads_file: ClassVar[str] = "values.safetensors"
    """The one with the heads that are not in the trunk."""

    def __init__(
        self, trunk: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.tokenizer = tokenizer
        # The classes that FSDP shards as one unit, by name as transformers has it: a layer, and a
        # head, whose weights have a type of their own.
        self._no_split_modules = [*self.base._no_split_modules, ScoreHead.__name__]

    @property
    def adapted(self) -> bool:
        """Whether an adapter is trained, and not all weights."""
        return isinstance(self.trunk, PeftModel)

    @property
    def base(self) -> PreTrainedModel:
        """The transformer itself."""
        return self.trunk.get_base_model() if self.adapted else self.trunk

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.trunk.device

    @property
    def precision(self) -> dict[str, Any]:
        """How the trunk was loaded: its `dtype`, and the entries of `QUANTISATION`."""
        config = self.base.config
        quantisation = config.to_dict().get("quantization_config", {})
        bits = {name: quantisation.get(name, False) for name in QUANTISATION}
        return {"dtype": str(config.dtype).removeprefix("torch.")} | bits

    def save(self, directory: str | Path, *, write: bool = True) -> None:
        """Adapter or weights, heads, and what they mean; of a sharded model all processes call."""
        state = whole_state(self, only_trained=self.adapted)
        beside = self._beside_trunk(self.state_dict() if state is None else state)
        if not write:
            return
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        # Asked for before: saving all weights makes `directory` the base.
        stored = {"schema_version": self.schema_version} | self._meaning()
        self._write_trunk(directory, state)
        if beside:
            save_file(beside, directory / self.heads_file)
        (directory / self.config_file).write_text(json.dumps(stored, indent=1) + "\n", "utf-8")

    def _beside_trunk(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """What is saved beside the trunk, gathered from all processes; `state` is whole."""
        return {}

    def _meaning(self) -> dict[str, Any]:
        """What `config_file` says: the base, its precision, and what the values mean."""
        raise NotImplementedError

    def _write_trunk(self, directory: Path, state: dict[str, Tensor] | None) -> None:
        if state is not None:
            trunk = (item for item in state.items() if item[0].startswith("trunk."))
            state = {name.removeprefix("trunk."): tensor for name, tensor in trunk}
        if self.adapted:
            save_adapter(self.trunk, directory, state)
            return
        with quiet():
            self.trunk.save_pretrained(directory, state_dict=state)
        self.tokenizer.save_pretrained(directory)

    def load_weights(self, directory: str | Path) -> None:
        """Reads what `save` wrote into this model, to go on training where it stood."""
        load_trained(self.trunk, Path(directory))

    def activation_checkpointing_enable(self, **kwargs: Any) -> None:
        """As transformers' models have it: `transformers.Trainer` calls it."""
        if self.adapted:
            # Frozen embeddings give no gradient that recomputed layers could start from.
            self.trunk.enable_input_require_grads()
        self.trunk.activation_checkpointing_enable(**kwargs)


def is_adapted(directory: Path) -> bool:
    """Whether a folder holds an adapter, and not all weights."""
    return (directory / ADAPTER_FILES[0]).is_file()


def load_trained(model: PreTrainedModel | PeftModel, directory: Path) -> None:
    """Reads the adapter, or all weights, in `directory` into a model that may be sharded."""
    if isinstance(model, PeftModel):
        load_adapter_weights(model, directory)
        return
    own = model.state_dict()
    for file in set(check_weights(directory).values()):
        for name, tensor in read_tensors(file).items():
            put(own[name], tensor)


def stored_dtype(stored: Mapping[str, Any]) -> str:
    """How weights are kept that are stored with these entries, as `ModelConfig.dtype` names it."""
    bits = (name.removeprefix("load_in_") for name in QUANTISATION if stored[name])
    return next(bits, stored["dtype"])


def at_stored_precision(config: Config, stored: Mapping[str, Any]) -> Config:
    """`config`, to load weights at the `HeadedModel.precision` that they were trained at.

    Quantisation is always what it was. A dtype that is given, not `auto`, is taken: the same
    weights in float32 have the same values but for rounding.
    """
    dtype = stored_dtype(stored)
    return replace(config, dtype=dtype) if config.dtype == "auto" or "bit" in dtype else config


class ScoreHead(nn.Linear):
    """Embeddings (B, D) → values (B, N): the head of a sequence classifier."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Values, without autocast."""
        return in_float32(hidden, self.weight, self.bias)


def value_encoder_class(shape: PretrainedConfig) -> type[PreTrainedModel]:
    """The class of encoders of this family with a head `score`, to be loaded `from_pretrained`.

    The classifiers of transformers differ in the head's name and layers, and in what it reads. This
    one is the same for all families. The trunk has the name that its family gives it, so that bare
    encoders, language models and these classifiers can all be read; with a causal trunk the result
    is what transformers calls `MistralForSequenceClassification`, weight for weight.
    """
    with torch.device("meta"):
        trunk_class = type(AutoModel.from_config(shape))

    class ValueEncoder(trunk_class.__base__):
        """A trunk and a linear head, without a forward pass: the critic pools between the two."""

        config_class = type(shape)
        _keep_in_fp32_modules_strict = frozenset({"score"})

        def __init__(self, config: PretrainedConfig) -> None:
            super().__init__(config)
            trunk = trunk_class(config)
            trunk.pooler = None  # BERT's reads the first token, and would get no gradient
            self.add_module(self.base_model_prefix, trunk)
            self.score = ScoreHead(config.hidden_size, 1, bias=False)
            self.post_init()

    return ValueEncoder


def in_float32(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer without autocast."""
    with torch.autocast(hidden.device.type, enabled=False):
        bias = None if bias is None else bias.float()
        return functional.linear(hidden.float(), weight.float(), bias)
