"""What the arguments of a training come to, and what the trainers learn."""

import copy

import numpy as np
import pytest
import torch
from training_setups import (
    MAKERS,
    TRAINING,
    changed,
    make_cloning,
    make_critic,
    make_simpo,
    open_run,
)

from lactchain.errors import ConfigError
from lactchain.models.runtime import device
from lactchain.runs.run import read_metrics
from lactchain.trainers.base import train, training_arguments
from lactchain.trainers.simpo import SimPOTrainer

# --- arguments -----------------------------------------------------------------------------------


def test_arguments_suit_the_machine_and_keep_what_people_set(tmp_path):
    settings = changed(save_every_updates=0, extra={"adam_beta2": 0.9})
    args = training_arguments(settings, tmp_path, 3, report_to=[])
    assert args.use_cpu == (device().type == "cpu")
    assert not args.bf16 and not args.logging_nan_inf_filter
    assert (args.seed, args.data_seed, args.report_to) == (3, 3, [])
    assert args.save_total_limit is None and args.adam_beta2 == 0.9
    assert args.save_steps > 10**8  # the end alone is saved
    assert training_arguments(TRAINING, tmp_path, 3).get_warmup_steps(100) == 10


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (".learning_rat", "no such argument"),
        *((name, "set by") for name in (".learning_rate", ".use_cpu", ".bf16", ".fp16")),
        ("", "refused by transformers: .*fast.* is not a valid"),
    ],
)
def test_extra_arguments_must_exist_and_be_free_and_valid(tmp_path, name, expected):
    with pytest.raises(ConfigError, match=f"training.extra{name}: {expected}"):
        training_arguments(changed(extra={name[1:] or "optim": "fast"}), tmp_path, 0)


# --- training ------------------------------------------------------------------------------------


def test_simpo_learns_to_prefer_the_chosen_completions(tiny, run_dir):
    settings = changed(num_epochs=12, batch_size=10)
    with open_run(run_dir) as run:
        train(make_simpo(tiny, run, lora=False, settings=settings))
    first, *_, last = [m for m in read_metrics(run_dir) if "train/loss" in m]
    assert first["rewards/margins"] < 0.5
    assert last["rewards/accuracies"] > 0.9
    assert last["rewards/margins"] > first["rewards/margins"] + 1.0
    completions = ("chosen", "rejected")
    keys = [f"{name}/{which}" for name in ("rewards", "logps", "lengths") for which in completions]
    for key in (*keys, "train/nll_loss", "train/grad_norm", "train/learning_rate"):
        assert np.isfinite(last[key])


def test_cloning_learns_the_completions(tiny, run_dir):
    settings = changed(num_epochs=8, learning_rate=1e-2)
    with open_run(run_dir) as run:
        train(make_cloning(tiny, run, lora=False, settings=settings))
    losses = [m["train/loss"] for m in read_metrics(run_dir) if "train/loss" in m]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("kind", ["simpo", "critic"])
def test_accumulated_small_batches_equal_one_large_batch(kind, tiny, tmp_path):
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
            trainer = MAKERS[kind](tiny, run, lora=False, settings=settings, **options)
            if kind == "simpo":
                trainer.settings = type(trainer.settings)(nll_weight=0.0)
            train(trainer)
        parameters.append([p.detach() for p in trainer.model.parameters()])
    for large, small in zip(*parameters, strict=True):
        torch.testing.assert_close(large, small, atol=1e-6, rtol=1e-5)


@pytest.fixture(scope="module", params=MAKERS)
def trained(request, tiny, tmp_path_factory):
    """A kind of training, its trainer after two updates, and its run."""
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    with open_run(run_dir) as run:
        trainer = MAKERS[request.param](tiny, run, lora=True, settings=changed(max_steps=2))
        train(trainer)
    return request.param, trainer, run_dir


def test_recomputed_activations_change_nothing(trained, tiny, run_dir):
    kind, plain, _ = trained
    settings = changed(max_steps=2, gradient_checkpointing=True)
    with open_run(run_dir) as run:
        recomputed = MAKERS[kind](tiny, run, lora=True, settings=settings)
        train(recomputed)
    other = dict(recomputed.model.named_parameters())
    for name, parameter in plain.model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(other[name], parameter)


def test_attention_that_takes_no_mask_is_refused(tiny, run_dir):
    with open_run(run_dir) as run:
        ready = make_simpo(tiny, run, lora=True)
        ready.model.config._attn_implementation = "flash_attention_2"
        given = ready.model, ready.args, ready.train_dataset, ready.processing_class, ready.settings
        with pytest.raises(ConfigError, match="expected sdpa or eager.*got flash_attention_2"):
            SimPOTrainer(*given, run=run)


def test_every_trainer_logs_its_updates_and_how_long_they_took(trained):
    first, second = read_metrics(trained[2])
    assert first["step"] == second["step"] == 2
    assert np.isfinite(first["train/loss"]) and second["time/train_runtime"] > 0


def test_trained_model_can_be_copied(trained):
    """accelerate replaces `forward` by a closure, which in a copy would use the original."""
    kind, trainer, _ = trained
    duplicate = copy.deepcopy(trainer.model).eval()
    with torch.no_grad():
        for parameter in duplicate.parameters():
            parameter.zero_()
    ids = torch.tensor([[5, 6, 7]])
    outputs = []
    for model in (trainer.model.eval(), duplicate):
        model = model.trunk if kind in ("ilql", "mc") else model
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids))
        outputs.append(output if kind == "critic" else output.logits)
    assert not torch.equal(*outputs)


def test_evaluation_leaves_no_trace_in_the_random_state(tiny, run_dir):
    with open_run(run_dir) as run:
        critic_trainer = make_critic(tiny, run, lora=True, settings=changed(max_steps=1))
        before = torch.get_rng_state()
        critic_trainer.evaluate(critic_trainer.table)
        assert torch.equal(torch.get_rng_state(), before)
