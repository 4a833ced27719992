"""Processes that a command starts itself: what they say and how they end is as if it were one."""

import pytest
from run_setups import start

from lactchain.inspection.run_view import open_run
from lactchain.runs.process import on_processes
from lactchain.storage.manifests import write_run_file
from lactchain_extras.explorer.summary import status

RANK = """
import os, signal, sys, time
from lactchain import errors
from lactchain.runs.process import launch, stop_requested
from run_setups import Config
rank = os.environ.get("RANK")

def main(config):
    {}

if rank is None:
    from lactchain_extras.ranks import run_ranks
    codes = []
    launch(lambda config: codes.append(run_ranks([sys.executable, *sys.orig_argv[1:]], 2)), Config)
    sys.exit(codes[0])
launch(main, Config)
"""
WAITS = "while rank == '1' and not stop_requested(): time.sleep(0.1)\n    "
ENDINGS = {
    "both find the same": ("raise errors.DataError('no file')", 3, "error: no file"),
    "one fails, and the other one waits": (
        f"{WAITS}raise errors.NonFiniteError('NaN')", 4, "error: NaN"
    ),
    "one is killed": (
        f"{WAITS}os.kill(os.getpid(), signal.SIGKILL)", 6,
        "error: rank 0 was killed by signal 9; give the same command to go on",
    ),
    "one warns again and again, and all is well": (
        "[sys.stderr.write('again ') for _ in '12']; print(file=sys.stderr)", 0, "again again"
    ),
}  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_ends_two_processes_is_one_line_and_the_code_of_the_first(ending):
    program, code, line = ENDINGS[ending]
    process = start(RANK.format(program))
    said = "".join(process.communicate(timeout=60))
    assert process.returncode == code, said
    assert line in said and said.count("\n") == 1


def test_a_process_that_is_stopped_before_it_has_met_the_other_ends_it():
    process = start(RANK.format(f"{WAITS}rank == '0' and os._exit(143)"))
    process.communicate(timeout=60)
    assert process.returncode == 143


def test_a_command_for_several_processes_starts_as_many_as_it_is_typed():
    words = ["lactchain", "run_pipeline", "--config", "tiny"]
    launcher = ["torchrun", "--standalone", "--nproc-per-node", "2"]
    assert on_processes(words, 1) == words
    assert on_processes(words, 2) == [*launcher, "-m", *words]
    assert on_processes(["python", "scripts/x.py"], 2) == [*launcher, "scripts/x.py"]
    assert on_processes(["lactchain", "quickstart"], 2) == ["lactchain", "quickstart"]


def test_a_stopped_run_names_a_command_that_goes_on_on_as_many_processes(tmp_path):
    again = f"--config {tmp_path}/config.yaml"
    for command, typed in (
        ("train_bc", f"torchrun --standalone --nproc-per-node 2 -m lactchain train_bc {again}"),
        ("quickstart", f"lactchain quickstart {again} --run.run_dir {tmp_path}"),
    ):
        facts = {"config": {"run": {"run_dir": str(tmp_path)}}, "command": command}
        write_run_file(tmp_path, facts | {"world_size": 2})
        assert status(open_run(tmp_path)).endswith(f"to go on, or: {typed}")
        write_run_file(tmp_path, {"config": {"run": {"run_dir": "moved"}}, "command": command})
        assert status(open_run(tmp_path)).endswith(f"{again} --run.run_dir {tmp_path}")
