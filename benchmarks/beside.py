"""What a command takes here beside what it takes at another commit, in CPU-seconds.

    python benchmarks/beside.py HEAD~5 -- train_dqn --config configs/train_dqn/cartpole.yaml
    python benchmarks/beside.py HEAD~5 --also "train_ppo --config configs/train_ppo/cartpole.yaml"

Both sides run in turns, each as a whole command in a folder of its own, with this environment's
packages; the side that begins changes with each pair. Printed are the median ratio of the pairs and
Student's 95 % interval of the mean of their logarithms, after each pair, so that one may stop.
"""

import math
import os
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
    for repeat in range(repeats):
        for command, ratios in zip(commands, logs.values(), strict=True):
            turns = [*sides] if repeat % 2 else [*reversed(sides)]
            took = {side: seconds(sides[side], command, folder) for side in turns}
            here, there = (took[side] for side in sides)
            ratios.append(math.log(here / there))
            print(
                f"{shlex.join(command)}: {here:.1f} s here, {there:.1f} s; {shown(ratios)}",
                flush=True,
            )


def seconds(tree: Path, command: list[str], folder: Path) -> float:
    """CPU-seconds, of user and system, of a script of this tree, in an empty run folder."""
    script, *settings = command
    with tempfile.TemporaryDirectory(dir=folder) as run:
        place = ["--run.run_dir", f"{run}/run"]
        typed = [sys.executable, f"{tree}/scripts/{script}.py", *settings, *place]
        variables = environment() | {"PYTHONPATH": str(tree)}
        with open(f"{run}/log", "w") as log:
            process = subprocess.Popen(typed, cwd=tree, env=variables, stdout=log, stderr=log)
            _, status, used = os.wait4(process.pid, 0)
        if status:
            sys.exit(Path(log.name).read_text()[-2000:])
    return used.ru_utime + used.ru_stime


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
