"""Models on the meta device, and the passes that training makes: shapes without numbers.

A model is built by transformers and PEFT as it will be trained. What has no kernel on the meta
device is imitated: the layers of bitsandbytes, and autocast.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from lactchain.functional.tokens import token_logprobs
from lactchain.models.adapters import Task, attach_lora
from lactchain.models.allocations import COUNTED
from lactchain.models.heads import ValueHead, value_encoder_class
from lactchain.models.runtime import quiet
from lactchain.settings import LoraSettings


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


def build(spec: ModelSpec, training: bool = False, autocast: bool = False) -> PreTrainedModel:
    """The model, frozen or ready to be trained.

    Args:
        autocast: the accelerator computes in bfloat16, also with weights that are in float32.
    """
    shape = copy.deepcopy(spec.shape)
    with torch.device("meta"), quiet():
        if spec.task == "SEQ_CLS":
            model = value_encoder_class(shape)._from_config(shape, dtype=spec.dtype)
        else:
            model = AutoModelForCausalLM.from_config(shape, dtype=spec.dtype)
        model.set_attn_implementation(COUNTED)
        if spec.task == "SEQ_CLS":
            model.score = model.score.float()
        if spec.bits is not None:
            _imitate_quantisation(model, spec.bits, training)
        if spec.lora is not None:
            model = attach_lora(model, spec.lora, spec.task)
            if autocast:
                _imitate_autocast(model)
        elif autocast and spec.dtype == torch.float32:
            _imitate_rounding(model)
    return model.train() if training else model.requires_grad_(False).eval()


def base_of(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """The model inside an adapter's wrapper."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def quantised_layers(model: nn.Module) -> Iterator[nn.Linear]:
    """The layers that bitsandbytes takes: all linear ones but the output's and the adapter's."""
    for name, layer in model.named_modules():
        apart = ("lm_head", "score", "lora_")
        if isinstance(layer, nn.Linear) and not any(part in name for part in apart):
            yield layer


class MetaValues(nn.Module):
    """A value model over a trunk on the meta device."""

    def __init__(self, trunk: PreTrainedModel, heads: Heads) -> None:
        super().__init__()
        vocabulary, width = trunk.get_output_embeddings().weight.shape
        self.trunk, self.heads = trunk, heads
        with torch.device("meta"):
            self.q_heads = nn.ModuleList(
                ValueHead(width, heads.size, vocabulary) for _ in range(heads.num_q)
            )
            self.v_head = ValueHead(width, heads.size, 1)

    def q(self, states: Tensor) -> Tensor:
        """All Q of some states; `ValueHead.forward` asks for autocast, which is not there."""
        return torch.stack([nn.Sequential.forward(head, states.float()) for head in self.q_heads])


def loss_of(model: nn.Module, batch: PassSize) -> Tensor:
    """The loss of a batch, as the trainer of its kind computes it."""
    losses = {
        "preferences": _preference_loss,
        "cloning": _cloning_loss,
        "critic": lambda model, batch: critic_values(model, batch).square().mean(),
        "values": _value_loss,
    }
    return losses[batch.loss](model, batch)


def critic_values(model: nn.Module, batch: PassSize) -> Tensor:
    """The values of a batch, from the last token of each row."""
    classifier = base_of(model)
    hidden = classifier.base_model(**_texts(batch, torch.bool), use_cache=False).last_hidden_state
    return classifier.score(hidden[:, -1].float()).squeeze(-1)


def _preference_loss(model: nn.Module, batch: PassSize) -> Tensor:
    texts = _texts(batch, base_of(model).dtype)
    logits = model(**texts, logits_to_keep=_columns(batch)).logits
    return token_logprobs(logits, texts["input_ids"][:, -batch.scored :]).mean()


def _cloning_loss(model: nn.Module, batch: PassSize) -> Tensor:
    texts = _texts(batch, torch.bool)
    labels = texts["input_ids"][:, -batch.scored :]
    return model(**texts, labels=labels, logits_to_keep=_columns(batch)).loss


def _columns(batch: PassSize) -> Tensor:
    """The last columns, by their numbers: a slice of them would copy a frozen output layer."""
    return torch.arange(batch.tokens - batch.scored, batch.tokens, device="meta")


def _value_loss(model: MetaValues, batch: PassSize) -> Tensor:
    """The parts that ILQL and MC share, and the target network's pass where there is one."""
    dtype, count = base_of(model.trunk).dtype, batch.scored
    texts = _texts(batch, dtype)
    decoder = base_of(model.trunk).get_decoder()
    state = torch.zeros(count, dtype=torch.long, device="meta")

    def states() -> Tensor:
        return decoder(**texts, use_cache=False).last_hidden_state.flatten(0, 1)[state]

    hidden = states()
    q, v = model.q(hidden), nn.Sequential.forward(model.v_head, hidden.float()).squeeze(-1)
    chosen, log_sums = q[:, state, state], q.logsumexp(dim=-1)[:, state]
    loss = (chosen - v).square().mean() + (log_sums - chosen).mean()
    if all(batch.behind):
        with torch.no_grad():
            decoder(**_texts(PassSize(*batch.behind), dtype), use_cache=False)
    if model.heads.policy:
        logits = model.trunk.get_output_embeddings()(hidden)
        loss = loss - token_logprobs(logits[state], state).mean()
    if model.heads.target:
        with torch.no_grad():
            target = model.q(states()).amin(dim=0)[state, state]
        loss = loss + (target - v).square().mean()
    return loss


def _texts(batch: PassSize, mask_dtype: torch.dtype) -> dict[str, Tensor]:
    ids = torch.zeros(batch.rows, batch.tokens, dtype=torch.long, device="meta")
    shape = batch.rows, 1, batch.tokens, batch.tokens
    mask = torch.zeros(shape, dtype=mask_dtype, device="meta")
    return {"input_ids": ids, "position_ids": ids.clone(), "attention_mask": mask}


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


class _RoundedLinear(nn.Linear):
    """Under autocast a layer in float32 computes with a copy of its weights in bfloat16."""

    copies: list[Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(torch.bfloat16)
        if self.copies is not None:
            self.copies.append(weight)
        bias = None if self.bias is None else self.bias.to(torch.bfloat16)
        return functional.linear(x.to(torch.bfloat16), weight, bias)


@contextmanager
def rounded_copies(model: nn.Module) -> Iterator[None]:
    """Keeps the copies that autocast makes of weights, as it does until a forward pass ends."""
    layers = [layer for layer in model.modules() if isinstance(layer, _RoundedLinear)]
    copies: list[Tensor] = []
    for layer in layers:
        layer.copies = copies
    yield
    for layer in layers:
        layer.copies = None


def _imitate_rounding(model: PreTrainedModel) -> None:
    """Lets all layers but a critic's head be `_RoundedLinear`."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and name != "score":
            layer.__class__ = _RoundedLinear


def _imitate_autocast(model: PeftModel) -> None:
    """Under autocast each adapter reads a copy of its input in bfloat16."""
    for name, layer in model.named_modules():
        if "lora_" in name and isinstance(layer, nn.Linear):
            layer.to(torch.bfloat16)
            layer.register_forward_pre_hook(lambda _, inputs: (inputs[0].clone(),))
