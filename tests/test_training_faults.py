"""A training and its checkpoints meet signals, other processes, full disks, damage and NaN."""

import errno
import pickle
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_setups import (
    MAKERS,
    NUM_UPDATES,
    OFFLINE,
    TRAINING,
    changed,
    exit_codes,
    final_state,
    logs,
    make_critic,
    make_simpo,
    open_run,
    slow,
    spoil_loss,
    train_here,
    train_on_two,
)

from lactchain.errors import DataError, DiskError, Interrupted, NonFiniteError
from lactchain.runs.run import read_metrics
from lactchain.storage.checkpoints import latest_checkpoint
from lactchain.storage.manifests import verify_manifest, write_manifest
from lactchain.trainers import guards
from lactchain.trainers.base import train


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """The folder of a training that came to its end; to be copied, never changed."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train_here("simpo", tiny, run_dir, {"lora": True})
    return run_dir


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('a pickle was run')",)


def test_a_forged_state_is_refused_by_name_and_nothing_of_it_is_run(tiny, whole, run_dir):
    """Whoever can forge a file can forge its manifest, too."""
    shutil.copytree(whole, run_dir)
    shutil.rmtree(run_dir / "checkpoints/checkpoint-9")
    checkpoint = run_dir / "checkpoints/checkpoint-8"
    manifest = verify_manifest(checkpoint)
    facts = {k: v for k, v in manifest.items() if k not in ("seal", "files", "run_id", "place")}
    forged = {"optimizer.pt": pickle.dumps(Bomb(), protocol=2), "rng_state.pth": b"cut"}
    for name, content in (forged | {"trainer_state.json": b'{"unknown": 1}'}).items():
        original = (checkpoint / name).read_bytes()
        (checkpoint / name).write_bytes(content)
        write_manifest(checkpoint, facts)
        said = r"checkpoint-8: its state cannot be read \([^\n]+\); remove it"
        with pytest.raises(DataError, match=said):
            train_here("simpo", tiny, run_dir, {"lora": True})
        (checkpoint / name).write_bytes(original)


def test_checkpoint_of_another_launch_or_precision_is_refused(tiny, run_dir):
    train_here("simpo", tiny, run_dir, {"lora": True, "dtype": "bfloat16"})
    with open_run(run_dir) as run:
        trainer = make_simpo(tiny, run, lora=True, dtype="float32")  # as `auto` may elsewhere
        with pytest.raises(DataError, match="dtype was bfloat16, is float32"):
            train(trainer)
        trainer = make_simpo(tiny, run, lora=True, dtype="bfloat16")
        trainer.provenance["threads"] = 7
        with pytest.raises(DataError, match="threads was 1, is 7"):
            train(trainer)
        trainer.provenance["world_size"] = 2
        with pytest.raises(DataError, match=r"world_size was 1, is 2.*; launch it as before"):
            train(trainer)


@pytest.mark.parametrize("kind", ["simpo", *slow("critic", "cloning")])
def test_two_processes_resume_bit_exactly(kind, tiny, run_dir):
    """19 rows on 2 x 4 x 2 per update: two updates an epoch, resumed in the middle of the last."""
    settings = changed(save_every_updates=1)
    options = {"lora": True, "keep_checkpoints": 9, "settings": settings}
    assert exit_codes(train_on_two(kind, tiny, run_dir, options)) == [0, 0], logs(run_dir)
    expected = final_state(run_dir, step=6)
    assert {name for name in expected if name.startswith("rng_state_1")}
    folder = run_dir / "checkpoints"
    assert verify_manifest(folder / "checkpoint-5")["world_size"] == 2
    shutil.rmtree(folder / "checkpoint-6")
    assert exit_codes(train_on_two(kind, tiny, run_dir, options)) == [0, 0], logs(run_dir)
    assert final_state(run_dir, step=6) == expected


def test_a_signal_to_one_process_stops_both_and_saves(tiny, run_dir):
    options = {"lora": True, "settings": changed(num_epochs=10_000, save_every_updates=0)}
    processes = train_on_two("critic", tiny, run_dir, options)
    while len(read_metrics(run_dir)) < 2:
        time.sleep(0.05)
    processes[1].terminate()
    assert exit_codes(processes) == [143, 143], logs(run_dir)
    stopped_at = latest_checkpoint(run_dir / "checkpoints")
    assert verify_manifest(stopped_at)["global_step"] >= 4
    assert "give the same command to go on" in logs(run_dir)


def test_a_bad_loss_on_one_process_stops_both(tiny, run_dir):
    processes = train_on_two("simpo", tiny, run_dir, {"lora": True}, 1)
    assert exit_codes(processes) == [4, 4], logs(run_dir)
    batches = sorted(path.name for path in (run_dir / "nonfinite").iterdir())
    assert batches == ["step-4-rank-0.safetensors", "step-4-rank-1.safetensors"]
    assert latest_checkpoint(run_dir / "checkpoints").name == "checkpoint-2"


def test_a_signal_while_targets_are_computed_saves_what_was_trained(tiny, run_dir, monkeypatch):
    """At an epoch's beginning; without any other checkpoint, and bit-exact."""
    options = {"lora": True, "settings": changed(save_every_updates=0)}
    train_here("critic", tiny, run_dir.with_name("whole"), options)
    with open_run(run_dir) as run:
        trainer = make_critic(tiny, run, **options)
        stop = {3: signal.SIGTERM}
        monkeypatch.setattr(guards, "stop_requested", lambda: 0)
        values = trainer.values

        def interrupted(inputs):
            number = stop.pop(trainer.state.global_step, 0)
            monkeypatch.setattr(guards, "stop_requested", lambda: number)
            return values(inputs)

        trainer.values = interrupted
        with pytest.raises(Interrupted):
            train(trainer)
    monkeypatch.undo()
    assert latest_checkpoint(run_dir / "checkpoints").name == "checkpoint-3"
    train_here("critic", tiny, run_dir, options)
    assert final_state(run_dir) == final_state(run_dir.with_name("whole"))


def test_a_signal_in_an_evaluation_ends_it_at_once(tiny, run, monkeypatch):
    trainer = make_critic(tiny, run, lora=True, settings=changed(max_steps=2))
    train(trainer)
    monkeypatch.setattr(guards, "stop_requested", lambda: signal.SIGINT)
    with pytest.raises(Interrupted, match="after step 2.*give the same command") as stop:
        trainer.evaluate(trainer.table)
    assert stop.value.exit_code == 130


@pytest.mark.parametrize("kind", MAKERS)
def test_a_full_disk_is_named_and_the_last_checkpoint_stands(kind, tiny, run_dir, monkeypatch):
    """The optimiser's file falls short as torch reports it, in the second save."""
    with open_run(run_dir) as run:
        trainer = MAKERS[kind](tiny, run, lora=True)
        save = trainer._save_optimizer_and_scheduler

        def full(directory):
            if trainer.state.global_step > 2:
                (Path(directory) / "optimizer.pt").write_bytes(b"cut")
                raise OSError(errno.ENOSPC, "No space left on device")
            save(directory)

        trainer._save_optimizer_and_scheduler = full
        with pytest.raises(DiskError, match="checkpoint-4: could not be written.*free"):
            train(trainer)
    assert latest_checkpoint(run_dir / "checkpoints").name == "checkpoint-2"
    train_here(kind, tiny, run_dir, {"lora": True})
    assert latest_checkpoint(run_dir / "checkpoints").name == f"checkpoint-{NUM_UPDATES}"


@pytest.mark.parametrize("name", ["optimizer.pt", "adapter_model.safetensors"])
def test_a_damaged_checkpoint_is_set_aside_and_one_with_a_foreign_file_is_used(
    name, tiny, whole, run_dir, caplog
):
    """By one flipped bit; older checkpoints are gone by then."""
    shutil.copytree(whole, run_dir)
    expected, folder = final_state(run_dir), run_dir / "checkpoints"
    assert {path.name for path in folder.iterdir()} == {"checkpoint-8", "checkpoint-9"}
    (folder / "checkpoint-8" / ".DS_Store").touch()
    before = (folder / "checkpoint-9" / name).read_bytes()
    content = before[:-1] + bytes([before[-1] ^ 1])
    (folder / "checkpoint-9" / name).write_bytes(content)
    train_here("simpo", tiny, run_dir, {"lora": True})
    assert "checkpoint-9" in caplog.text and "damaged" in caplog.text
    assert final_state(run_dir) == expected
    assert verify_manifest(folder / "checkpoint-9")["parent"] == "checkpoint-8"
    assert (folder / "set-aside-1-checkpoint-9" / name).read_bytes() == content


def parameters(trainer):
    return [p.detach().clone() for p in trainer.model.parameters()]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_bad_loss_stops_before_the_step_and_keeps_the_batch(kind, factor, tiny, run, run_dir):
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
    rows, size = batch["1.input_ids"].shape[0], TRAINING.batch_size
    shared = kind in OFFLINE  # decisions that begin alike share a row
    assert 1 <= rows < size if shared else rows == size
    assert latest_checkpoint(run_dir / "checkpoints") is None


def test_overflowing_loss_with_finite_gradient_stops_before_the_step(tiny, run):
    """(v - R)^2 overflows long before its derivative does."""
    trainer = make_critic(tiny, run, lora=True, terminated=True)
    renew = trainer.train_dataset.renew
    trainer.train_dataset.renew = lambda targets: renew(targets + 1e25)
    with pytest.raises(NonFiniteError, match="the loss is not finite"):
        train(trainer)


def test_bad_weights_are_never_checkpointed(tiny, run, run_dir):
    trainer = make_simpo(tiny, run, lora=True)
    name, parameter = next((n, p) for n, p in trainer.model.named_parameters() if p.requires_grad)
    parameter.data[0, 0] = float("inf")
    with pytest.raises(NonFiniteError, match=f"{name} is not finite.*another run.run_dir"):
        trainer._save_checkpoint(trainer.model, None)
    assert not (run_dir / "checkpoints" / "checkpoint-0").exists()


def test_bad_gradient_of_a_finite_loss_stops_before_the_step(tiny, run):
    trainer = make_simpo(tiny, run, lora=True)
    first = next(p for p in trainer.model.parameters() if p.requires_grad)
    first.register_hook(lambda gradient: gradient * float("nan"))
    before = parameters(trainer)
    with pytest.raises(NonFiniteError, match="step 1, rank 0: the gradient is not finite"):
        train(trainer)
    assert all(map(torch.equal, parameters(trainer), before))
