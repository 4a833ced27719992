"""What `pip install` puts on another machine is enough for the first round of the quickstart."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

SMALL = [
    *("--num_rounds", "1", "--environment.kwargs", "{size: 2}"),
    *("--warm_start.behavior.num_chains", "640", "--critic.collect.num_episodes", "64"),
    *("--critic.training.max_steps", "20", "--simpo.preferences.num_states", "64"),
    *("--simpo.training.max_steps", "20", "--evaluation.num_samples", "100"),
]
OUTSIDE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""The environment without the clone's folders, and without what keeps tests from the network."""


def run(*words: str | Path, cwd: Path, **variables: str) -> str:
    """What a command prints; it has to end well."""
    options = {"capture_output": True, "text": True, "timeout": 1500}
    done = subprocess.run(words, cwd=cwd, env=OUTSIDE | variables, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(*words: str | Path, python: Path | str = sys.executable) -> None:
    """Calls pip; the test is skipped where it cannot reach what it needs."""
    command = [python, "-m", "pip", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=OUTSIDE, timeout=1500)
    unreachable = re.search(r"ERROR: (No matching distribution.*|.*Connection.*)", done.stderr)
    if done.returncode and unreachable:
        pytest.skip(f"pip reaches no registry: {unreachable[1]}")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    (file,) = folder.glob("lactchain-*.whl")
    return file


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory) -> Path:
    """The folder of the programs of an environment of which nothing comes from here."""
    folder = tmp_path_factory.mktemp("elsewhere") / "venv"
    run(sys.executable, "-m", "venv", folder, cwd=ROOT)
    pip("install", "--quiet", "-c", ROOT / "constraints.txt", wheel, python=folder / "bin/python")
    return folder / "bin"


@pytest.mark.slow
def test_the_wheel_has_every_script_and_configuration(wheel):
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    shipped = [*ROOT.glob("configs/*/*.yaml"), *ROOT.glob("scripts/*.py")]
    assert {f"lactchain/{file.relative_to(ROOT)}" for file in shipped} <= packed
    command = ["git", "ls-files", "lactchain"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert {*listed.stdout.split()} <= packed
    assert not [name for name in packed if "__pycache__" in name or name.startswith("tests")]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_quickstarts_first_round_runs_away_from_the_clone(programs, tmp_path):
    lactchain, empty = programs / "lactchain", tmp_path / "empty"
    empty.mkdir()
    code = "import lactchain; print(lactchain.__file__)"
    assert run(programs / "python", "-c", code, cwd=empty).startswith(str(programs.parent))
    assert "  run_pipeline " in run(lactchain, cwd=empty)
    run(lactchain, "run_pipeline", "--config", "tiny", *SMALL, cwd=empty)
    report = empty / "runs/tiny/report.html"
    assert report.is_file() and (empty / "runs/tiny/actor/README.md").is_file()
    report.unlink()
    assert run(lactchain, "report", "runs/tiny", cwd=empty) == "runs/tiny/report.html\n"
    two = [f"{run(lactchain, 'configs', cwd=empty).strip()}/accelerate/cpu_2_processes.yaml"]
    launcher = [programs / "accelerate", "launch", "--config_file", *two, "-m", "lactchain"]
    ran = [*launcher, "run_pipeline", "--config", "tiny", "--run.run_dir", "runs/two", *SMALL]
    run(*ran, cwd=empty)
    assert (empty / "runs/two/summary.json").is_file()
    assert {path.name for path in empty.iterdir()} == {"runs"}
