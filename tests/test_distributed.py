"""Processes: the launcher's files are valid, and two processes are really two."""

import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

from lactchain.errors import ConfigError
from lactchain.runs import distributed
from lactchain.runs.run import read_metrics

FILES = sorted((Path(__file__).parent.parent / "configs" / "accelerate").glob("*.yaml"))
WORKER = """
from lactchain.runs import distributed
from lactchain.runs.process import launch
from lactchain.runs.run import Run
from run_setups import Config

def main(config):
    with Run.open(config.run.run_dir, config) as run:
        state = distributed.initialise()
        any_rank_1 = distributed.any_of(distributed.rank() == 1)
        seen = distributed.of_main({"rank": distributed.rank(), "lost": float("nan")})["rank"]
        told = f"{state.device.type} {any_rank_1} {seen}"
        line = f"{distributed.rank()} of {state.num_processes} {told}\\n"
        print(line, end="", flush=True)
        with distributed.Shares(5) as shares:
            mine = [(number, shares.finish())[0] for number in shares]
            shares.wait(lambda finished: None)
        print(f"pieces {mine}\\n", end="", flush=True)
        run.log({"rank": distributed.rank()}, step=1)
        run.finish({})

launch(main, Config)
"""


@pytest.fixture
def worker(tmp_path, root, monkeypatch):
    for folder in (root, root / "tests"):
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    path = tmp_path / "worker.py"
    path.write_text(WORKER)
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
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setenv("MASTER_ADDR", "node-17")
    monkeypatch.setenv("MASTER_PORT", "29500")
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
    environment = prepare_multi_gpu_env(launched("--config_file", file, "x.py"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.state_dict_type.name == "FULL_STATE_DICT"
