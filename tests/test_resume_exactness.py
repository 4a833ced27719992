"""A training that is interrupted, however it is, ends with the same bits as one that is not."""

import json
import signal
from contextlib import contextmanager

import pytest
from training_setups import NUM_UPDATES, final_state, open_run, slow, train_here

from lactchain.errors import Interrupted
from lactchain.runs.run import read_metrics
from lactchain.storage.checkpoints import latest_checkpoint
from lactchain.storage.manifests import verify_manifest
from lactchain.trainers import guards

LORA, FULL = {"lora": True}, {"lora": False}


@pytest.fixture(scope="module")
def uninterrupted(tiny, tmp_path_factory):
    """The folder, the final state and the metrics of each kind of training, computed once."""
    runs = {}

    def whole(kind, options=LORA):
        key = kind, options["lora"]
        if key not in runs:
            run_dir = tmp_path_factory.mktemp(kind) / "run"
            train_here(kind, tiny, run_dir, options)
            runs[key] = run_dir, (final_state(run_dir), logged(run_dir))
        return runs[key]

    return whole


def logged(run_dir):
    """The metrics of a run, but for times; those of a window are of all its updates."""
    return [
        {name: value for name, value in record.items() if name != "time"}
        for record in read_metrics(run_dir)
        if "time/train_runtime" not in record
    ]


@contextmanager
def stopped_at(update):
    """As if SIGTERM came while that update was computed."""
    count, check_update = {"update": 0}, guards.GuardedTrainer.check_update

    def counted(trainer):
        count["update"] = trainer.state.global_step + 1
        check_update(trainer)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted) as stop:
        signalled = lambda: signal.SIGTERM * (count["update"] == update)  # noqa: E731
        patch.setattr(guards, "stop_requested", signalled)
        patch.setattr(guards.GuardedTrainer, "check_update", counted)
        yield
    assert stop.value.exit_code == 143


ALL = slow("simpo, all weights", "critic, all weights", "ilql, all weights")


@pytest.mark.parametrize("case", ["simpo", "critic", "ilql", *slow("mc", "cloning"), *ALL])
def test_cut_at_an_update_and_resumed_is_bit_exact(case, tiny, uninterrupted, run_dir):
    """In the middle of an epoch, twice in one, at its end, and before the last of nine updates."""
    kind, _, weights = case.partition(", ")
    options = FULL if weights else LORA
    for update in (1, 2, 3, NUM_UPDATES - 1):
        with stopped_at(update):
            train_here(kind, tiny, run_dir, options)
        assert latest_checkpoint(run_dir / "checkpoints").name == f"checkpoint-{update}"
    train_here(kind, tiny, run_dir, options)
    assert (final_state(run_dir), logged(run_dir)) == uninterrupted(kind, options)[1]


def stop_within(monkeypatch, update):
    """As if SIGTERM came in the first micro-batch of that update, once."""
    training_step, asked = guards.GuardedTrainer.training_step, {"stop": False}

    def interrupted(trainer, *args):
        loss = training_step(trainer, *args)
        asked["stop"] = len(trainer._micro_batches) == 1 and trainer.state.global_step == update - 1
        return loss

    monkeypatch.setattr(guards, "stop_requested", lambda: signal.SIGTERM * asked["stop"])
    monkeypatch.setattr(guards.GuardedTrainer, "training_step", interrupted)


@pytest.mark.parametrize("kind", ["simpo", "critic", *slow("cloning", "ilql", "mc")])
def test_cut_in_an_update_and_resumed_is_bit_exact(kind, tiny, uninterrupted, run_dir, monkeypatch):
    """In the first update, which leaves nothing to save, and in the first of an epoch."""
    for update in (1, 4):
        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            stop_within(patch, update)
            train_here(kind, tiny, run_dir, LORA)
        newest = latest_checkpoint(run_dir / "checkpoints")
        assert (newest and newest.name) == (f"checkpoint-{update - 1}" if update > 1 else None)
    train_here(kind, tiny, run_dir, LORA)
    assert (final_state(run_dir), logged(run_dir)) == uninterrupted(kind)[1]


def vouched(run_dir):
    """The records of a run: the last checkpoint vouches for all but the last, which has times."""
    mark = verify_manifest(run_dir / f"checkpoints/checkpoint-{NUM_UPDATES}")["metrics"]
    content = (run_dir / "metrics.jsonl").read_bytes()
    *records, last = map(json.loads, content.splitlines())
    assert content[: mark["size"]].count(b"\n") == len(records)
    lasting = {name for name in last if not name.startswith("time")}
    assert lasting <= {"step", "train/epoch", "train/total_flos"}
    return records


@pytest.mark.parametrize("saved", [False, True], ids=["nothing", "a checkpoint"])
def test_steps_that_are_done_again_stand_once_in_the_metrics(saved, tiny, run_dir):
    """A kill after the fifth update leaves records of updates of which no state was saved.

    Whoever is killed behind the last checkpoint has lost none.
    """
    if saved:
        with stopped_at(3):
            train_here("simpo", tiny, run_dir, LORA)
    with open_run(run_dir) as run:
        run.log_once({"made/before": 1.0}, step=0)
        for step in (4, 5):
            run.log({"train/loss": 9.0}, step=step)
    train_here("simpo", tiny, run_dir, LORA)
    records = vouched(run_dir)
    trained = [record for record in records if "made/before" not in record]
    assert len(trained) == len(records) - 1
    assert [record["step"] for record in trained] == [2, 4, 6, 8, NUM_UPDATES]
    assert all(record["train/loss"] != 9.0 and "rewards/margins" in record for record in trained)


def test_checkpoint_holds_adapter_and_head_only(uninterrupted):
    folder = uninterrupted("critic")[0] / "checkpoints" / f"checkpoint-{NUM_UPDATES}"
    names = {path.name for path in folder.iterdir()}
    assert "adapter_model.safetensors" in names
    assert not names & {"model.safetensors", "training_args.bin"}
    manifest = verify_manifest(folder)
    assert manifest["global_step"] == manifest["max_steps"] == NUM_UPDATES
    assert manifest["parent"] == f"checkpoint-{NUM_UPDATES - 1}"
    assert any("score" in name for name in manifest["trainable"])
