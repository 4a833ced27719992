"""What came out of a race: running times with intervals, tables, curves and distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from seed_statistics import bootstrap_interval

from lactchain_extras.explorer.markup import Markup, shapes
from lactchain_extras.explorer.plots import LINE_COLOURS, Axes, padded
from search_race.contenders import NAMES
from search_race.problems import Problem
from search_race.trials import Trial

NUM_SAMPLES = 10_000
"""Bootstrap samples of an interval."""


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


def running_time(outcomes: Sequence[tuple[float, bool]]) -> float:
    """Expected steps until a certified agent: all steps of all runs over the certified ones.

    What is to be expected of somebody who begins anew after a run that failed. Source: Auger &
    Hansen 2005 ("performance evaluation of an advanced local search evolutionary algorithm"), as in
    the COCO platform.
    """
    steps = sum(steps for steps, _ in outcomes)
    certified = sum(certified for _, certified in outcomes)
    return steps / certified if certified else math.inf


def spread_of(
    statistic: Callable[[np.ndarray], float], rows: Sequence[Sequence[float]], seed: int = 0
) -> tuple[float, float]:
    """The 95 % percentile interval of a statistic over rows, one a seed; its values may be inf."""
    values, rng = np.asarray(rows, dtype=float), np.random.default_rng(seed)
    draws = values[rng.integers(len(values), size=(NUM_SAMPLES, len(values)))]
    outcomes = np.sort([statistic(draw) for draw in draws])
    tail = int(0.025 * NUM_SAMPLES)
    return float(outcomes[tail]), float(outcomes[-1 - tail])


def time_interval(outcomes: Sequence[tuple[float, bool]]) -> tuple[float, float]:
    """The interval of a running time, by the bootstrap over seeds."""
    return spread_of(lambda draw: running_time(draw.tolist()), outcomes)


def ratio(
    ours: Mapping[int, tuple[float, bool]], theirs: Mapping[int, tuple[float, bool]]
) -> tuple[float, float, float]:
    """Our running time over theirs, and its interval; seeds that both have are drawn together.

    Where neither is ever certified, they are alike: 1.
    """
    rows = [[*ours[seed], *theirs[seed]] for seed in sorted(ours.keys() & theirs.keys())]

    def quotient(draw: np.ndarray) -> float:
        mine, other = running_time(draw[:, :2].tolist()), running_time(draw[:, 2:].tolist())
        return mine / other if math.isfinite(other) else (0.0 if math.isfinite(mine) else 1.0)

    return quotient(np.asarray(rows, dtype=float)), *spread_of(quotient, rows)


# --- tables --------------------------------------------------------------------------------------


def by_contender(outcomes: Sequence[Outcome]) -> dict[str, dict[int, Outcome]]:
    """Contender → seed → its run, contenders in the order of `NAMES`."""
    found = {
        name: {o.seed: o for o in outcomes if o.contender == name}
        for name in NAMES
    }  # fmt: skip
    return {name: runs for name, runs in found.items() if runs}


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """The table of a race, a row for each contender."""
    lines = [
        "| contender | certified | running time, steps | 95 % interval | over random search's "
        "| median run |",
        "|---|---|---|---|---|---|",
    ]
    runs = by_contender(outcomes)
    costs = {
        name: {seed: (o.steps, o.certified) for seed, o in own.items()}
        for name, own in runs.items()
    }  # fmt: skip
    for name, own in costs.items():
        rows = list(own.values())
        low, high = time_interval(rows)
        versus = ""
        if "random" in costs and name != "random" and own.keys() & costs["random"].keys():
            versus = "{:.2f} ({:.2f} to {:.2f})".format(*ratio(own, costs["random"]))
        median = np.median([steps if certified else math.inf for steps, certified in rows])
        certified = sum(c for _, c in rows)
        lines.append(
            f"| {NAMES[name]} | {certified} of {len(rows)} | {count(running_time(rows))} "
            f"| {count(low)} – {count(high)} | {versus} | {count(median)} |"
        )
    return lines


def count(number: float) -> str:
    """A number of steps."""
    return f"{number:,.0f}" if math.isfinite(number) else "never"


# --- pictures ------------------------------------------------------------------------------------


def chart(problem: Problem, outcomes: Sequence[Outcome]) -> str:
    """Share of seeds that are certified over steps, with its interval over seeds."""
    runs = by_contender(outcomes)
    most = max(o.steps for own in runs.values() for o in own.values())
    xs = np.geomspace(problem.moment, most, 60)
    bands = {}
    for name, own in runs.items():
        times = [o.steps if o.certified else math.inf for o in own.values()]
        rows = [[float(time <= x) for time in times] for x in xs]
        limits = np.array([bootstrap_interval(row, np.mean, num_samples=500) for row in rows])
        bands[NAMES[name]] = (xs, np.mean(rows, axis=1), limits[:, 0], limits[:, 1])
    title = f"{problem.title}: share of seeds certified"
    return str(band_chart(title, bands, "environment steps, all counted"))


Band = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def band_chart(title: str, bands: dict[str, Band], x_label: str) -> Markup:
    """Curves with intervals by name, each (x, middle, low, high); x, above 0, on a log scale."""
    exponents = [math.log10(x) for xs, *_ in bands.values() for x in xs]
    axes = Axes(
        padded(exponents, 0.0),
        padded([y for _, *ys in bands.values() for line in ys for y in line], 0.05),
        width=640,
        height=340,
        top=30 + 16 * len(bands),
    )
    drawn = []
    for n, (name, (xs, middle, low, high)) in enumerate(bands.items()):
        colour, places = LINE_COLOURS[n % len(LINE_COLOURS)], [axes.x(math.log10(x)) for x in xs]
        rim = [*zip(places, map(axes.y, low), strict=True)]
        rim += [*zip(places, map(axes.y, high), strict=True)][::-1]
        drawn.append(shapes.polygon(rim, colour, opacity=0.1))
        drawn.append(shapes.polyline(zip(places, map(axes.y, middle), strict=True), colour))
        drawn.append(shapes.rect(axes.left, 24 + 16 * n, 9, 9, colour))
        drawn.append(shapes.text(axes.left + 14, 33 + 16 * n, name))
    first, last = math.ceil(min(exponents) * 3 - 1e-9), math.floor(max(exponents) * 3 + 1e-9)
    marks = [(axes.x(math.log10(x)), f"{x:,.0f}") for x in map(rounded, range(first, last + 1))]
    return axes.draw(title, x_label, *drawn, x_marks=marks)


def rounded(thirds: int) -> float:
    """The number of the series 1, 2, 5, 10, … that is about ten to the power of so many thirds."""
    return (1, 2, 5)[thirds % 3] * 10.0 ** (thirds // 3)


def distribution(problem: Problem, trials: Sequence[Trial], num_bars: int = 25) -> str:
    """How many random trials come to what: their best judgements; certified ones in a colour."""
    best = np.array([max(report.fitness for report in trial.reports) for trial in trials])
    good = np.array([trial.reports[-1].certified for trial in trials])
    edges = np.linspace(best.min(), best.max(), num_bars + 1)
    heights = [np.histogram(best[chosen], edges)[0] for chosen in (good, ~good)]
    shares = [height / len(trials) for height in heights]
    most = float((shares[0] + shares[1]).max())
    axes = Axes((edges[0], edges[-1]), (0.0, most), width=640, height=300, top=62, bottom=30)
    drawn = []
    names = [f"{good.sum()} certified", f"{(~good).sum()} not certified"]
    for n, (name, colour) in enumerate(zip(names, LINE_COLOURS[1::-1], strict=True)):
        drawn.append(shapes.rect(axes.left, 24 + 16 * n, 9, 9, colour))
        drawn.append(shapes.text(axes.left + 14, 33 + 16 * n, name))
    width = axes.x(edges[1]) - axes.x(edges[0]) - 1
    for left, low, high in zip(edges, *shares, strict=False):
        drawn.append(axes.box(axes.x(left), width, low + high, LINE_COLOURS[0]))
        drawn.append(axes.box(axes.x(left), width, low, LINE_COLOURS[1]))
    title = f"{problem.title}: share of {len(trials)} random trials by their best judgement"
    marks = [(axes.x(x), f"{x:.0f}") for x in np.linspace(edges[0], edges[-1], 6)]
    return str(axes.draw(title, "mean return of two greedy episodes", *drawn, x_marks=marks))
