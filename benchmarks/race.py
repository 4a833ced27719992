"""The race: steps until an agent is certified, evolution beside what others search with.

    python benchmarks/race.py cartpole wide --minutes 60
    python benchmarks/race.py cartpole --contenders evolution random --seeds 0 1 2
    python benchmarks/race.py speed
    python benchmarks/race.py table --write

One counter for all: every environment step of training and of judging (greedy episodes that select)
counts. At moments that are the same for everybody a contender may show the agent that it has just
judged best, if that judgement meets the target; 50 fresh episodes, which nobody counts, certify it
or do not. The clock stops at the first moment at which one is certified. A run that has spent its
budget has failed.

The figure is the expected running time: all steps of all runs over the number of certified ones,
with an interval by the bootstrap over seeds; a quotient of two of them draws the seeds of both
together. Problems are in search_race/agents.py and language.py, contenders in contenders.py there.

- speed: environment steps per CPU-second of random trials side by side, and one by one;
- table: what the folder holds, as tables and pictures (running times, and how many of 200 random
  trials are good); with --write in benchmarks/RESULTS_ARCHIVE.md.

Every trial and every run is a line in --folder: what is there is not played again, so that a race
goes on where it was stopped, and trials that several contenders look at are played once.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from search_race.agents import CARTPOLE, WIDE
from search_race.contenders import CONTENDERS, installed
from search_race.figures import Outcome, chart, distribution, table
from search_race.language import LANGUAGE
from search_race.problems import TUNING, Problem
from search_race.trials import OutOfTime, Trial, Trials, searched_values, whole_lines

from lactchain.storage.files import append_json_lines, read_json_lines

ROOT = Path(__file__).parent.parent
PROBLEMS = {problem.name: problem for problem in (CARTPOLE, WIDE, LANGUAGE)}
NUM_SPREAD = 200


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=[*PROBLEMS, "speed", "table"])
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=installed())
    parser.add_argument("--seeds", type=int, nargs="+", help="those of the problem, if not given")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="to run at most")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs/benchmarks/race")
    parser.add_argument("--write", action="store_true", help="put tables into the archive")
    options = parser.parse_args()
    limit_threads()
    deadline = time.monotonic() + 60 * options.minutes
    for part in options.parts:
        if part in PROBLEMS:
            problem = PROBLEMS[part]
            race(problem, options.contenders, options.seeds, options.folder, deadline)
        else:
            {"speed": speed, "table": show}[part](options, deadline)


def limit_threads() -> None:
    """One thread, so that CPU-seconds mean the same everywhere."""
    import torch

    torch.set_num_threads(1)


def race(
    problem: Problem,
    contenders: list[str],
    seeds: list[int] | None,
    folder: Path,
    deadline: float,
) -> None:
    """The runs of a problem that are not there yet, all contenders of a seed in turn."""
    folder = folder / problem.name
    folder.mkdir(parents=True, exist_ok=True)
    done = {(line["contender"], line["seed"]) for line in whole_lines(folder / "runs.jsonl")}
    whole_lines(folder / "trials.jsonl")
    trials = Trials(problem, folder, deadline)
    for seed in range(problem.num_seeds) if seeds is None else seeds:
        for contender in contenders:
            if (contender, seed) in done:
                continue
            try:
                outcome = run(problem, contender, seed, trials)
            except OutOfTime:
                return
            append_json_lines(folder / "runs.jsonl", [asdict(outcome)], synced=True)
            sys.stdout.write(
                f"{problem.name} seed {seed} {contender}: {outcome.steps:,} steps"
                f"{'' if outcome.certified else ', not certified'}\n"
            )
            sys.stdout.flush()


def run(problem: Problem, contender: str, seed: int, trials: Trials) -> Outcome:
    """A contender on a seed. Its CPU-seconds are those of the steps that it asked for first."""
    started = time.process_time()
    clock = CONTENDERS[contender](problem, seed, trials)
    cpu = time.process_time() - started
    solved = clock.solved is not None
    return Outcome(problem.name, contender, seed, clock.steps, solved, clock.points, cpu)


# --- beside the race ------------------------------------------------------------------------------


def speed(options: argparse.Namespace, deadline: float) -> None:
    """Random trials side by side and one by one, in turn: steps per CPU-second of each."""
    short = replace(WIDE, trial_steps=4_096, report_steps=4_096)
    options.folder.mkdir(parents=True, exist_ok=True)
    for turn in range(5):
        rates = [steps_per_second(replace(short, block=block), turn) for block in (WIDE.block, 1)]
        line = {"side_by_side": rates[0], "one_by_one": rates[1], "cpu": cpu_name()}
        append_json_lines(options.folder / "speed.jsonl", [line])
        sys.stdout.write(f"steps per CPU-second: {rates[0]:,.0f} and {rates[1]:,.0f}\n")
        if time.monotonic() > deadline:
            return


def steps_per_second(problem: Problem, turn: int) -> float:
    """Environment steps per CPU-second of as many random trials as the race's block has."""
    with TemporaryDirectory() as folder:
        trials, started = Trials(problem, Path(folder)), time.process_time()
        steps = 0
        for number in range(WIDE.block):
            config = problem.drawn(TUNING + turn, number)
            for report in trials.reports(TUNING + turn, number, config):
                steps += report.trained + report.judged
        return steps / (time.process_time() - started)


def cpu_name() -> str:
    """What the processor calls itself."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


# --- what came out --------------------------------------------------------------------------------


def show(options: argparse.Namespace, deadline: float) -> None:
    """Prints what the folder holds, and makes the pictures."""
    lines: list[str] = []
    for problem in PROBLEMS.values():
        lines += section(problem, options.folder / problem.name)
    path = options.folder / "speed.jsonl"
    lines += speed_lines(read_json_lines(path))
    sys.stdout.write("\n".join([*lines, ""]))
    if options.write:
        write_between_marks(ROOT / "benchmarks/RESULTS_ARCHIVE.md", lines)


def section(problem: Problem, folder: Path) -> list[str]:
    """What is known of a problem."""
    outcomes = [Outcome(**line) for line in read_json_lines(folder / "runs.jsonl")]
    outcomes = [outcome for outcome in outcomes if outcome.seed < problem.num_seeds]
    if not outcomes:
        return []
    picture = ROOT / "benchmarks" / f"race_{problem.name}.svg"
    picture.write_text(chart(problem, outcomes))
    lines = [f"### {problem.title}", "", *table(outcomes), "", f"![Shares]({picture.name})", ""]
    return [*lines, *spread_lines(problem, first_trials(problem, folder))]


def first_trials(problem: Problem, folder: Path) -> list[Trial]:
    """The first random trials of all seeds, as many of each, if played to the end."""
    count = NUM_SPREAD // problem.num_seeds
    known = Trials(problem, folder).known
    wanted = [(seed, n) for seed in range(problem.num_seeds) for n in range(count)]
    keys = [Trial(s, n, searched_values(problem, problem.drawn(s, n))).key for s, n in wanted]
    return [known[key] for key in keys if key in known and known[key].is_over]


def spread_lines(problem: Problem, trials: list[Trial]) -> list[str]:
    """How many random trials are good, where all of them were played to the end."""
    if len(trials) < NUM_SPREAD // problem.num_seeds * problem.num_seeds:
        return []
    picture = ROOT / "benchmarks" / f"race_{problem.name}_spread.svg"
    picture.write_text(distribution(problem, trials))
    good = sum(trial.reports[-1].certified for trial in trials)
    return [f"{good} of {len(trials)} random trials are certified. ![Spread]({picture.name})", ""]


def speed_lines(turns: list[dict]) -> list[str]:
    """Steps per CPU-second, medians of the turns."""
    if not turns:
        return []
    both, single = (median(turn[name] for turn in turns) for name in ("side_by_side", "one_by_one"))
    return [
        f"Random trials of `wide`, {WIDE.block} side by side: {both:,.0f} environment steps per "
        f"CPU-second; one by one {single:,.0f}: {both / single:.1f} times "
        f"(medians of {len(turns)} turns, {turns[-1]['cpu']}).",
        "",
    ]


BEGIN, END = "<!-- race: begin -->", "<!-- race: end -->"


def write_between_marks(path: Path, lines: list[str]) -> None:
    """Puts the tables where the page has its marks."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    path.write_text("\n".join([before + BEGIN, "", *lines, END + after]), encoding="utf-8")


if __name__ == "__main__":
    main()
