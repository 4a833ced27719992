"""Processes: launchers are valid, two processes are two, work is shared, no peer waits in vain."""

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from argparse import Namespace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import run_setups
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env
from torch.distributed import HashStore
from training_setups import TRAINING

from lactchain import ConfigError, DataError, Interrupted, Run, RunConfig
from lactchain.data.parquet import work_through
from lactchain.data.sources import TRAJECTORIES
from lactchain.runs import distributed
from lactchain.runs.distributed import LOOKS, Peers, Shares
from lactchain.runs.run import read_metrics
from lactchain.trainers.base import training_arguments

FILES = sorted((Path(__file__).parent.parent / "configs" / "accelerate").glob("*.yaml"))
WORK = r"""
with Run.open(config.run.run_dir, config) as run:
    state = distributed.initialise()
    any_rank_1 = distributed.any_of(distributed.rank() == 1)
    seen = distributed.of_main({"rank": distributed.rank(), "lost": float("nan")})["rank"]
    told = f"{state.device.type} {any_rank_1} {seen}"
    print(f"{distributed.rank()} of {state.num_processes} {told}\n", end="", flush=True)
    with distributed.Shares(5) as shares:
        mine = [(number, shares.finish())[0] for number in shares]
        shares.wait(lambda finished: None)
    print(f"pieces {mine}\n", end="", flush=True)
    run.log({"rank": distributed.rank()}, step=1)
    run.finish({})
"""


@pytest.fixture
def worker(tmp_path, root, monkeypatch):
    for folder in (root, root / "tests"):
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    path = tmp_path / "worker.py"
    imports = "from lactchain import Run\nfrom lactchain.runs import distributed"
    path.write_text(run_setups.launched(WORK, before=imports))
    return path


def test_two_processes_on_a_cpu_are_two_and_one_of_them_writes(worker, root, run_dir):
    file = root / "configs" / "accelerate" / "cpu_2_processes.yaml"
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(file)]
    command = [*launcher, worker, "--run.run_dir", run_dir]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    empty, *who, ours, theirs = sorted(result.stdout.split("\n"))
    assert [empty, *who] == ["", "0 of 2 cpu True 0", "1 of 2 cpu True 0"]
    assert sorted(re.findall(r"\d", ours + theirs)) == [*"01234"]
    assert [record["rank"] for record in read_metrics(run_dir)] == [0]


def launched(*arguments: object) -> Namespace:
    """What accelerate's launcher makes of its command line."""
    parsed = launch_command_parser().parse_args([*map(str, arguments)])
    parsed.machine_rank = 1  # only rank 0 checks that its port is free
    return _validate_launch_command(parsed)[0]


def test_a_launcher_that_starts_one_of_two_is_refused(worker, run_dir):
    arguments = launched("--cpu", "--num_processes", 2, worker, "--run.run_dir", run_dir)
    command, variables = prepare_simple_launcher_cmd_env(arguments)
    result = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=100)
    assert result.returncode != 0
    assert "asked for several processes and started one" in result.stderr
    assert "configs/accelerate/cpu_2_processes.yaml" in result.stderr
    assert not run_dir.exists()


def test_a_rendezvous_of_a_cluster_is_not_mistaken(monkeypatch):
    here = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_CPU": "true"}
    for variable in (here | {"MASTER_ADDR": "node-17", "MASTER_PORT": "29500"}).items():
        monkeypatch.setenv(*variable)
    distributed.check_launcher()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(ConfigError, match="started one"):
        distributed.check_launcher()
    monkeypatch.setenv("WORLD_SIZE", "2")
    distributed.check_launcher()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_accelerate_accepts_the_file(file):
    config, arguments = load_config_from_file(str(file)), launched("--config_file", file, "x.py")
    assert arguments.num_processes == config.num_processes
    assert arguments.mixed_precision == config.mixed_precision
    assert arguments.use_fsdp == ("fsdp" in file.stem)


def test_the_file_for_many_machines_is_fsdp2(monkeypatch):
    file = next(file for file in FILES if "fsdp2" in file.stem)
    for variable in prepare_multi_gpu_env(launched("--config_file", file, "x.py")).items():
        monkeypatch.setenv(*variable)
    plugin = FullyShardedDataParallelPlugin()
    assert (plugin.fsdp_version, plugin.reshard_after_forward) == (2, True)
    assert plugin.state_dict_type.name == "FULL_STATE_DICT"


@pytest.fixture
def other():
    """Another process, which lives and does nothing."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def peers_with(process: subprocess.Popen) -> tuple[Peers, HashStore]:
    """Rank 0, beside that process as rank 1."""
    store = HashStore()
    store.set("peer-1", f"{process.pid} {socket.gethostname()}")
    return Peers(0, 2, store), store


def test_a_slow_process_is_waited_for_and_a_dead_one_named_though_nobody_has_buried_it(other):
    peers, _ = peers_with(other)
    assert [peers.look() for _ in range(30)] == [None] * 30
    other.kill()
    time.sleep(0.1)
    found = [peers.look() for _ in range(LOOKS["died"])]
    assert found == [None, None, f"rank 1 (process {other.pid}) died"]
    other.wait()
    assert peers.look() == found[-1]
    assert peers.ended() == [1]


def test_a_process_that_is_stopped_for_long_is_named_and_one_that_goes_on_again_is_not(other):
    peers, _ = peers_with(other)
    looks = LOOKS["is stopped"]
    for number, signals in ((looks - 1, signal.SIGCONT), (looks, signal.SIGCONT)):
        os.kill(other.pid, signal.SIGSTOP)
        time.sleep(0.1)
        found = [peers.look() for _ in range(number)]
        os.kill(other.pid, signals)
        time.sleep(0.1)
        assert found[:-1] == [None] * (number - 1)
        assert peers.look() is None
    assert found[-1] == f"rank 1 (process {other.pid}) is stopped"


def test_a_process_whose_starter_died_ends_and_tells_those_it_starts_nothing(other, monkeypatch):
    monkeypatch.setenv(distributed.STARTED_BY, str(os.getppid()))
    assert peers_with(other)[0].look() is None
    monkeypatch.setenv(distributed.STARTED_BY, "1234567")  # the orphan has another parent now
    orphan, _ = peers_with(other)
    assert orphan.look() == "process 1234567, which started this one, died"
    assert distributed.STARTED_BY not in os.environ


@pytest.mark.parametrize("here, where", [("2", {"lo", "lo0"}), ("1", {None}), (None, {None})])
def test_processes_that_may_be_on_several_machines_are_not_bound_to_one(here, where, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if here is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    assert distributed.loopback() in where


def test_nobody_asks_the_store_any_more_when_a_process_leaves(other, monkeypatch):
    """Else its thread aborts an interpreter that ends meanwhile: 3 of 4 launches of 8 on a core."""
    peers, store = peers_with(other)
    store.set("left-1", "")
    asked, slowly = threading.Event(), peers._store.check

    def check(names):
        asked.set()
        time.sleep(0.2)
        return slowly(names)

    monkeypatch.setattr(peers, "_store", SimpleNamespace(check=check, set=store.set))
    monkeypatch.setattr(distributed, "_peers", peers)
    peers.watcher.start()
    assert asked.wait(20)
    distributed.leave()
    assert not peers.watcher.is_alive()


def test_a_process_that_has_left_in_good_order_is_not_missed(other):
    peers, store = peers_with(other)
    store.set("left-1", "")
    other.kill()
    other.wait()
    assert [peers.look() for _ in range(9)] == [None] * 9
    peers.leave()
    assert store.check(["left-0"])


@pytest.mark.parametrize("said, lost", [
    ("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1", True),
    ("sendBytes failed: Broken pipe", True),
    ("shapes do not match", False),
])  # fmt: skip
def test_what_collectives_say_of_a_lost_process_is_understood(said, lost, monkeypatch):
    assert not distributed.is_lost(RuntimeError(said))  # of one process
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert distributed.is_lost(RuntimeError(said)) == lost


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
        work_through(tmp_path, "w", 1, None, TRAJECTORIES, "x")


def test_shards_that_another_process_made_elsewhere_are_an_error(together, tmp_path):
    """As when the folder is not on a file system that all processes see."""
    others = Shares(2)
    next(iter(others))
    others.finish()
    with pytest.raises(DataError, match="00000-of-00002"):
        work_through(tmp_path, "wo", 1, lambda *_: ([], {}), TRAJECTORIES, "x")


def test_the_time_limit_of_a_run_holds_for_its_process_group(run_dir, monkeypatch):
    given = {}
    state = lambda **kwargs: given.update(kwargs) or SimpleNamespace(num_processes=2)  # noqa: E731
    monkeypatch.setattr(distributed, "timeout", distributed.timeout)
    monkeypatch.setattr(Run, "open", lambda *_, **__: SimpleNamespace(finished=False))
    Run.of(SimpleNamespace(run=RunConfig(run_dir=str(run_dir), timeout_minutes=7)))
    assert training_arguments(TRAINING, run_dir, seed=0).ddp_timeout == 7 * 60
    monkeypatch.setattr("accelerate.PartialState", state)
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "_peers", object())  # there is no other process
    distributed.initialise()
    assert given["timeout"] == timedelta(minutes=7)
