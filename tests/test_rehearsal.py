"""The 7B path, rehearsed: every configuration for large models runs, is killed, and goes on."""

import subprocess
import sys
from pathlib import Path

import pytest
import rehearsal

ROOT = Path(__file__).parent.parent


def test_a_rehearsal_has_every_stage_with_a_configuration_for_the_large_models():
    files = (ROOT / "configs").glob(f"*/{rehearsal.SETTING}.yaml")
    about_servers = {"doctor", "serve"}  # they train nothing, and end when told so
    stages = {file.parent.name for file in files} - about_servers
    assert {stage.script for stage in rehearsal.STAGES} == stages


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the models are built once for all rehearsals."""
    return tmp_path_factory.mktemp("rehearsal")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("how", [[], ["--processes", "2", "--kill"]], ids=["one", "two, killed"])
def test_every_stage_ends_well_and_both_rounds_learn(folder, how):
    script = ROOT / "benchmarks/rehearsal.py"
    command = [sys.executable, str(script), "--folder", str(folder), *how]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
