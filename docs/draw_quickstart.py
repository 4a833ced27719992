"""Draws docs/quickstart.svg, the picture of the README, from a finished quickstart.

Reads RUN/summary.json, RUN/episodes*.json and the episodes of the first and the last evaluation;
needs no model.

    make quickstart
    python docs/draw_quickstart.py
"""

import sys
import textwrap
from pathlib import Path

from lactchain import open_run
from lactchain.inspection.run_view import RunView
from lactchain.types import Trajectory
from lactchain_extras.explorer import plots
from lactchain_extras.explorer.plots import Markup, shapes

WIDTH, HEIGHT = 800, 432
TEXT_WIDTH = 30  # letters in a line beside a grid
MAX_COMPLETIONS = 3


def draw(run: RunView) -> Markup:
    """Success over the rounds and by distance; below, one start state before and after.

    Raises:
        StopIteration: no start state was failed before and solved after.
    """
    before, after = episode_before_and_after(run)
    pictures = [
        (0, 0, curves(run)),
        (280, 0, by_distance(run)),
        (8, 212, way(before, run)),
        (408, 212, way(after, run)),
    ]
    return shapes.svg(
        WIDTH,
        HEIGHT,
        shapes.rect(0, 0, WIDTH, HEIGHT, "#fff"),
        Markup("<style>text { font-family: system-ui, sans-serif; }</style>"),
        *(placed(*picture) for picture in pictures),
        shapes.text(8, 203, "One start state before training (the flag is the goal)", weight=600),
        shapes.text(408, 203, "The same start state after training", weight=600),
        *completions(before, 232),
        *completions(after, 632),
    )


def curves(run: RunView) -> Markup:
    """Success over the rounds, at all and within two completions."""
    rounds = run.summary["rounds"]
    keys = {"goal reached": "success_rate", "within 2": "success_within_2_chains"}
    numbers = [figures["round"] for figures in rounds]
    series = {name: (numbers, [row[key] for row in rounds]) for name, key in keys.items()}
    return plots.line_chart("success rate over the rounds", series, "round", numbers)


def episode_before_and_after(run: RunView) -> tuple[Trajectory, Trajectory]:
    """From the most distant start state that was failed before and solved after, the first."""
    evaluations = [view for name, view in run.stages.items() if name.endswith("/evaluation")]
    before, after = (
        {str(t.infos[0]["state"]): t for t in view.trajectories}
        for view in (evaluations[0], evaluations[-1])
    )
    farthest_first = sorted(run.episodes["after"], key=lambda episode: -episode.shortest)
    states = (str(episode.state) for episode in farthest_first)
    state = next(s for s in states if after[s].terminated and not before[s].terminated)
    return before[state], after[state]


def completions(trajectory: Trajectory, x: int) -> list[Markup]:
    """What the policy said, in the lines beside a grid, and how it ended."""
    said = [f"{n}. {action.text}" for n, action in enumerate(trajectory.actions, 1)]
    lines = [line for text in said[:MAX_COMPLETIONS] for line in textwrap.wrap(text, TEXT_WIDTH)]
    if len(said) > MAX_COMPLETIONS:
        lines.append(f"... and so on, {len(said)} completions")
    lines.append("goal reached" if trajectory.terminated else "goal not reached")
    return [shapes.text(x, 226 + 15 * n, line, size=10.5) for n, line in enumerate(lines)]


def by_distance(run: RunView) -> Markup:
    """Success by distance, before and after, as bars side by side."""
    sides = {"before": run.results[min(run.results)], "after": run.results[max(run.results)]}
    distances = sorted({result.shortest for results in sides.values() for result in results})
    axes = plots.Axes((-0.6, len(distances) - 0.4), (0.0, 1.0), width=520, top=42)
    box, label, drawn = axes.x(0.8) - axes.x(0.0), "shortest path, in actions", []
    for n, (name, results) in enumerate(sides.items()):
        for place, distance in enumerate(distances):
            here = [r.success for r in results if r.shortest == distance]
            share = sum(here) / len(here) if here else 0.0
            hint = f"{name}, {label} {distance}: {share:.1%} of {len(here)}"
            left, top = round(axes.x(place - 0.4) + n * box / 2, 1), axes.y(share)
            size = round(box / 2 - 1, 1), round(axes.y(0.0) - top, 1)
            drawn.append(shapes.rect(left, top, *size, plots.LINE_COLOURS[n], hint))
    marks = [(axes.x(place), distance) for place, distance in enumerate(distances)]
    return axes.draw("success rate", label, *drawn, *plots.legend(axes, sides), x_marks=marks)


def way(trajectory: Trajectory, run: RunView) -> Markup:
    """The way of an episode on the grid, from its start state to the flag, which is the goal."""
    scene, side = run.picture.look(trajectory.infos[0]["state"]), run.picture.width
    size = 208 // side
    lines = [shapes.line(n * size, 0, n * size, side * size, "#cbd2d9") for n in range(side + 1)]
    lines += [shapes.line(0, n * size, side * size, n * size, "#cbd2d9") for n in range(side + 1)]
    flags = [flag(mark.x, mark.y, size) for mark in scene.marks if mark.kind == "goal"]
    moves = moved(trajectory, scene.agent, size)
    whole = shapes.moved(2, 2, *lines, *flags, *moves, arrow(*scene.agent, size))
    return shapes.svg(side * size + 4, side * size + 4, whole)


def moved(trajectory: Trajectory, here: tuple[int, ...], size: int) -> list[Markup]:
    """A line for each chain, a little beside the one before, so that ways back stay visible."""
    drawn = []
    for number, info in enumerate(trajectory.infos[1:]):
        shift, cells = (number % 4 - 1.5) * size / 14, [here, *info["positions"]]
        points = [((x + 0.5) * size + shift, (y + 0.5) * size + shift) for x, y, *_ in cells]
        if len(set(points)) > 1:
            colour = plots.LINE_COLOURS[number % len(plots.LINE_COLOURS)]
            drawn.append(shapes.polyline(points, colour, 2.5))
        here = cells[-1]
    return drawn


def flag(x: int, y: int, size: int) -> Markup:
    """The goal."""
    unit, left, top = size / 10, x * size, y * size
    pole = shapes.line(
        left + 3 * unit, top + 2 * unit, left + 3 * unit, top + 8.5 * unit, shapes.INK
    )
    corners = [(left + a * unit, top + b * unit) for a, b in ((3, 2), (8, 3.7), (3, 5.4))]
    return shapes.group(f"goal ({x}, {y})", pole, shapes.polygon(corners, "#f0b429", shapes.INK))


def arrow(x: int, y: int, heading: int, size: int) -> Markup:
    """The agent, which faces up, right, down or left."""
    (dx, dy), radius = ((0, -1), (1, 0), (0, 1), (-1, 0))[heading], 0.3 * size
    corners = [
        (dx, dy),
        (0.75 * (-dx - dy), 0.75 * (dx - dy)),
        (0.75 * (dy - dx), -0.75 * (dx + dy)),
    ]
    places = [((x + 0.5) * size + radius * a, (y + 0.5) * size + radius * b) for a, b in corners]
    return shapes.polygon(places, plots.LINE_COLOURS[0], "#fff")


def placed(x: int, y: int, picture: Markup) -> Markup:
    """A picture at a place of another one."""
    return Markup(str(picture).replace("<svg ", f'<svg x="{x}" y="{y}" ', 1))


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "runs/quickstart"
    picture = Path(__file__).with_name("quickstart.svg")
    picture.write_text(draw(open_run(folder)), encoding="utf-8")
