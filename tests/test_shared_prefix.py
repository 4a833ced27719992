"""What the prompts of a batch share is read once, and nothing else changes."""

import random

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from training_setups import LORA, TRAINING, arguments, nudge, open_run

from lactchain.config.settings import ActorConfig, SimPOConfig
from lactchain.models.attention import can_read_once, shared_length
from lactchain.models.loading import load_actor
from lactchain.runs.process import seed_everything
from lactchain.trainers.behavior_cloning import IGNORED, BehaviorCloningTrainer, CompletionCollator
from lactchain.trainers.simpo import PreferenceCollator, SimPOTrainer

DRAW = random.Random(0)
INSTRUCTION = DRAW.choices(range(5, 200), k=40)
LENGTHS = [(3, 2), (1, 5), (6, 1), (4, 4), (2, 2), (5, 3), (3, 1)]
"""Of what each prompt has of its own, and of completions."""


def texts(*lengths: int) -> list[list[int]]:
    return [DRAW.choices(range(5, 200), k=length) for length in lengths]


PROMPTS = [[*INSTRUCTION, *own] for own in texts(*(own for own, _ in LENGTHS))]
CHOSEN = texts(*(said for _, said in LENGTHS))
REJECTED = texts(*(1 + said for _, said in LENGTHS))
CLONED = [
    {"input_ids": prompt + said, "labels": [IGNORED] * len(prompt) + said}
    for prompt, said in zip(PROMPTS, CHOSEN, strict=True)
]
PAIRS = [
    {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}
    for prompt, chosen, rejected in zip(PROMPTS, CHOSEN, REJECTED, strict=True)
]


def actor_of(tiny, lora=None, dtype="float32"):
    seed_everything(0, threads=1)
    config = ActorConfig(str(tiny / "actor"), lora=lora, dtype=dtype)
    return load_actor(config, trainable=True)


def trainer_of(kind, tiny, run_dir, **actor):
    model, tokenizer = actor_of(tiny, **actor)
    with open_run(run_dir) as run:
        args = arguments(TRAINING, run)
        if kind == "cloning":
            return BehaviorCloningTrainer(model, args, CLONED, tokenizer, run=run)
        return SimPOTrainer(model, args, PAIRS, tokenizer, SimPOConfig(nll_weight=0.5), run=run)


def unshared(trainer):
    """The collator that repeats what is shared in every row."""
    if isinstance(trainer, SimPOTrainer):
        return PreferenceCollator(trainer.processing_class.pad_token_id)
    return CompletionCollator(trainer.processing_class)


def gradients(trainer, batch) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch, and its gradient with respect to each trained weight."""
    trainer.model.zero_grad()
    with trainer.compute_loss_context_manager():
        loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    named = trainer.model.named_parameters()
    return loss.detach(), {name: p.grad.clone() for name, p in named if p.requires_grad}


@pytest.mark.parametrize("kind", ["cloning", "simpo"])
@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "adapter"])
@pytest.mark.parametrize("recomputed", [False, True], ids=["kept", "recomputed"])
def test_loss_and_gradients_are_those_of_whole_rows(kind, lora, recomputed, tiny, run_dir):
    trainer = trainer_of(kind, tiny, run_dir, lora=lora)
    nudge(trainer.model, 0.1)  # adapters begin at zero, and nothing would flow into half of them
    if recomputed:
        trainer.model.activation_checkpointing_enable()
        trainer.model.enable_input_require_grads()
    rows = list(trainer.train_dataset)
    shared, whole = trainer.data_collator(rows), unshared(trainer)(rows)
    assert shared["prefix_ids"].tolist()[: len(INSTRUCTION)] == INSTRUCTION
    assert shared["input_ids"].numel() < whole["input_ids"].numel() / 2
    loss, found = gradients(trainer, shared)
    expected_loss, expected = gradients(trainer, whole)
    torch.testing.assert_close(loss, expected_loss, atol=1e-6, rtol=1e-6)
    assert any(gradient.abs().max() > 1e-3 for gradient in expected.values())
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["cloning", "simpo"])
def test_weights_of_16_bits_give_the_loss_that_rounding_allows(kind, tiny, run_dir):
    trainer = trainer_of(kind, tiny, run_dir, dtype="bfloat16")
    rows = list(trainer.train_dataset)
    loss, found = gradients(trainer, trainer.data_collator(rows))
    expected_loss, expected = gradients(trainer, unshared(trainer)(rows))
    torch.testing.assert_close(loss, expected_loss, atol=0.02, rtol=0.01)
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() < 0.05 * gradient.norm() + 1e-3, name


@pytest.mark.parametrize("kind", ["cloning", "simpo"])
@pytest.mark.parametrize("read", ["once", "in whole rows"])
def test_an_adapter_learns_in_bfloat16_what_it_learns_in_float32(kind, read, tiny, run_dir):
    steps, computed = [], []
    for dtype in ("float32", "bfloat16"):
        trainer = trainer_of(kind, tiny, run_dir / dtype, lora=LORA, dtype=dtype)
        nudge(trainer.model, 0.1)
        layers = [module for module in trainer.model.modules() if hasattr(module, "lora_A")]
        layers[0].lora_A["default"].register_forward_hook(lambda *call: computed.append(call[2]))
        collate = trainer.data_collator if read == "once" else unshared(trainer)
        steps.append(gradients(trainer, collate(list(trainer.train_dataset))))
        assert all(layer.cast_input_dtype_enabled for layer in layers)  # as one plays with it
    assert [output.dtype for output in computed] == [torch.float32, torch.bfloat16]
    (expected_loss, expected), (loss, found) = steps
    torch.testing.assert_close(loss, expected_loss, atol=0.02, rtol=0.01)
    assert {gradient.dtype for gradient in found.values()} == {torch.float32}
    both = (torch.cat([g.flatten() for g in step.values()]) for step in (expected, found))
    assert functional.cosine_similarity(*both, dim=0) > 0.9  # .96 to .99 on one processor


def test_a_beginning_is_read_apart_where_that_saves_a_quarter_of_the_tokens():
    prompts = [[1, 2, 3, 4, 5], [1, 2, 3, 6], [1, 2, 3, 4]]
    assert shared_length(prompts, longest=8) == 3  # 6 of 24
    assert shared_length(prompts, longest=9) == 0  # 6 of 27
    assert shared_length(prompts[:2], longest=6) == 3  # 3 of 12
    assert shared_length(prompts[:2], longest=7) == 0
    assert shared_length([[1, 2, 3, 4]], longest=5) == 0  # of one row nothing is saved
    # The last token of a prompt stays in its row: it predicts the first of its completion.
    assert shared_length([[1, 2, 3], [1, 2, 3]], longest=4) == 2
    assert shared_length([[1, 2, 3], [1, 2, 3, 4]], longest=4) == 2


@pytest.mark.parametrize("kind", ["cloning", "simpo"])
def test_rows_that_share_little_are_read_as_ever(kind, tiny, run_dir):
    trainer = trainer_of(kind, tiny, run_dir)
    cut = len(INSTRUCTION) - 2
    rows = [{name: ids[cut:] for name, ids in row.items()} for row in CLONED]
    if kind == "simpo":
        rows = [row | {"prompt_ids": row["prompt_ids"][cut:]} for row in PAIRS]
    batch, expected = trainer.data_collator(rows), unshared(trainer)(rows)
    assert batch.keys() == expected.keys() and "prefix_ids" not in batch
    loss, found = gradients(trainer, batch)
    trainer.model.set_attn_implementation("sdpa")
    expected_loss, expected = gradients(trainer, expected)
    assert loss == expected_loss  # to the last digit
    torch.testing.assert_close(found, expected, atol=0, rtol=0)


def test_other_attention_reads_whole_rows(tiny):
    model, _ = actor_of(tiny)
    model.set_attn_implementation("eager")
    assert not can_read_once(model) and model.config._attn_implementation == "eager"
    model.set_attn_implementation("sdpa")
    assert can_read_once(model) and can_read_once(model)  # a second trainer of the same model
