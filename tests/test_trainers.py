"""What the arguments of a training come to, what trainers learn, and what they take care of."""

import copy
import shutil
import signal
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.state import AcceleratorState
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader
from training_setups import MAKERS, TRAINING, changed, make_critic, make_simpo, open_run, train_here

from lactchain import ConfigError, Interrupted, SimPOTrainer
from lactchain.models.runtime import device
from lactchain.runs.run import read_metrics
from lactchain.trainers import base, guards
from lactchain.trainers.base import train, training_arguments
from lactchain.trainers.guards import share_out


def test_arguments_suit_the_machine_and_keep_what_people_set(tmp_path):
    settings = changed(save_every_updates=0, extra={"adam_beta2": 0.9})
    args = training_arguments(settings, tmp_path, 3, report_to=[])
    assert args.use_cpu == (device().type == "cpu")
    assert not args.bf16 and not args.logging_nan_inf_filter
    assert (args.seed, args.data_seed, args.report_to) == (3, 3, [])
    assert args.save_total_limit is None and args.adam_beta2 == 0.9
    assert args.save_steps > 10**8  # the end alone is saved
    assert training_arguments(TRAINING, tmp_path, 3).get_warmup_steps(100) == 10


@pytest.mark.parametrize("name", ["learning_rat", "learning_rate", "bf16", "optim"])
def test_extra_arguments_must_be_free_and_valid(tmp_path, name):
    invalid = ": refused by transformers: .*fast.* is not a valid"
    said = invalid if name == "optim" else f".{name}: expected an argument"
    with pytest.raises(ConfigError, match=f"training.extra{said}"):
        training_arguments(changed(extra={name: "fast"}), tmp_path, 0)


def test_simpo_learns_to_prefer_the_chosen_completions(tiny, run, run_dir):
    train(make_simpo(tiny, run, lora=False, settings=changed(num_epochs=12, batch_size=10)))
    first, *_, last = [m for m in read_metrics(run_dir) if "train/loss" in m]
    assert first["rewards/margins"] < 0.5 and last["rewards/accuracies"] > 0.9
    assert last["rewards/margins"] > first["rewards/margins"] + 1.0
    completions = ("chosen", "rejected")
    keys = [f"{name}/{which}" for name in ("rewards", "logps", "lengths") for which in completions]
    for key in (*keys, "train/nll_loss", "train/grad_norm", "train/learning_rate"):
        assert np.isfinite(last[key])


@pytest.fixture(scope="module", params=MAKERS)
def trained(request, tiny, tmp_path_factory):
    """A kind of training, and its trainer after two updates."""
    with open_run(tmp_path_factory.mktemp("trained") / "run") as run:
        trainer = MAKERS[request.param](tiny, run, lora=True, settings=changed(max_steps=2))
        train(trainer)
    return request.param, trainer


def test_recomputed_activations_change_nothing(trained, tiny, run):
    kind, plain = trained
    settings = changed(max_steps=2, gradient_checkpointing=True)
    recomputed = MAKERS[kind](tiny, run, lora=True, settings=settings)
    train(recomputed)
    other = dict(recomputed.model.named_parameters())
    for name, parameter in plain.model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(other[name], parameter)


def test_attention_that_takes_no_mask_is_refused(tiny, run):
    ready = make_simpo(tiny, run, lora=True)
    ready.model.config._attn_implementation = "flash_attention_2"
    given = ready.model, ready.args, ready.train_dataset, ready.processing_class, ready.settings
    with pytest.raises(ConfigError, match="expected sdpa or eager.*got flash_attention_2"):
        SimPOTrainer(*given, run=run)


def test_trained_model_can_be_copied(trained):
    """accelerate replaces `forward` by a closure, which in a copy would use the original."""
    kind, trainer = trained
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


def test_evaluation_leaves_no_trace_in_the_random_state(tiny, run):
    critic_trainer = make_critic(tiny, run, lora=True, settings=changed(max_steps=1))
    before = torch.get_rng_state()
    critic_trainer.evaluate(critic_trainer.table)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture
def four_gpus(monkeypatch):
    """A process that sees four GPUs, as far as the arguments of a trainer ask."""
    monkeypatch.setattr(base, "device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_a_process_that_sees_several_gpus_trains_on_one(four_gpus, tmp_path):
    args = training_arguments(TRAINING, tmp_path, 0)
    assert (args.device, args.n_gpu) == (torch.device("cuda", 0), 1)
    assert args.train_batch_size == TRAINING.batch_size


@pytest.mark.parametrize("make", [make_simpo, make_critic], ids=["in update", "in evaluation"])
def test_a_stop_before_the_first_update_tells_of_no_save(make, tiny, run, run_dir, monkeypatch):
    trainer = make(tiny, run, lora=True)
    monkeypatch.setattr(guards, "stop_requested", lambda: signal.SIGTERM)
    with pytest.raises(Interrupted, match="give the same command to begin again") as stop:
        train(trainer)
    assert "saved in" not in str(stop.value)
    assert not list(run_dir.glob("checkpoints/checkpoint-*"))


@pytest.fixture
def told_to_tensorboard(monkeypatch):
    told = partial(training_arguments, report_to=["tensorboard"])
    monkeypatch.setattr("training_setups.training_arguments", told)


@pytest.mark.usefixtures("told_to_tensorboard")
def test_a_tracker_that_fails_costs_one_warning(tiny, run, run_dir, monkeypatch, caplog):
    fails = Mock(side_effect=ConnectionError("no route to host"))
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", fails)
    train(make_simpo(tiny, run, lora=True, settings=changed(max_steps=4)))
    assert caplog.text.count("TensorBoardCallback failed (ConnectionError: no route") == 1
    assert [r["step"] for r in read_metrics(run_dir) if "train/loss" in r] == [2, 4]


@pytest.mark.usefixtures("told_to_tensorboard")
def test_events_of_tensorboard_lie_in_the_run_and_have_each_step_once(tiny, run_dir):
    """The second training goes on from the checkpoint before the stop, and logs steps again."""
    options = {"lora": True, "settings": changed(max_steps=6, save_every_updates=4)}
    train_here("simpo", tiny, run_dir, options)
    shutil.rmtree(run_dir / "checkpoints/checkpoint-6")
    train_here("simpo", tiny, run_dir, options)
    assert len(list((run_dir / "tensorboard").glob("events.out.tfevents*"))) == 2
    events = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [2, 4, 6]


def test_metrics_are_added_up_on_the_device_of_the_training():
    """On a GPU some come from the CPU, as the distance to the policy that sampled."""
    trainer = guards.GuardedTrainer.__new__(guards.GuardedTrainer)
    trainer._sums = {}
    trainer.args = SimpleNamespace(device=torch.device("meta"))  # stands for the GPU
    trainer.record(here=torch.ones(2, device="meta"), elsewhere=torch.ones(2))
    trainer.record(here=torch.ones(2), elsewhere=torch.ones(2, device="meta"))
    assert torch.stack(list(trainer._sums.values())).device == trainer.args.device


def batches(num_rows, num_processes, **options):
    """The batches of each process, of row numbers."""
    rows = DataLoader(range(num_rows), batch_size=4, collate_fn=list, **options)
    group = {"num_processes": num_processes, "put_on_device": False}
    ranks = [{"process_index": rank, **group} for rank in range(num_processes)]
    loaders = [share_out(prepare_data_loader(rows, **rank)) for rank in ranks]
    found = [list(loader) for loader in loaders]
    assert [len(loader) for loader in loaders] == [len(own) for own in found]
    return found


@pytest.mark.parametrize("num_processes", [1, 2, 3])
@pytest.mark.parametrize("num_rows", [*range(3, 14), 43])
def test_each_row_comes_once_in_an_epoch_and_in_the_update_of_one_process(num_rows, num_processes):
    updates = [*zip(*batches(num_rows, num_processes), strict=True)]
    size = 4 * num_processes
    expected = [[*range(num_rows)][at : at + size] for at in range(0, num_rows, size)]
    if 1 <= len(expected[-1]) < num_processes:
        expected[-1] = sorted((expected[-1] * num_processes)[:num_processes])
    assert [sorted(sum(update, [])) for update in updates] == expected


def test_what_is_left_over_may_be_left_out():
    assert batches(11, 2, drop_last=True) == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
