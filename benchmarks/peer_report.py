"""The table and the pictures of `peers.py`, from the points of its runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lmrl import T_95
from peer_worlds import WORLDS, bounds

from lactchain.storage.files import read_json, read_json_lines, write_json
from lactchain_extras.explorer.markup import Markup, shapes
from lactchain_extras.explorer.plots import LINE_COLOURS, Axes, padded

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS_ARCHIVE.md"
BEGIN, END = "<!-- tables of peers.py -->", "<!-- end of peers.py -->"
NAMES = {
    "simpo": "critic, SimPO",
    "cloned_chosen": "critic, NLL on chosen",
    "by_return": "SimPO by return, no critic",
    "grpo_states": "GRPO, groups of a state",
    "grpo": "GRPO, whole episodes",
    "ilql": "ILQL, offline",
}
"""The first is the one that the others are compared with."""

CLOCKS = {"steps": "num_env_steps", "cpu": "cpu_seconds"}
LABELS = {"steps": "environment steps", "cpu": "CPU-seconds of training"}
NUM_PLACES = 120
"""Of a curve."""

Points = list[dict[str, Any]]
Runs = dict[int, Points]
"""By seed."""

Bounds = dict[str, dict[str, float]]
"""Success and return by name, the best last."""


def report(options: argparse.Namespace) -> None:
    """Prints the tables of all worlds that have a finished run, and draws their curves."""
    lines = []
    for world in options.worlds:
        runs = {
            method: read(options.folder / world, method, options.seeds, WORLDS[world].budget)
            for method in NAMES
            if method in options.methods
        }
        runs = {method: seeds for method, seeds in runs.items() if seeds}
        if runs:
            floors = known_bounds(world, options.folder / world)
            lines += section(world, runs, floors)
            for clock in CLOCKS:
                picture(world, clock).write_text(str(chart(world, runs, clock, floors)))
    sys.stdout.write("\n".join([*lines, ""]))
    if options.write:
        rewrite(lines)


def known_bounds(world: str, folder: Path) -> Bounds:
    """What bounds a world, from a file beside its runs, or computed into it."""
    file = folder / "bounds.json"
    if not file.exists():
        config = WORLDS[world].pipeline(folder, 0).environment
        write_json(file, bounds(WORLDS[world], config))
    return read_json(file)


def read(place: Path, method: str, seeds: Sequence[int], budget: int) -> Runs:
    """The points of finished runs within the budget of steps, by seed."""
    folders = {seed: place / str(seed) / method for seed in seeds}
    return {
        seed: [p for p in read_json_lines(folder / "points.jsonl") if p["num_env_steps"] <= budget]
        for seed, folder in folders.items()
        if (folder / "ended.json").exists()
    }


# --- figures -------------------------------------------------------------------------------------


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean over seeds, and half the width of Student's 95 % interval; NaN of a single seed."""
    if len(values) < 2:
        return float(np.mean(values)), float("nan")
    quantile = T_95[min(len(values) - 1, len(T_95)) - 1]
    return float(np.mean(values)), float(quantile * np.std(values, ddof=1) / len(values) ** 0.5)


def shown(values: Sequence[float], form: str = "{:.3f}") -> str:
    """Mean and interval as text."""
    mean, half = interval(values)
    return form.format(mean) + ("" if np.isnan(half) else f" ± {form.format(half)}")


def last(runs: Runs, figure: str) -> list[float]:
    """A figure at the end of each seed's run."""
    return [points[-1][figure] for points in runs.values()]


def reached(points: Points, level: float, clock: str) -> float:
    """On a clock, the first point from which on a run never falls below a return; else infinity."""
    below = [number for number, point in enumerate(points) if point["return"] < level]
    first = below[-1] + 1 if below else 0
    return points[first][clock] if first < len(points) else float("inf")


def difference(runs: Runs, other: Runs) -> tuple[str, str]:
    """Return less that of other runs of the same seeds, and what that says: seeds are paired."""
    seeds = sorted(runs.keys() & other.keys())
    gaps = [runs[seed][-1]["return"] - other[seed][-1]["return"] for seed in seeds]
    if len(gaps) < 2:
        return "", ""
    mean, half = interval(gaps)
    verdict = "" if abs(mean) <= half else ("better" if mean > 0 else "worse")
    return f"{mean:+.3f} ± {half:.3f}", verdict


def section(world: str, runs: Mapping[str, Runs], floors: Bounds) -> list[str]:
    """A world's table: floors, methods, optimum."""
    *worse, (best, optimum) = floors.items()
    budget = WORLDS[world].budget
    first, ours = next(iter(runs.values())), runs.get("simpo", {})
    before = [points[0]["return"] for points in first.values()]
    level = np.mean(before) + 0.95 * (optimum["return"] - np.mean(before))
    heads = ["", "seeds", "success", "return", "less ours", "", "steps to 95 %", "CPU s to 95 %"]
    heads += ["steps", "CPU s"]
    lines = [f"### {world.replace('_', ' ')}, {budget:,} steps", "", f"| {' | '.join(heads)} |"]
    lines.append("|" + "---|" * len(heads))
    lines += [_bound(name, figures, len(heads)) for name, figures in worse]
    at_first = {seed: points[:1] for seed, points in first.items()}
    lines.append(_row("before training", at_first, ours, level, len(heads)))
    for method, seeds in runs.items():
        lines.append(_row(NAMES[method], seeds, ours, level, len(heads)))
    lines.append(_bound(best, optimum, len(heads)))
    pictures = ", ".join(f"[{LABELS[c]}]({picture(world, c).name})" for c in CLOCKS)
    return [*lines, "", *talking(runs.get("grpo", {})), f"Curves over {pictures}.", ""]


def talking(runs: Runs) -> list[str]:
    """How whole episodes are played as they are learnt: what was said before is in the prompt."""
    ends = {seed: points for seed, points in runs.items() if "talking_return" in points[-1]}
    if not ends:
        return []
    success, returns = (shown(last(ends, f"talking_{name}")) for name in ("success", "return"))
    told = f"success {success}, return {returns}."
    return [f"GRPO of whole episodes, in conversation as it learns: {told}", ""]


def _bound(name: str, figures: Mapping[str, float], width: int) -> str:
    cells = [name, "", f"{figures['success']:.3f}", f"{figures['return']:.3f}"]
    return f"| {' | '.join(cells + [''] * (width - len(cells)))} |"


def _row(name: str, runs: Runs, ours: Runs, level: float, width: int) -> str:
    gap, verdict = ("", "") if runs is ours or name == NAMES["simpo"] else difference(runs, ours)
    cells = [name, str(len(runs)), shown(last(runs, "success")), shown(last(runs, "return"))]
    cells += [gap, verdict]
    for clock in CLOCKS.values():
        times = [reached(points, level, clock) for points in runs.values()]
        middle = float(np.median(times))
        count = int(np.isfinite(times).sum())
        cells.append(f"{middle:,.0f}" if np.isfinite(middle) else f"{count} of {len(times)}")
    cells += [
        f"{np.mean(last(runs, CLOCKS['steps'])):,.0f}",
        f"{np.mean(last(runs, 'cpu_seconds')):.0f}",
    ]
    return f"| {' | '.join(cells)} |"


# --- pictures ------------------------------------------------------------------------------------


def picture(world: str, clock: str) -> Path:
    """The file of a picture."""
    return HERE / f"peers_{world}_{clock}.svg"


def held(points: Points, clock: str, places: np.ndarray) -> np.ndarray:
    """The return at places on a clock: that of the last point before."""
    at = np.searchsorted([point[clock] for point in points], places, side="right") - 1
    return np.array([point["return"] for point in points])[at]


def chart(world: str, runs: Mapping[str, Runs], clock: str, floors: Bounds) -> Markup:
    """Return over a clock: mean over seeds, and its interval; a finished run stays where it is."""
    key = CLOCKS[clock]
    ends = [points[-1][key] for seeds in runs.values() for points in seeds.values()]
    places = np.linspace(0, max(ends), NUM_PLACES)
    bands = {}
    for method, seeds in runs.items():
        rows = np.array([held(points, key, places) for points in seeds.values()])
        bands[method] = np.array([interval(column) for column in rows.T])
    top = list(floors.values())[-1]["return"]
    values = [v for band in bands.values() for v in band[:, 0]]
    axes = Axes(
        (0.0, float(places[-1])),
        padded([*values, top], 0.05),
        width=640,
        height=360,
        top=46 + 16 * len(bands),
    )
    drawn = [_level(axes, top)]
    for number, (method, band) in enumerate(bands.items()):
        drawn += _curve(axes, places, band, LINE_COLOURS[number % len(LINE_COLOURS)])
        drawn += _entry(axes, number, f"{NAMES[method]}, {counted(len(runs[method]))}")
    title = f"{world.replace('_', ' ')}: return of the greedy actor, mean and 95 % interval"
    return axes.draw(title, LABELS[clock], *drawn)


def counted(seeds: int) -> str:
    """How many seeds, in words."""
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def _level(axes: Axes, value: float) -> Markup:
    return shapes.line(axes.left, axes.y(value), axes.width - axes.right, axes.y(value), "#243b53")


def _curve(axes: Axes, places: np.ndarray, band: np.ndarray, colour: str) -> list[Markup]:
    xs, (middle, half) = [axes.x(x) for x in places], band.T
    line = shapes.polyline(list(zip(xs, map(axes.y, middle), strict=True)), colour)
    if np.isnan(half).any():
        return [line]
    low, high = axes.y_range
    rim = [*zip(xs, [axes.y(max(low, y)) for y in middle - half], strict=True)]
    rim += [*zip(xs, [axes.y(min(high, y)) for y in middle + half], strict=True)][::-1]
    return [shapes.polygon(rim, colour, opacity=0.12), line]


def _entry(axes: Axes, number: int, name: str) -> list[Markup]:
    """A line of the legend."""
    colour = LINE_COLOURS[number % len(LINE_COLOURS)]
    square = shapes.rect(axes.left, 24 + 16 * number, 9, 9, colour)
    return [square, shapes.text(axes.left + 14, 33 + 16 * number, name)]


# --- RESULTS_ARCHIVE.md --------------------------------------------------------------------------


def rewrite(lines: Sequence[str]) -> None:
    """Puts the tables in the place of those that stand in RESULTS_ARCHIVE.md."""
    tables = "\n".join([BEGIN, "", *lines, END])
    before, _, rest = RESULTS.read_text("utf-8").partition(BEGIN)
    RESULTS.write_text(before + tables + rest.partition(END)[2], "utf-8")
