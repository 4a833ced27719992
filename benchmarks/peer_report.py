"""The table and the pictures of `peers.py`, from the points of its runs."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from charts import band_chart
from markupsafe import Markup
from measuring import ARCHIVE, markdown, put_between, shown, student
from peer_worlds import WORLDS, bounds

from lactchain.storage.files import read_json, read_json_lines, write_json

HERE = Path(__file__).parent
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
HEADS = (
    "", "seeds", "success", "return", "less ours", "", "steps to 95 %", "CPU s to 95 %", "steps",
    "CPU s",
)  # fmt: skip
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
        place = options.folder / world
        found = {
            method: read(place, method, options.seeds, WORLDS[world].budget)
            for method in NAMES
            if method in options.methods
        }
        runs = {method: seeds for method, seeds in found.items() if seeds}
        if runs:
            floors = known_bounds(world, place)
            lines += section(world, runs, floors)
            for clock in CLOCKS:
                picture(world, clock).write_text(str(chart(world, runs, clock, floors)))
    sys.stdout.write("\n".join([*lines, ""]))
    if options.write:
        put_between(ARCHIVE, BEGIN, END, ["", *lines])


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
    mean, half = student(gaps)
    verdict = "" if abs(mean) <= half else ("better" if mean > 0 else "worse")
    return f"{mean:+.3f} ± {half:.3f}", verdict


def section(world: str, runs: Mapping[str, Runs], floors: Bounds) -> list[str]:
    """A world's table: floors, methods, optimum."""
    *worse, best = (
        [name, "", f"{known['success']:.3f}", f"{known['return']:.3f}", *[""] * (len(HEADS) - 4)]
        for name, known in floors.items()
    )
    first, ours = next(iter(runs.values())), runs.get("simpo", {})
    before = np.mean([points[0]["return"] for points in first.values()])
    level = before + 0.95 * ([*floors.values()][-1]["return"] - before)
    untrained = {seed: points[:1] for seed, points in first.items()}
    rows = [row("before training", untrained, ours, level)]
    rows += [row(NAMES[method], seeds, ours, level) for method, seeds in runs.items()]
    pictures = ", ".join(f"[{LABELS[c]}]({picture(world, c).name})" for c in CLOCKS)
    title = f"### {world.replace('_', ' ')}, {WORLDS[world].budget:,} steps"
    table = markdown(HEADS, [*worse, *rows, best])
    return [title, "", *table, "", f"Curves over {pictures}.", ""]


def row(name: str, runs: Runs, ours: Runs, level: float) -> list[str]:
    """The cells of a method."""
    gap = ("", "") if runs is ours or name == NAMES["simpo"] else difference(runs, ours)
    cells = [name, str(len(runs)), shown(last(runs, "success")), shown(last(runs, "return")), *gap]
    for clock in CLOCKS.values():
        times = [reached(points, level, clock) for points in runs.values()]
        middle, count = float(np.median(times)), int(np.isfinite(times).sum())
        cells.append(f"{middle:,.0f}" if np.isfinite(middle) else f"{count} of {len(times)}")
    steps, seconds = (np.mean(last(runs, clock)) for clock in CLOCKS.values())
    return [*cells, f"{steps:,.0f}", f"{seconds:.0f}"]


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
    places, bands = np.linspace(0, max(ends), NUM_PLACES), {}
    for method, seeds in runs.items():
        rows = np.array([held(points, key, places) for points in seeds.values()])
        middle, half = np.array([student(column) for column in rows.T]).T
        counted = "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
        bands[f"{NAMES[method]}, {counted}"] = places, middle, middle - half, middle + half
    top = [*floors.values()][-1]["return"]
    heights = [top, *(y for _, middle, *_ in bands.values() for y in middle)]
    title = f"{world.replace('_', ' ')}: return of the greedy actor, mean and 95 % interval"
    return band_chart(title, LABELS[clock], bands, heights, level=top)
