"""What trainers take care of around an update: devices, stops, types of weights."""

import shutil
import signal
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from accelerate.state import AcceleratorState
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training_setups import TRAINING, changed, make_cloning, make_critic, make_simpo, open_run

from lactchain.errors import Interrupted
from lactchain.runs.run import read_metrics
from lactchain.trainers import base, guards
from lactchain.trainers.base import train, training_arguments
from lactchain.trainers.window import WindowedTrainer


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
def test_a_stop_before_the_first_update_does_not_say_that_something_was_saved(
    make, tiny, run_dir, monkeypatch
):
    with open_run(run_dir) as run:
        trainer = make(tiny, run, lora=True)
        monkeypatch.setattr(guards, "stop_requested", lambda: signal.SIGTERM)
        with pytest.raises(Interrupted, match="give the same command to begin again") as stop:
            train(trainer)
    assert "saved in" not in str(stop.value)
    assert not list(run_dir.glob("checkpoints/checkpoint-*"))


def test_cloning_computes_in_the_precision_that_the_launch_asked_for(tiny, tmp_path):
    with open_run(tmp_path / "run") as run:
        assert make_cloning(tiny, run, lora=True).accelerator.mixed_precision == "no"


@pytest.mark.parametrize("fails", [False, True])
def test_a_tracker_that_fails_costs_one_warning(fails, tiny, tmp_path, monkeypatch, caplog):
    def no_connection(*args, **kwargs):
        raise ConnectionError("no route to host")

    if fails:
        monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", no_connection)
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tracked"))
    told = partial(training_arguments, report_to=["tensorboard"])
    monkeypatch.setattr("training_setups.training_arguments", told)
    with open_run(tmp_path / "run") as run:
        train(make_simpo(tiny, run, lora=True, settings=changed(max_steps=4)))
    assert list((tmp_path / "tracked").rglob("events.out.tfevents*"))
    assert caplog.text.count("TensorBoardCallback failed (ConnectionError: no route") == fails
    steps = [r["step"] for r in read_metrics(tmp_path / "run") if "train/loss" in r]
    assert steps == [2, 4]


def test_events_of_tensorboard_lie_in_the_run_and_have_each_step_once(tiny, tmp_path, monkeypatch):
    """The second training goes on from the checkpoint before the stop, and logs steps again."""
    told = partial(training_arguments, report_to=["tensorboard"])
    monkeypatch.setattr("training_setups.training_arguments", told)
    folder, settings = tmp_path / "run", changed(max_steps=6, save_every_updates=4)
    with open_run(folder) as run:
        train(make_simpo(tiny, run, lora=True, settings=settings))
    shutil.rmtree(folder / "checkpoints/checkpoint-6")
    with open_run(folder) as run:
        train(make_simpo(tiny, run, lora=True, settings=settings))
    assert len(list((folder / "tensorboard").glob("events.out.tfevents*"))) == 2
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [2, 4, 6]


def test_metrics_are_added_up_on_the_device_of_the_training():
    """On a GPU some come from the CPU, as the distance to the policy that sampled."""
    trainer = WindowedTrainer()
    trainer.args = SimpleNamespace(device=torch.device("meta"))  # stands for the GPU
    trainer.record(here=torch.ones(2, device="meta"), elsewhere=torch.ones(2))
    trainer.record(here=torch.ones(2), elsewhere=torch.ones(2, device="meta"))
    assert torch.stack(list(trainer._sums.values())).device == trainer.args.device
