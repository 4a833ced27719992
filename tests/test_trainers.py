"""What the arguments of a training come to, and what the trainers learn."""

import copy

import numpy as np
import pytest
import torch
from training_setups import (
    MAKERS,
    TRAINING,
    build_weights,
    changed,
    make_cloning,
    make_critic,
    make_simpo,
    open_run,
    train_here,
)

from lactchain.errors import ConfigError
from lactchain.models.runtime import device
from lactchain.runs.run import read_metrics
from lactchain.trainers.base import train, training_arguments
from lactchain.trainers.guards import metric_key
from lactchain.trainers.simpo import (
    SimPOTrainer,
)

KINDS = pytest.mark.parametrize("kind", MAKERS)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return build_weights(tmp_path_factory.mktemp("weights"))


# --- arguments -----------------------------------------------------------------------------------


def test_arguments_suit_the_machine_and_keep_what_people_set(tmp_path):
    args = training_arguments(TRAINING, tmp_path, 3, report_to=[])
    assert args.use_cpu == (device().type == "cpu")
    assert not args.bf16
    assert not args.logging_nan_inf_filter
    assert (args.seed, args.data_seed, args.report_to) == (3, 3, [])
    assert args.save_total_limit is None
    assert args.get_warmup_steps(100) == 10


def test_without_an_interval_only_the_end_is_saved(tmp_path):
    args = training_arguments(changed(save_every_updates=0), tmp_path, 0)
    assert args.save_steps > 10**8


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("learning_rat", "no such argument"),
        *((name, "set by") for name in ("learning_rate", "use_cpu", "bf16", "fp16")),
    ],
)
def test_extra_arguments_must_exist_and_be_free(tmp_path, name, expected):
    with pytest.raises(ConfigError, match=f"training.extra.{name}: {expected}"):
        training_arguments(changed(extra={name: 1}), tmp_path, 0)


def test_a_value_that_transformers_refuses_is_an_error_of_the_configuration(tmp_path):
    with pytest.raises(
        ConfigError, match="training.extra: refused by transformers: .*fast.* is not a valid"
    ):
        training_arguments(changed(extra={"optim": "fast"}), tmp_path, 0)


def test_extra_arguments_reach_transformers(tmp_path):
    args = training_arguments(changed(extra={"adam_beta2": 0.9}), tmp_path, 0)
    assert args.adam_beta2 == 0.9


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("loss", "train/loss"),
        ("eval_loss", "eval/loss"),
        ("eval_rewards/margins", "eval/rewards/margins"),
        ("rewards/margins", "rewards/margins"),
        ("train_runtime", "time/train_runtime"),
    ],
)
def test_metric_names_are_ours(theirs, ours):
    assert metric_key(theirs) == ours


# --- training ------------------------------------------------------------------------------------


def test_simpo_learns_to_prefer_the_chosen_completions(weights, run_dir):
    with open_run(run_dir) as run:
        trainer = make_simpo(
            weights, run, lora=False, settings=changed(num_epochs=12, batch_size=10)
        )
        train(trainer)
    metrics = [m for m in read_metrics(run_dir) if "train/loss" in m]
    assert metrics[0]["rewards/margins"] < 0.5
    assert metrics[-1]["rewards/accuracies"] > 0.9
    assert metrics[-1]["rewards/margins"] > metrics[0]["rewards/margins"] + 1.0
    completions = ("chosen", "rejected")
    keys = [f"{name}/{which}" for name in ("rewards", "logps", "lengths") for which in completions]
    for key in (*keys, "train/nll_loss", "train/grad_norm", "train/learning_rate"):
        assert np.isfinite(metrics[-1][key])


def test_cloning_learns_the_completions(weights, run_dir):
    with open_run(run_dir) as run:
        train(
            make_cloning(
                weights, run, lora=False, settings=changed(num_epochs=8, learning_rate=1e-2)
            )
        )
    losses = [m["train/loss"] for m in read_metrics(run_dir) if "train/loss" in m]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("kind", ["simpo", "critic"])
def test_accumulated_small_batches_equal_one_large_batch(kind, weights, tmp_path):
    """Exact for losses that are means over rows; SimPO's NLL is a mean over tokens, so left out."""
    parameters = []
    for batch_size, accumulation in ((8, 1), (2, 4)):
        settings = changed(
            batch_size=batch_size,
            gradient_accumulation_steps=accumulation,
            max_steps=2,
            extra={"optim": "sgd", "max_grad_norm": 1e9},
        )
        with open_run(tmp_path / f"run-{batch_size}") as run:
            options = {"terminated": True} if kind == "critic" else {}
            trainer = MAKERS[kind](weights, run, lora=False, settings=settings, **options)
            if kind == "simpo":
                trainer.settings = type(trainer.settings)(nll_weight=0.0)
            train(trainer)
        parameters.append([p.detach() for p in trainer.model.parameters()])
    for large, small in zip(*parameters, strict=True):
        torch.testing.assert_close(large, small, atol=1e-6, rtol=1e-5)


@KINDS
def test_recomputed_activations_change_nothing(kind, weights, tmp_path):
    parameters = []
    for checkpointing in (False, True):
        settings = changed(max_steps=2, gradient_checkpointing=checkpointing)
        with open_run(tmp_path / f"run-{checkpointing}") as run:
            trainer = MAKERS[kind](weights, run, lora=True, settings=settings)
            train(trainer)
        parameters.append([p.detach() for p in trainer.model.parameters() if p.requires_grad])
    for kept, recomputed in zip(*parameters, strict=True):
        torch.testing.assert_close(kept, recomputed)


def test_attention_that_takes_no_mask_is_refused(weights, run_dir):
    with open_run(run_dir) as run:
        ready = make_simpo(weights, run, lora=True)
        ready.model.config._attn_implementation = "flash_attention_2"
        with pytest.raises(ConfigError, match="expected sdpa or eager.*got flash_attention_2"):
            SimPOTrainer(
                ready.model,
                ready.args,
                ready.train_dataset,
                ready.processing_class,
                ready.settings,
                run=run,
            )


@KINDS
def test_metrics_are_complete_and_in_order(kind, weights, run_dir):
    train_here(kind, weights, run_dir, {"lora": True})
    steps = [m["step"] for m in read_metrics(run_dir)]
    assert steps == [2, 4, 6, 8, 9, 9]  # the last one tells how long it took


@KINDS
def test_trained_model_can_be_copied(kind, weights, run_dir):
    """accelerate replaces `forward` by a closure, which in a copy would use the original."""
    with open_run(run_dir) as run:
        trainer = MAKERS[kind](weights, run, lora=True, settings=changed(max_steps=1))
        train(trainer)
    duplicate = copy.deepcopy(trainer.model).eval()
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.zero_()
    ids = torch.tensor([[5, 6, 7]])
    model = duplicate.trunk if kind in ("ilql", "mc") else duplicate
    output = model(input_ids=ids, attention_mask=torch.ones_like(ids))
    values = output if kind == "critic" else output.logits
    assert values.abs().sum() > 0


def test_evaluation_leaves_no_trace_in_the_random_state(weights, run_dir):
    with open_run(run_dir) as run:
        critic_trainer = make_critic(weights, run, lora=True, settings=changed(max_steps=1))
        before = torch.get_rng_state()
        critic_trainer.evaluate(critic_trainer.table)
        assert torch.equal(torch.get_rng_state(), before)
