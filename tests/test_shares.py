"""Work that processes share out: each piece once, to whoever is free, and nobody waits in vain."""

import itertools
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore
from training_setups import TRAINING

from lactchain.config.settings import RunConfig
from lactchain.data.parquet import work_through
from lactchain.data.trajectories import read_trajectories, write_trajectories
from lactchain.errors import ConfigError, DataError, Interrupted
from lactchain.runs import distributed
from lactchain.runs.distributed import Shares
from lactchain.runs.run import Run
from lactchain.trainers.base import training_arguments

FILES = write_trajectories, read_trajectories


@pytest.fixture
def together(monkeypatch):
    """This process plays both of two that meet in a store: their shares have the same name."""
    store = HashStore()
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "barrier", lambda: None)
    monkeypatch.setattr(distributed, "_store", lambda: store)
    monkeypatch.setattr(Shares, "_serial", itertools.repeat(0))
    monkeypatch.setattr(distributed, "POLL_SECONDS", 0.001)


def test_whoever_is_free_claims_the_next_piece_and_the_others_wait(together):
    """One process is busy with its first piece until the other has done all the rest."""
    made, seen, rest_is_done = {"slow": [], "fast": []}, [], threading.Event()

    def work(name):
        with Shares(8) as shares:
            for number in shares:
                made[name].append(number)
                if name == "slow":
                    other.start()
                    assert rest_is_done.wait(10)
                shares.finish()
            if name == "fast":
                rest_is_done.set()
            shares.wait(seen.append)

    other = threading.Thread(target=work, args=["fast"])
    work("slow")
    other.join(10)
    assert made == {"slow": [0], "fast": [1, 2, 3, 4, 5, 6, 7]} and set(seen) <= {7}


def test_a_process_that_gives_up_lets_the_others_go(together):
    others = Shares(3)
    pieces = iter(others)
    assert next(pieces) == 0
    with pytest.raises(OSError), Shares(3) as shares:
        assert next(iter(shares)) == 1
        raise OSError
    assert list(pieces) == []
    with pytest.raises(Interrupted, match="since rank 0 has; see there") as stop:
        others.wait(lambda finished: None)
    assert stop.value.exit_code == 143


def test_waiting_ends_when_nothing_is_finished_for_too_long_and_not_before(together, monkeypatch):
    monkeypatch.setattr(distributed, "timeout", timedelta(seconds=0.2))
    ours, theirs = Shares(4), Shares(4)
    began = time.monotonic()

    def finish_one_now_and_then(finished):
        if finished < 3 and time.monotonic() - began > 0.15 * (finished + 1):
            theirs.finish()

    with pytest.raises(ConfigError, match="--run.timeout_minutes"):
        ours.wait(finish_one_now_and_then)
    assert time.monotonic() - began > 0.15 * 3 + 0.2


def test_a_signal_is_noticed_while_waiting(together, tmp_path, monkeypatch):
    monkeypatch.setattr("lactchain.data.parquet.stop_requested", lambda: 15)
    next(iter(Shares(1)))
    with pytest.raises(Interrupted, match="give the same command"):
        work_through(tmp_path, "w", 1, None, *FILES, "x")


def test_shards_that_another_process_made_elsewhere_are_an_error(together, tmp_path):
    """As when the folder is not on a file system that all processes see."""
    others = Shares(2)
    next(iter(others))
    others.finish()
    with pytest.raises(DataError, match="00000-of-00002"):
        work_through(tmp_path, "wo", 1, lambda *_: ([], {}), *FILES, "x")


def test_the_time_limit_of_a_run_holds_for_its_process_group(run_dir, monkeypatch):
    given = {}
    state = lambda **kwargs: given.update(kwargs) or SimpleNamespace(num_processes=2)  # noqa: E731
    monkeypatch.setattr(distributed, "timeout", distributed.timeout)
    monkeypatch.setattr(Run, "open", lambda *_, **__: SimpleNamespace(finished=False))
    Run.of(SimpleNamespace(run=RunConfig(run_dir=str(run_dir), timeout_minutes=7)))
    assert training_arguments(TRAINING, run_dir, seed=0).ddp_timeout == 7 * 60
    monkeypatch.setattr("accelerate.PartialState", state)
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "_peers", lambda: None)  # there is no other process
    distributed.initialise()
    assert given["timeout"] == timedelta(minutes=7)
