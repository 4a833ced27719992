"""A step that is not finite is never taken, and leaves behind what is needed to see why."""

import pytest
import torch
from safetensors.torch import load_file
from training_setups import (
    MAKERS,
    TRAINING,
    make_critic,
    make_simpo,
    open_run,
    spoil_loss,
)

from lactchain.errors import NonFiniteError
from lactchain.runs.run import read_metrics
from lactchain.storage.checkpoints import latest_checkpoint
from lactchain.trainers.base import train


def parameters(trainer):
    return [p.detach().clone() for p in trainer.model.parameters()]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_bad_loss_stops_before_the_step_and_keeps_the_batch(kind, factor, tiny, run_dir):
    with open_run(run_dir) as run:
        trainer = MAKERS[kind](tiny, run, lora=True)
        spoil_loss(trainer, 2, factor)
        after_first = []
        take = type(trainer).check_update

        def check_update():
            after_first[:] = parameters(trainer)
            take(trainer)

        trainer.check_update = check_update
        with pytest.raises(NonFiniteError, match="step 2, rank 0: the loss is not finite") as error:
            train(trainer)
        assert error.value.exit_code == 4
        assert str(error.value).endswith("lower training.learning_rate and another run.run_dir")
    assert all(map(torch.equal, parameters(trainer), after_first))
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    batch = load_file(run_dir / "nonfinite" / "step-2-rank-0.safetensors")
    assert {"0.input_ids", "1.input_ids"} <= set(batch)
    rows = batch["1.input_ids"].shape[0]
    if kind in ("ilql", "mc"):  # decisions that begin alike share a row
        assert 1 <= rows < TRAINING.batch_size
    else:
        assert rows == TRAINING.batch_size
    assert latest_checkpoint(run_dir / "checkpoints") is None


def test_overflowing_loss_with_finite_gradient_stops_before_the_step(tiny, run_dir):
    """(v - R)^2 overflows long before its derivative does."""
    with open_run(run_dir) as run:
        trainer = make_critic(tiny, run, lora=True, terminated=True)
        renew = trainer.train_dataset.renew
        trainer.train_dataset.renew = lambda targets: renew(targets + 1e25)
        with pytest.raises(NonFiniteError, match="the loss is not finite"):
            train(trainer)


def test_bad_weights_are_never_checkpointed(tiny, run_dir):
    with open_run(run_dir) as run:
        trainer = make_simpo(tiny, run, lora=True)
        name, parameter = next(
            (n, p) for n, p in trainer.model.named_parameters() if p.requires_grad
        )
        parameter.data[0, 0] = float("inf")
        with pytest.raises(NonFiniteError, match=f"{name} is not finite.*another run.run_dir"):
            trainer._save_checkpoint(trainer.model, None)
    assert not (run_dir / "checkpoints" / "checkpoint-0").exists()


def test_bad_gradient_of_a_finite_loss_stops_before_the_step(tiny, run_dir):
    with open_run(run_dir) as run:
        trainer = make_simpo(tiny, run, lora=True)
        first = next(p for p in trainer.model.parameters() if p.requires_grad)
        first.register_hook(lambda gradient: gradient * float("nan"))
        before = parameters(trainer)
        with pytest.raises(NonFiniteError, match="step 1, rank 0: the gradient is not finite"):
            train(trainer)
    assert all(map(torch.equal, parameters(trainer), before))


def test_same_command_goes_on_from_before_the_bad_step(tiny, run_dir):
    with open_run(run_dir) as run:
        trainer = make_simpo(tiny, run, lora=True)
        spoil_loss(trainer, 5, float("nan"))
        with pytest.raises(NonFiniteError):
            train(trainer)
    assert latest_checkpoint(run_dir / "checkpoints").name == "checkpoint-4"
    with open_run(run_dir) as run:
        train(make_simpo(tiny, run, lora=True))
    assert latest_checkpoint(run_dir / "checkpoints").name == "checkpoint-9"


def test_logged_loss_is_not_filtered(tiny, run_dir):
    with open_run(run_dir) as run:
        trainer = make_simpo(tiny, run, lora=True)
        trainer.check_update = lambda: None
        spoil_loss(trainer, 1, float("nan"))
        with pytest.raises(NonFiniteError, match="no checkpoint is written"):
            train(trainer)
    assert read_metrics(run_dir)[0]["train/loss"] is None
