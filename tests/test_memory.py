"""The estimate of memory is what the trainers and the decoder take, counted on a small model."""

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, MistralConfig

from lactchain.functional.token_losses import ilql_losses
from lactchain.functional.tokens import token_logprobs
from lactchain.models.adapters import attach_lora
from lactchain.models.critic import EmbeddingCritic
from lactchain.models.generation.decoding import Decoder
from lactchain.models.loading import load_encoder
from lactchain.models.memory import (
    SHAPES,
    MemoryEstimate,
    Sharing,
    _pass_memory,
    rollout_memory,
    scoring_memory,
    training_memory,
)
from lactchain.models.meta_models import (
    Allocations,
    Heads,
    ModelSpec,
    PassSize,
    TextLengths,
    at_depth,
    in_training,
)
from lactchain.models.values import ValueMeaning, ValueModel
from lactchain.settings import CriticConfig, LoraSettings
from lactchain.trainers.simpo import PreferenceCollator, completion_logprobs

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import random_models  # noqa: E402

SHAPE = MistralConfig(
    hidden_size=128, intermediate_size=448, num_hidden_layers=6, num_attention_heads=4,
    num_key_value_heads=1, head_dim=32, vocab_size=2048, sliding_window=None, pad_token_id=0,
)  # fmt: skip
LORA = LoraSettings(r=8)
PROMPT, COMPLETION, ROWS = 60, 12, 4
ACTOR = ModelSpec(SHAPE, lora=LORA)
CRITIC = ModelSpec(random_models.shape_of(random_models.ENCODER, 128, 6), "SEQ_CLS", lora=LORA)


def slow(value):
    """A second case of what a quick one shows; to estimate on paper takes seconds of it."""
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> str:
    """The folder of the critic's base."""
    folder = tmp_path_factory.mktemp("encoder")
    random_models.build_encoder(folder, hidden_size=128, num_layers=6)
    return str(folder)


def model_of(spec: ModelSpec, encoder: str, checkpointing: bool = False):
    if spec.task == "SEQ_CLS":
        dtype = str(spec.dtype).removeprefix("torch.")
        model, _ = load_encoder(CriticConfig(encoder, dtype=dtype))
    else:
        model = AutoModelForCausalLM.from_config(SHAPE, dtype=spec.dtype)
    if spec.lora is not None:
        model = attach_lora(model, spec.lora, spec.task)
    if checkpointing:
        model.enable_input_require_grads()
        model.activation_checkpointing_enable()
    return model.train()


def simpo_loss(model) -> Tensor:
    row = {
        "prompt_ids": [1] * PROMPT, "chosen_ids": [5] * COMPLETION, "rejected_ids": [6] * COMPLETION
    }  # fmt: skip
    batch = PreferenceCollator(0)([row] * ROWS)
    return completion_logprobs(model, **batch, config=model.config, dtype=model.dtype)[0].mean()


def cloning_loss(model) -> Tensor:
    ids = torch.ones(ROWS, PROMPT + COMPLETION, dtype=torch.long)
    kept = COMPLETION + 1
    mask = torch.ones_like(ids)
    mask[0, 0] = 0  # a padded row: there is a mask
    return model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=ids.cumsum(1) - 1,
        labels=ids[:, -kept:],
        logits_to_keep=torch.arange(ids.shape[1] - kept, ids.shape[1]),
    ).loss


def critic_loss(model) -> Tensor:
    ids = torch.ones(ROWS, PROMPT, dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[0, -1] = 0
    critic = EmbeddingCritic(model, None, CriticConfig())
    return critic(ids, mask).square().mean()


def saved_bytes(loss_of, model) -> int:
    """The bytes that autograd keeps for the backward pass."""
    weights = {w.untyped_storage().data_ptr() for w in model.parameters()}
    kept: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss_of(model)
    return sum(size for size, _ in kept.values())


CASES = {
    "simpo": (ACTOR, simpo_loss, PassSize(ROWS, PROMPT + 1 + 2 * COMPLETION, 1 + 2 * COMPLETION)),
    "cloning": (
        ACTOR,
        cloning_loss,
        PassSize(ROWS, PROMPT + COMPLETION, COMPLETION + 1, "cloning"),
    ),
    "critic": (CRITIC, critic_loss, PassSize(ROWS, PROMPT, loss="critic")),
}


@cache
def estimated(case: str, checkpointing: bool) -> MemoryEstimate:
    """Of training a case's adapter; made once, since it takes a second."""
    spec, _, batch = CASES[case]
    return training_memory(spec, batch, checkpointing=checkpointing)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
def test_a_training_step_takes_what_was_estimated(case, checkpointing, encoder):
    spec, loss_of, _ = CASES[case]
    estimate = estimated(case, checkpointing)
    model = model_of(spec, encoder, checkpointing)
    weights = sum(w.nbytes for w in model.parameters())
    assert estimate.weights + estimate.adapter == weights
    with Allocations(*model.parameters(), *model.buffers()) as counter:
        loss_of(model).backward()
    trained = [w for w in model.parameters() if w.requires_grad]
    assert estimate.gradients == sum(w.grad.nbytes for w in trained)
    step = estimate.activations + estimate.logits + estimate.passing
    assert counter.peak == pytest.approx(step, rel=0.1)


@pytest.mark.parametrize("case", ["simpo", slow("cloning"), "critic"])
@pytest.mark.parametrize("checkpointing", [slow(False), True], ids=["kept", "recomputed"])
def test_all_weights_in_mixed_precision_take_what_was_estimated(case, checkpointing, encoder):
    spec, loss_of, batch = CASES[case]
    spec = replace(spec, lora=None, dtype=torch.float32)
    estimate = training_memory(spec, batch, checkpointing=checkpointing, autocast=True)
    model = model_of(spec, encoder, checkpointing)
    weights = list(model.parameters())
    assert estimate.weights == sum(w.nbytes for w in weights)
    for weight in weights:  # accumulated since the first pass of an update
        weight.grad = torch.zeros_like(weight)
    gradients = [weight.grad for weight in weights]
    with Allocations(*weights, *model.buffers(), *gradients) as counter:
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model)
        loss.backward()
    assert estimate.gradients == sum(gradient.nbytes for gradient in gradients)
    assert estimate.optimizer == 2 * estimate.gradients
    step = estimate.activations + estimate.logits + estimate.passing
    assert counter.peak == pytest.approx(step, rel=0.1)


@pytest.mark.parametrize("case", CASES)
def test_what_autograd_keeps_is_what_was_estimated(case, encoder):
    spec, loss_of, _ = CASES[case]
    estimate = estimated(case, False)
    # Of the logits some are there before the backward pass, the others come with it.
    kept = saved_bytes(loss_of, model_of(spec, encoder))
    assert 0.98 * estimate.activations < kept < 1.02 * (estimate.activations + estimate.logits)


@pytest.mark.parametrize("spec", [replace(ACTOR, lora=None), replace(ACTOR, dtype=torch.float32)])
def test_other_weights_are_estimated_as_well(spec, encoder):
    _, loss_of, batch = CASES["simpo"]
    estimate, model = training_memory(spec, batch), model_of(spec, encoder)
    loss_of(model).backward()  # gradients are there from now on
    with Allocations(
        *model.parameters(), *(w.grad for w in model.parameters() if w.grad is not None)
    ) as counter:
        loss_of(model).backward()
    step = estimate.activations + estimate.logits + estimate.passing
    assert counter.peak == pytest.approx(step, rel=0.1)


@pytest.mark.parametrize("policy", [slow(False), True])
@pytest.mark.parametrize("behind", [slow((0, 0)), (8 * ROWS, 2 * PROMPT)], ids=["alone", "behind"])
def test_a_step_of_the_values_takes_what_was_estimated(policy, behind, encoder):
    heads = Heads(num_q=2, size=256, target=True, policy=policy)
    batch = PassSize(ROWS, PROMPT + COMPLETION, ROWS * COMPLETION, "values", behind)
    estimate = training_memory(ACTOR, batch, heads=heads)
    values = ValueModel(model_of(ACTOR, encoder), None, ValueMeaning("ilql", 0.9, "", 2, 256))
    values.start_target()
    own = [*values.q_heads.parameters(), *values.v_head.parameters()]
    assert estimate.heads == sum(p.nbytes for p in [*own, *values.target.values()])

    def trees_of(rows: int, tokens: int) -> dict[str, Tensor]:
        ids = torch.ones(rows, tokens, dtype=torch.long)
        return {
            "input_ids": ids, "position_ids": ids.cumsum(1) - 1, "subtree_ends": ids * tokens
        }  # fmt: skip

    trees = trees_of(ROWS, PROMPT + COMPLETION)
    state = torch.arange(ROWS * COMPLETION)
    for weight in values.parameters():  # accumulated since the first pass of an update
        weight.grad = torch.zeros_like(weight) if weight.requires_grad else None
    gradients = [weight.grad for weight in values.parameters() if weight.grad is not None]
    with Allocations(*values.parameters(), *values.target.values(), *gradients) as counter:
        found = values(trees, state, state, policy)
        if all(behind):
            values.state_values(trees_of(*behind), state)
        log_sums = found["q"].logsumexp(dim=-1)
        target = values.target_q(trees, state)
        losses = ilql_losses(
            found["q"][:, state, 5], log_sums, found["v"], target[:, 5], found["v"].detach(),
            found["v"].detach(), found["v_next"], 0.7,
        )  # fmt: skip
        loss = sum(part.mean() for part in losses.values())
        if policy:
            loss = loss - token_logprobs(found["logits"], state).mean()
        loss.backward()
    assert estimate.gradients == sum(gradient.nbytes for gradient in gradients)
    step = estimate.activations + estimate.logits + estimate.passing
    assert counter.peak == pytest.approx(step, rel=0.1)


@pytest.mark.parametrize("num_candidates", [slow(1), 4])
def test_completions_take_what_was_estimated(num_candidates, encoder):
    rows, prefix, prompt, completion = 16, 20, 40, 40
    lengths = TextLengths(prefix, prompt, completion, columns=2048)
    # Deep: passes are estimated through two layers, the cache and the prefix through all.
    actor = replace(ACTOR, shape=MistralConfig(**(SHAPE.to_dict() | {"num_hidden_layers": 6})))
    estimate = rollout_memory(actor, lengths, rows, rows // num_candidates)
    model = model_of(actor, encoder).requires_grad_(False).eval()
    with Allocations(*model.parameters(), *model.buffers()) as counter:
        decoder = Decoder(model, 9999, [1] * prefix, completion)
        prompts = [[1] * prefix + [row // num_candidates + 2] * prompt for row in range(rows)]
        decoder.sample(prompts, range(rows))
    taken = estimate.cache + estimate.logits + estimate.passing
    assert counter.peak == pytest.approx(taken, rel=0.1)


def test_scores_of_a_critic_take_what_was_estimated(encoder):
    estimate = scoring_memory(CRITIC, rows=16, tokens=PROMPT)
    critic = EmbeddingCritic(model_of(CRITIC, encoder), None, CriticConfig()).eval()
    ids = torch.ones(16, PROMPT, dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[0, -1] = 0
    with torch.inference_mode(), Allocations(*critic.parameters(), *critic.buffers()) as counter:
        critic(ids, mask)
    assert counter.peak == pytest.approx(estimate.passing, rel=0.1)


def test_deep_models_are_estimated_from_few_of_their_layers():
    deep, batch = (
        MistralConfig(**(SHAPE.to_dict() | {"num_hidden_layers": 6})),
        PassSize(2, 50, 10),
    )
    estimate = training_memory(replace(ACTOR, shape=deep), batch, checkpointing=True)
    model = in_training(replace(ACTOR, shape=deep), checkpointing=True)
    whole = _pass_memory(model, batch, autocast=False)
    for part in ("activations", "logits", "passing"):
        assert getattr(estimate, part) == getattr(whole, part)
    assert estimate.weights + estimate.adapter == sum(p.nbytes for p in model.parameters())


def test_processes_share_what_lasts():
    batch = PassSize(8, 256, 80)
    seven_billion = ModelSpec(SHAPES["mistralai/Mistral-7B-Instruct-v0.3"], lora=LoraSettings())
    spec = at_depth(seven_billion, 2)
    alone = training_memory(spec, batch)
    ddp = training_memory(spec, batch, sharing=Sharing(8, "ddp"))
    assert ddp.total == alone.total + alone.gradients
    fsdp = training_memory(spec, batch, sharing=Sharing(8, "fsdp"))
    assert fsdp.weights == alone.weights // 8 and fsdp.activations == alone.activations
    assert 1.2e9 < fsdp.gathered < 1.6e9  # two layers, embeddings and the output layer


@pytest.mark.parametrize("lora", [None, LoraSettings()], ids=["all weights", "adapter"])
def test_a_sharded_model_is_whole_on_every_gpu_before_it_is_spread(lora):
    """accelerate keeps all of it until the last shard is made, in float32 what is trained."""
    shape = SHAPES["mistralai/Mistral-7B-Instruct-v0.3"]
    batch, sharing = PassSize(1, 16, 4), Sharing(16, "fsdp")
    sizes = [
        training_memory(ModelSpec(shape, dtype=dtype, lora=lora), batch, autocast=True,
                        sharing=sharing).total
        for dtype in (torch.bfloat16, torch.float32)
    ]  # fmt: skip
    number = 7_248_023_552
    if lora is None:
        assert sizes == pytest.approx([17 / 16 * 4 * number] * 2, rel=1e-3)
    else:
        assert sizes == pytest.approx([17 / 16 * 2 * number, 17 / 16 * 4 * number], rel=0.02)
