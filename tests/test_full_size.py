"""The benchmark of the true shape runs every stage at a tiny width, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parent.parent / "benchmarks/full_size.py"


def start(scratch: Path, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-W", "ignore", str(BENCHMARK), "--layers", "2", "--width", "64"]
    environment = os.environ | {
        "PYTHONPATH": f"{BENCHMARK.parent.parent}{os.pathsep}{os.environ['PYTHONPATH']}"
    }
    words = [*command, "--scratch", str(scratch), *arguments]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_stage_runs_beside_its_estimate_and_nothing_stays(tmp_path):
    process = start(tmp_path)
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    rows = [re.findall(r"[\w.]+", line) for line in printed.splitlines() if line.startswith("│")]
    memory = {row[0]: row[1:] for row in rows if len(row) == 6}
    assert len(memory) == 8 and "export" in printed
    for stage, (_, _, both, _, estimate) in memory.items():  # the libraries are not in it
        assert 0 < float(estimate) < float(both), stage
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_stop_leaves_nothing_behind_either(tmp_path):
    process = start(tmp_path, "--only", "collect_rollouts")
    deadline = time.monotonic() + 100
    while not list(tmp_path.glob("full-size-*/runs")) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
