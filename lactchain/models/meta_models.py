"""Models of tensors without numbers, the passes that training makes, and the bytes that they take.

A model is built by transformers and PEFT as it will be trained, and runs as it does on a CPU; but
its tensors have shapes alone, take no memory, and nothing is computed. So a pass takes a second,
whatever the size of the model, and its memory is that of the layers, adapters and losses that will
run, and not of a formula about them. Only the layers of bitsandbytes, which know no such tensors,
are imitated.
"""

import copy
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from lactchain.functional.token_losses import ilql_losses
from lactchain.functional.tokens import token_logprobs
from lactchain.models.adapters import Task, attach_lora
from lactchain.models.critic import EmbeddingCritic
from lactchain.models.families import attention_masks
from lactchain.models.headed import ScoreHead, value_encoder_class
from lactchain.models.runtime import quiet
from lactchain.models.values import ValueMeaning, ValueModel
from lactchain.settings import CriticConfig, LoraSettings

NO_NUMBERS = FakeTensorMode(allow_non_fake_inputs=True)
"""While it is entered, tensors are made without memory behind them."""


@dataclass(frozen=True)
class ModelSpec:
    """A model as it is loaded.

    Attributes:
        shape: its config.json.
        task: with the output layer of a language model, or with one value of a critic.
        dtype: of the weights that are not quantised.
        bits: 4 or 8 where the linear layers are quantised.
        lora: the adapter beside the weights, in float32.
        mapped: the weights are read where they lie in their files.
    """

    shape: PretrainedConfig
    task: Task = "CAUSAL_LM"
    dtype: torch.dtype = torch.bfloat16
    bits: Literal[4, 8] | None = None
    lora: LoraSettings | None = None
    mapped: bool = False


@dataclass(frozen=True)
class PassSize:
    """The size of one forward pass.

    Attributes:
        rows, tokens: of what the model reads.
        scored: columns at the end of each row whose logits are wanted; of value models, positions
            of all rows together.
        loss: cloning takes the cross-entropy of transformers, preferences the project's own
            log-probabilities; critic pools one token of each row; values has heads over the
            vocabulary.
        behind: rows and tokens of the prompts that value models read beside, without gradients.
    """

    rows: int
    tokens: int
    scored: int = 1
    loss: Literal["cloning", "preferences", "critic", "values"] = "preferences"
    behind: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class TextLengths:
    """What an actor reads and writes, in tokens.

    Attributes:
        prefix: what all prompts begin with.
        prompt: the longest prompt, without that.
        completion: the longest completion that may be sampled.
        columns: tokens that may be sampled.
    """

    prefix: int
    prompt: int
    completion: int
    columns: int


@dataclass(frozen=True)
class Heads:
    """The heads of a value model, in float32: some over the vocabulary, and one of V.

    Attributes:
        num_q: how many over the vocabulary.
        size: width of the hidden layers.
        target: there is a target network, a copy of what is trained in the trunk and of these.
        policy: the trunk is the policy too, whose logits are wanted beside the values.
    """

    num_q: int
    size: int
    target: bool = False
    policy: bool = False


def at_depth(spec: ModelSpec, num_layers: int) -> ModelSpec:
    """The same model with so many layers."""
    shape = copy.deepcopy(spec.shape)
    text = shape.get_text_config()
    kinds = text.to_dict().get("layer_types")
    text.update(
        {"num_hidden_layers": num_layers} | ({"layer_types": kinds[:num_layers]} if kinds else {})
    )
    return replace(spec, shape=shape)


def build(spec: ModelSpec) -> PreTrainedModel:
    """The model, frozen."""
    return _without_numbers(_on_meta(spec, training=False).requires_grad_(False).eval())


def in_training(
    spec: ModelSpec, heads: Heads | None = None, checkpointing: bool = False
) -> PreTrainedModel | ValueModel:
    """The model ready to be trained, and the value model around it if it has heads."""
    model = _on_meta(spec, training=True)
    if checkpointing:
        if spec.lora is not None:
            model.enable_input_require_grads()
        with quiet():
            model.activation_checkpointing_enable()
    if heads is None:
        return _without_numbers(model.train())
    model.get_output_embeddings().requires_grad_(heads.policy and spec.lora is None)
    meaning = ValueMeaning("ilql" if heads.target else "mc", 1.0, "", heads.num_q, heads.size)
    with torch.device("meta"):
        values = ValueModel(model, None, meaning).train()
    _without_numbers(values)
    if heads.target:
        values.start_target()
    return values


def _on_meta(spec: ModelSpec, training: bool) -> PreTrainedModel:
    shape = copy.deepcopy(spec.shape)
    with torch.device("meta"), quiet():
        if spec.task == "SEQ_CLS":
            model = value_encoder_class(shape)._from_config(shape, dtype=spec.dtype)
            model.score = ScoreHead.of(model.score)
        else:
            model = AutoModelForCausalLM.from_config(shape, dtype=spec.dtype)
        if spec.bits is not None:
            _imitate_quantisation(model, spec.bits, training)
        return model if spec.lora is None else attach_lora(model, spec.lora, spec.task)


def _without_numbers(model: nn.Module) -> nn.Module:
    """A model of the meta device as it is on a CPU; there alone are attention and autocast."""
    placed: dict[Tensor, Tensor] = {}  # tied weights are one
    with NO_NUMBERS:
        for tensor in model.parameters():
            empty = torch.empty(tensor.shape, dtype=tensor.dtype)
            placed[tensor] = nn.Parameter(empty, tensor.requires_grad)
        for tensor in model.buffers():
            placed[tensor] = torch.empty(tensor.shape, dtype=tensor.dtype)
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            tensors |= {name: placed[t] for name, t in tensors.items() if t is not None}
    return model


def target_of(model: nn.Module) -> list[Tensor]:
    """The target network of values; nothing of other models."""
    return list(model.target.values()) if isinstance(model, ValueModel) else []


def base_of(model: PreTrainedModel | PeftModel | ValueModel) -> PreTrainedModel:
    """The transformer inside the wrappers of an adapter and of values."""
    if isinstance(model, ValueModel):
        return model.base
    return model.get_base_model() if isinstance(model, PeftModel) else model


def quantised_layers(model: nn.Module) -> Iterator[nn.Linear]:
    """The layers that bitsandbytes takes: all linear ones but the output's and the adapter's."""
    for name, layer in model.named_modules():
        apart = ("lm_head", "score", "lora_")
        if isinstance(layer, nn.Linear) and not any(part in name for part in apart):
            yield layer


def loss_of(model: nn.Module, batch: PassSize, heads: Heads | None = None) -> Tensor:
    """The loss of a batch, as the trainer of its kind computes it."""
    with NO_NUMBERS:
        if batch.loss == "values":
            return _value_loss(model, batch, heads.policy)
        if batch.loss == "critic":
            return critic_values(model, batch).square().mean()
        if batch.loss == "cloning":
            return _cloning_loss(model, batch)
        return _preference_loss(model, batch)


def critic_values(model: nn.Module, batch: PassSize) -> Tensor:
    """The values of a batch."""
    with NO_NUMBERS:
        ids = _ids(batch.rows, batch.tokens)
        return EmbeddingCritic(model, None, CriticConfig())(ids, torch.ones_like(ids))


def _preference_loss(model: nn.Module, batch: PassSize) -> Tensor:
    ids = _ids(batch.rows, batch.tokens)
    visible = torch.ones(*ids.shape, batch.tokens, dtype=torch.bool)
    config, dtype = base_of(model).config, base_of(model).dtype
    mask = attention_masks(config, visible, ids, ids, dtype)
    logits = model(
        input_ids=ids, position_ids=ids, attention_mask=mask, logits_to_keep=_columns(batch)
    ).logits
    return token_logprobs(logits, ids[:, -batch.scored :]).mean()


def _cloning_loss(model: nn.Module, batch: PassSize) -> Tensor:
    ids = _ids(batch.rows, batch.tokens)
    labels = ids[:, -batch.scored :]
    texts = {"input_ids": ids, "position_ids": ids, "attention_mask": torch.ones_like(ids)}
    return model(**texts, labels=labels, logits_to_keep=_columns(batch)).loss


def _columns(batch: PassSize) -> Tensor:
    """The last columns, by their numbers: a slice of them would copy a frozen output layer."""
    return torch.arange(batch.tokens - batch.scored, batch.tokens)


def _value_loss(model: ValueModel, batch: PassSize, policy: bool) -> Tensor:
    """That of ILQL where there is a target network; and that of MC, whose parts it shares."""
    state, trees = _ids(batch.scored), _trees(batch.rows, batch.tokens)
    found = model(trees, state, state, policy)
    if all(batch.behind):
        model.state_values(_trees(*batch.behind), state)
    q, v = found["q"][:, state, state], found["v"][state]
    log_sums = found["q"].logsumexp(dim=-1)[:, state]
    target_q = model.target_q(trees, state)[state, state] if model.target else v.detach()
    losses = ilql_losses(q, log_sums, v, target_q, v.detach(), v.detach(), found["v_next"], 0.7)
    if policy:
        losses["cloning"] = -token_logprobs(found["logits"][state], state)
    return sum(loss.mean() for loss in losses.values())


def _trees(rows: int, tokens: int) -> dict[str, Tensor]:
    ids = _ids(rows, tokens)
    return {"input_ids": ids, "position_ids": ids, "subtree_ends": ids}


def _ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long)


class _Dequantised(torch.autograd.Function):
    """A product with weights that are made from a few bits each time, and not kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, keeps_input: bool) -> Tensor:
        ctx.save_for_backward(weight, x if keeps_input else None)
        return functional.linear(x, weight.clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        weight, _ = ctx.saved_tensors
        return gradient @ weight.clone(), None, None


class _QuantisedLinear(nn.Linear):
    """What bitsandbytes' layers do: compute in the weights' type, answer in the input's."""

    def forward(self, x: Tensor) -> Tensor:
        y = _Dequantised.apply(x.to(self.weight.dtype), self.weight, self.bits == 8)
        return (y if self.bias is None else y + self.bias).to(x.dtype)


def _imitate_quantisation(model: PreTrainedModel, bits: int, training: bool) -> None:
    """Also keeps the other weights in float32 for training, as PEFT does (`_prepared`)."""
    layers = list(quantised_layers(model))
    model.requires_grad_(False)
    if training:
        own = {id(layer.weight) for layer in layers}
        for parameter in model.parameters():
            if id(parameter) not in own:
                parameter.data = parameter.data.float()
    for layer in layers:
        layer.__class__, layer.bits = _QuantisedLinear, bits


class Allocations(TorchDispatchMode):
    """Bytes of the tensors that are made while it is entered; those made before do not count.

    Args:
        before: tensors that exist already, of which operations may return views.
        width: of the tensors to count apart.

    Attributes:
        live: bytes of the tensors that exist.
        peak: the greatest value of `live`.
        wide, wide_peak: the same, of tensors whose last dimension is `width`, such as logits.
    """

    def __init__(self, *before: Tensor, width: int = 0) -> None:
        super().__init__()
        self.live = self.peak = self.wide = self.wide_peak = 0
        self._width = width
        self._known: set[int] = {tensor.untyped_storage()._cdata for tensor in before}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._add(leaf)
        return result

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._known:
            return
        size = storage.nbytes()
        wide = size if tensor.shape[-1:] == (self._width,) else 0
        self._known.add(storage._cdata)
        weakref.finalize(storage, self._drop, storage._cdata, size, wide)
        self.live, self.wide = self.live + size, self.wide + wide
        self.peak, self.wide_peak = max(self.peak, self.live), max(self.wide_peak, self.wide)

    def _drop(self, key: int, size: int, wide: int) -> None:
        self._known.discard(key)
        self.live, self.wide = self.live - size, self.wide - wide
