"""Processes that run a script as from the command line, and cost next to nothing.

They are forked from a server that has imported everything already, but for whole commands, which
have an interpreter of their own. Nothing heavy is imported here: each of those imports this.
"""

import gc
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from measuring import ROOT

SCRIPTS = ROOT / "scripts"
PATIENCE = 300.0
"""Seconds after which a process hangs."""


def start(
    script: str,
    arguments: list[str],
    log: Path,
    before: Callable[[], Any] | None = None,
    whole: bool = False,
    **variables: str,
) -> BaseProcess:
    """A process that runs a script and prints into a file.

    Args:
        before: called in the process before the script; what it gives, if anything, afterwards.
            It can be pickled.
        whole: with an interpreter of its own.
        variables: of its environment.
    """
    command = [str(SCRIPTS / f"{script}.py"), *arguments]
    context = multiprocessing.get_context("spawn") if whole else server()
    process = context.Process(target=_main, args=(command, log, before, variables))
    process.start()
    return process


def _main(
    command: list[str], log: Path, before: Callable[[], Any] | None, variables: dict[str, str]
) -> None:
    from lactchain.runs.signals import end_at_once

    end_at_once()  # as in a command
    os.environ.update(variables)
    sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = open(log, "a")  # noqa: SIM115
    os.dup2(sys.stdout.fileno(), 1)
    os.dup2(sys.stdout.fileno(), 2)
    gc.freeze()
    sys.argv = command
    after = before() if before is not None else None
    try:
        runpy.run_path(command[0], run_name="__main__")
    finally:
        if after is not None:
            after()


@cache
def server() -> Any:
    """Starts processes in milliseconds."""
    folders = [str(ROOT / "benchmarks"), str(ROOT / "tests"), str(ROOT)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fault_matrix.preloaded"])
    return context


def ended(process: BaseProcess, patience: float = PATIENCE) -> int | None:
    """Waits for the end of a process, and gives its exit code; None: it hung, and was killed."""
    process.join(patience)
    code = process.exitcode
    kill(process)
    return code


def kill(process: BaseProcess) -> None:
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()


def wait_until(process: BaseProcess, cpu_seconds: float) -> bool:
    """Waits until a process has worked so long; False if it has ended before."""
    while process.is_alive():
        if worked(process.pid) >= cpu_seconds:
            return True
        time.sleep(0.002)
    return False


def worked(pid: int) -> float:
    """Seconds that the main thread of a process had a core, however busy the machine is."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):
        return 0.0


def to_end(processes: list[BaseProcess]) -> list[float]:
    """Waits for all processes; for how many CPU seconds each has worked."""
    seconds = [0.0] * len(processes)
    while any(process.is_alive() for process in processes):
        seconds = [worked(p.pid) or s for p, s in zip(processes, seconds, strict=True)]
        time.sleep(0.002)
    return seconds


def log_of(run_dir: Path, rank: int = 0) -> Path:
    """Where the processes of a run print, one after the other."""
    return Path(f"{run_dir}-{rank}.log")


def said(run_dir: Path, rank: int = 0) -> str:
    """What they printed."""
    log = log_of(run_dir, rank)
    return log.read_text(errors="replace") if log.exists() else ""


def last_line(text: str) -> str:
    """The last line that says anything."""
    return next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "")[:500]
