"""A script's configuration, and processes of their own that work with it."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent, indent

from lactchain.config import settings

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Config:
    """A script's configuration."""

    run: settings.RunConfig = field(default_factory=settings.RunConfig)
    """The run."""
    critic: settings.CriticConfig = settings.CriticConfig(str(ROOT / "weights"))
    """The critic; a folder that is there does for its model."""
    training: settings.TrainingConfig = field(default_factory=settings.TrainingConfig)
    """The training."""


def start(source: str, *arguments: object, **options) -> subprocess.Popen:
    """A process that runs this code; it can import what the tests can."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ["PYTHONPATH"]])
    return subprocess.Popen(
        [sys.executable, "-c", source, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        text=True,
        **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | options,
    )


def ended(source: str, *arguments: object) -> tuple[int, str, str]:
    """The exit code of such a process, and what it prints and says."""
    with start(source, *arguments) as process:
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


LAUNCHED = """
import hashlib, logging, os, signal, sys, threading, time
from run_setups import Config
from lactchain.errors import EnvironmentFault, Interrupted
from lactchain.runs import process
{before}
def main(config):
{work}

main.__module__ = "run_setups"
process.launch(main, Config)
"""


def launched(work: str, before: str = "") -> str:
    """The code of a script that does this work, and something else before."""
    inside = indent(dedent(work).strip(), "    ")
    return LAUNCHED.format(before=dedent(before), work=inside)
