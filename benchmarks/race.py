"""The race: steps until an agent is certified, evolution beside what others search with.

    python benchmarks/race.py cartpole wide --minutes 60
    python benchmarks/race.py cartpole --contenders evolution random --seeds 0 1 2
    python benchmarks/race.py table --write

One counter for all: every environment step of training and of judging (greedy episodes that select)
counts. At moments that are the same for everybody a contender may show the agent that it has just
judged best, if that judgement meets the target; 50 fresh episodes, which nobody counts, certify it
or do not. The clock stops at the first moment at which one is certified. A run that has spent its
budget has failed.

The figure is the expected running time: all steps of all runs over the number of certified ones,
with an interval by the bootstrap over seeds; a quotient of two of them draws the seeds of both
together. Problems are in search_race/agents.py and language.py, contenders in contenders.py there.
`table` has what the folder holds as tables and pictures; with --write in RESULTS_ARCHIVE.md.

Every trial and every run is a line in --folder: what is there is not played again, so that a race
goes on where it was stopped, and trials that several contenders look at are played once.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from charts import band_chart
from measuring import ARCHIVE, ROOT, bootstrap_interval, command_line, markdown, put_between
from search_race.agents import CARTPOLE, WIDE
from search_race.contenders import CONTENDERS, NAMES
from search_race.language import LANGUAGE
from search_race.trials import OutOfTime, Problem, Trials, whole_lines

from lactchain.storage.files import append_json_lines, read_json_lines

PROBLEMS = {problem.name: problem for problem in (CARTPOLE, WIDE, LANGUAGE)}
BEGIN, END = "<!-- race: begin -->", "<!-- race: end -->"
NUM_SAMPLES = 10_000
"""Bootstrap samples of an interval."""
Cost = tuple[float, bool]
"""Steps of a run, and whether they led to a certified agent."""


@dataclass(frozen=True)
class Outcome:
    """A run of a contender: what it cost, and what its judgements came to on the way."""

    problem: str
    contender: str
    seed: int
    steps: int
    certified: bool
    points: list[list[float]]
    cpu_seconds: float


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("parts", nargs="+", choices=[*PROBLEMS, "table"])
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=[*CONTENDERS])
    parser.add_argument("--seeds", type=int, nargs="+", help="those of the problem, if not given")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="to run at most")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs/benchmarks/race")
    parser.add_argument("--write", action="store_true", help="put tables into the archive")
    options = parser.parse_args()
    torch.set_num_threads(1)  # so that CPU-seconds mean the same everywhere
    deadline = time.monotonic() + 60 * options.minutes
    for part in options.parts:
        if part == "table":
            lines = [line for p in PROBLEMS.values() for line in section(p, options.folder)]
            sys.stdout.write("\n".join([*lines, ""]))
            if options.write:
                put_between(ARCHIVE, BEGIN, END, ["", *lines])
        else:
            race(PROBLEMS[part], options.contenders, options.seeds, options.folder, deadline)


def race(
    problem: Problem, contenders: list[str], seeds: list[int] | None, folder: Path, deadline: float
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
            told = f"{outcome.steps:,} steps{'' if outcome.certified else ', not certified'}"
            print(f"{problem.name} seed {seed} {contender}: {told}", flush=True)


def run(problem: Problem, contender: str, seed: int, trials: Trials) -> Outcome:
    """A contender on a seed. Its CPU-seconds are those of the steps that it asked for first."""
    started = time.process_time()
    clock = CONTENDERS[contender](problem, seed, trials)
    cpu = time.process_time() - started
    solved = clock.solved is not None
    return Outcome(problem.name, contender, seed, clock.steps, solved, clock.points, cpu)


def section(problem: Problem, folder: Path) -> list[str]:
    """What a folder knows of a problem; its picture is drawn."""
    lines = read_json_lines(folder / problem.name / "runs.jsonl")
    outcomes = [Outcome(**line) for line in lines if line["seed"] < problem.num_seeds]
    if not outcomes:
        return []
    picture = ROOT / "benchmarks" / f"race_{problem.name}.svg"
    picture.write_text(chart(problem, outcomes))
    return [f"### {problem.title}", "", *table(outcomes), "", f"![Shares]({picture.name})", ""]


# --- figures --------------------------------------------------------------------------------------


def running_time(costs: Sequence[Cost]) -> float:
    """Expected steps until a certified agent: all steps of all runs over the certified ones.

    What is to be expected of somebody who begins anew after a run that failed. Source: Auger &
    Hansen 2005 ("performance evaluation of an advanced local search evolutionary algorithm"), as in
    the COCO platform.
    """
    certified = sum(certified for _, certified in costs)
    return sum(steps for steps, _ in costs) / certified if certified else math.inf


def spread_of(
    statistic: Callable[[np.ndarray], float], rows: Sequence[Sequence[float]]
) -> tuple[float, float]:
    """The 95 % percentile interval of a statistic over rows, one a seed; its values may be inf."""
    values, rng = np.asarray(rows, dtype=float), np.random.default_rng(0)
    draws = values[rng.integers(len(values), size=(NUM_SAMPLES, len(values)))]
    outcomes = np.sort([statistic(draw) for draw in draws])
    tail = int(0.025 * NUM_SAMPLES)
    return float(outcomes[tail]), float(outcomes[-1 - tail])


def time_interval(costs: Sequence[Cost]) -> tuple[float, float]:
    """The interval of a running time, by the bootstrap over seeds."""
    return spread_of(lambda draw: running_time(draw.tolist()), costs)


def ratio(ours: Mapping[int, Cost], theirs: Mapping[int, Cost]) -> tuple[float, float, float]:
    """Our running time over theirs, and its interval; seeds that both have are drawn together.

    Where neither is ever certified, they are alike: 1.
    """
    rows = [[*ours[seed], *theirs[seed]] for seed in sorted(ours.keys() & theirs.keys())]

    def quotient(draw: np.ndarray) -> float:
        mine, other = running_time(draw[:, :2].tolist()), running_time(draw[:, 2:].tolist())
        return mine / other if math.isfinite(other) else (0.0 if math.isfinite(mine) else 1.0)

    return quotient(np.asarray(rows, dtype=float)), *spread_of(quotient, rows)


def costs_of(outcomes: Sequence[Outcome]) -> dict[str, dict[int, Cost]]:
    """Contender → seed → what its run cost, contenders in the order of `NAMES`."""
    runs = {name: [o for o in outcomes if o.contender == name] for name in NAMES}
    return {
        name: {o.seed: (o.steps, o.certified) for o in own} for name, own in runs.items() if own
    }


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """The table of a race, a row for each contender."""
    heads = ["contender", "certified", "running time, steps", "95 % interval"]
    costs, rows = costs_of(outcomes), []
    for name, own in costs.items():
        runs, versus = list(own.values()), ""
        if name != "random" and own.keys() & costs.get("random", {}).keys():
            versus = "{:.2f} ({:.2f} to {:.2f})".format(*ratio(own, costs["random"]))
        certified = f"{sum(c for _, c in runs)} of {len(runs)}"
        interval = " – ".join(map(count, time_interval(runs)))
        median = np.median([steps if certified else math.inf for steps, certified in runs])
        rows.append(
            [NAMES[name], certified, count(running_time(runs)), interval, versus, count(median)]
        )
    return markdown([*heads, "over random search's", "median run"], rows)


def count(number: float) -> str:
    """A number of steps."""
    return f"{number:,.0f}" if math.isfinite(number) else "never"


def chart(problem: Problem, outcomes: Sequence[Outcome]) -> str:
    """Share of seeds that are certified over steps, with its interval over seeds."""
    xs, bands = np.geomspace(problem.moment, max(o.steps for o in outcomes), 60), {}
    for name, own in costs_of(outcomes).items():
        times = [steps if certified else math.inf for steps, certified in own.values()]
        rows = [[float(time <= x) for time in times] for x in xs]
        limits = np.array([bootstrap_interval(row, np.mean, num_samples=500) for row in rows])
        bands[NAMES[name]] = (xs, np.mean(rows, axis=1), *limits.T)
    title = f"{problem.title}: share of seeds certified"
    return str(band_chart(title, "environment steps, all counted", bands, [0, 1], log_x=True))


if __name__ == "__main__":
    main()
