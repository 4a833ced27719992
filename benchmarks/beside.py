"""What a command takes here beside what it takes at another commit, in CPU-seconds.

    python benchmarks/beside.py HEAD~5 -- train_dqn --config configs/train_dqn/cartpole.yaml
    python benchmarks/beside.py HEAD~5 --also "train_ppo --config configs/train_ppo/cartpole.yaml"

Each side is one process that runs the command again and again, with this environment's packages, in
a run folder that is new each time; the sides take turns, and the one that begins changes with each
pair. The first pair, which imports, does not count. Printed are the median ratio of the pairs and
Student's 95 % interval of the mean of their logarithms, after each pair, so that one may stop.
"""

import json
import math
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import ROOT, command_line, environment, processor, student


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("commit", help="of this repository")
    parser.add_argument("--repeats", type=int, default=10, help="pairs of each command")
    parser.add_argument("--also", action="append", default=[], help="a further command, quoted")
    parser.add_argument("command", nargs="*", help="a script's name and its settings")
    given = parser.parse_args()
    commands = [shlex.split(text) for text in given.also] + [given.command] * bool(given.command)
    with tempfile.TemporaryDirectory(prefix="beside-") as folder:
        other = Path(folder) / "other"
        _git("worktree", "add", "--detach", str(other), given.commit)
        try:
            compare({"here": ROOT, given.commit: other}, commands, given.repeats, Path(folder))
        finally:
            _git("worktree", "remove", "--force", str(other))


def compare(sides: dict[str, Path], commands: list[list[str]], repeats: int, folder: Path) -> None:
    """Plays all commands in turns, and prints what is known after each round of them."""
    print(processor(), flush=True)
    logs: dict[str, list[float]] = {shlex.join(command): [] for command in commands}
    workers = {side: started(tree, folder / "log") for side, tree in sides.items()}
    for repeat in range(repeats + 1):
        for command, ratios in zip(commands, logs.values(), strict=True):
            turns = [*sides] if repeat % 2 else [*reversed(sides)]
            took = {side: seconds(workers[side], sides[side], command, folder) for side in turns}
            here, there = (took[side] for side in sides)
            if repeat:
                ratios.append(math.log(here / there))
                told = f"{here:.2f} s here, {there:.2f} s; {shown(ratios)}"
                print(f"{shlex.join(command)}: {told}", flush=True)


WORKER = """
import json, os, runpy, sys, time
told = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
for line in sys.stdin:
    sys.argv = json.loads(line)
    began = time.process_time()
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    print(time.process_time() - began, file=told, flush=True)
"""
"""A process that runs scripts by their command lines, and answers with the CPU-seconds of each."""


def started(tree: Path, log: Path) -> subprocess.Popen[str]:
    """A worker that imports what lies in this tree."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log.open("a")}
    variables = environment() | {"PYTHONPATH": str(tree)}
    typed = [sys.executable, "-c", WORKER]
    return subprocess.Popen(typed, cwd=tree, env=variables, text=True, **streams)


def seconds(worker: subprocess.Popen[str], tree: Path, command: list[str], folder: Path) -> float:
    """CPU-seconds of a script of this tree, in an empty run folder."""
    script, *settings = command
    with tempfile.TemporaryDirectory(dir=folder) as run:
        line = [f"{tree}/scripts/{script}.py", *settings, "--run.run_dir", f"{run}/run"]
        worker.stdin.write(json.dumps(line) + "\n")
        worker.stdin.flush()
        if not (told := worker.stdout.readline()):
            sys.exit((folder / "log").read_text()[-2000:])
    return float(told)


def shown(logs: list[float]) -> str:
    """Median, and mean with its interval, of ratios whose logarithms these are."""
    middle = statistics.median(logs)
    mean, half = student(logs)
    low, high = math.exp(mean - half), math.exp(mean + half)
    return f"median {math.exp(middle):.3f}, mean {math.exp(mean):.3f} ({low:.3f} to {high:.3f})"


def _git(*words: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True)


if __name__ == "__main__":
    main()
