"""A program that survives; test_faults.py changes some of its lines so that it does not."""

import os
import shutil  # noqa: F401  - what it begins with may need it
import signal
import time
from dataclasses import dataclass

from lactchain.baselines.state_files import load_checkpoint, save_checkpoint
from lactchain.config.settings import RunConfig
from lactchain.errors import Interrupted
from lactchain.runs.process import launch, stop_requested
from lactchain.runs.progress import under_way
from lactchain.runs.run import Run


@dataclass(frozen=True)
class Counting:
    run: RunConfig


def main(config):
    with Run.of(config) as run, under_way("updates", 20) as step:
        if not run.finished:
            count(run, step)


def count(run, step):
    folder = run.path("checkpoints")  # begins
    state = load_checkpoint(folder) or {"number": 0, "metrics": None}
    run.truncate_metrics(state["number"] or -1, state["metrics"])
    step.resumed(state["number"])
    for number in range(state["number"] + 1, 21):
        until = time.process_time() + 0.01
        while time.process_time() < until:
            pass
        run.log({"number": number}, step=number)
        step.at(number)
        if number == 11 and "PAUSE" in os.environ:
            os.kill(os.getpid(), signal.SIGSTOP)
        stopped = stop_requested()  # listens
        if stopped or number % 8 == 0:  # saves
            save_checkpoint(folder, number, {"number": number}, run.mark_metrics())
        if stopped:
            raise Interrupted(stopped, "stopped")
    run.finish({"number": number})


if __name__ == "__main__":
    launch(main, Counting)
