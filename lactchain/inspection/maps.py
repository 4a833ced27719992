"""A grid of cells in pictures: a number for each cell, and the way that an episode took.

Each function returns an `<svg>` element for a light background.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lactchain.inspection.markup import Markup, element
from lactchain.inspection.plots import (
    INK,
    SEQUENTIAL,
    Shade,
    chain_colour,
    polyline,
    rgb,
    shade,
    short,
    svg,
    text,
)

WALL = "#52606d"
HEADINGS = ((0, -1), (1, 0), (0, 1), (-1, 0))  # up, right, down, left
_NAMES = dict(zip(HEADINGS, ("up", "right", "down", "left"), strict=True))


@dataclass(frozen=True)
class Grid:
    """A grid of cells, (0, 0) at the upper left, some of them walls; a goal that is fixed."""

    width: int
    height: int
    walls: frozenset[tuple[int, int]] = frozenset()
    goal: tuple[int, int] | None = None


def value_map(
    title: str,
    grid: Grid,
    values: Mapping[tuple[int, int], float],
    limits: tuple[float, float],
    goal: tuple[int, int] | None = None,
    palette: Sequence[Shade] = SEQUENTIAL,
) -> Markup:
    """A number for each cell, as colour and as text; cells without one stay white.

    Args:
        limits: the numbers at both ends of the palette; equal limits make maps comparable.
        goal: a cell to mark.
    """
    size = max(16, min(38, 300 // max(grid.width, grid.height)))
    cells = []
    for cell, value in values.items():
        red, green, blue = shade(_share(value, limits), palette)
        ink = "#fff" if 0.3 * red + 0.59 * green + 0.11 * blue < 140 else INK
        fill = rgb((red, green, blue))
        hint = element("title", f"({cell[0]}, {cell[1]}): {value:.5g}")
        cells.append(_square(cell, size, hint, fill=fill))
        if size >= 30:
            x, y = (cell[0] + 0.5) * size, (cell[1] + 0.5) * size + 4
            number = f"{round(value, 2) + 0.0:.2f}"  # + 0.0: no "-0.00"
            cells.append(text(x, y, number, anchor="middle", size=11, fill=ink))
    marks = _goal(goal, size) if goal is not None else ""
    return _grid_picture(title, grid, size, *cells, marks)


def move_map(
    title: str,
    grid: Grid,
    moves: Sequence[tuple[int, int]],
    values: Mapping[tuple[int, int], Sequence[float]],
    limits: tuple[float, float],
    palette: Sequence[Shade] = SEQUENTIAL,
) -> Markup:
    """Numbers for each cell, one for each move out of it: a triangle on each side.

    A dot marks the greatest of them.

    Args:
        moves: of `HEADINGS`, in the order of the numbers.
    """
    size = max(16, min(38, 300 // max(grid.width, grid.height)))
    parts = []
    for cell, numbers in values.items():
        for move, value in zip(moves, numbers, strict=True):
            hint = element("title", f"({cell[0]}, {cell[1]}) {_NAMES[move]}: {value:.5g}")
            fill = rgb(shade(_share(value, limits), palette))
            parts.append(_triangle(cell, move, size, hint, fill=fill))
        x, y = _centre(cell, size)
        dx, dy = moves[max(range(len(moves)), key=numbers.__getitem__)]
        parts.append(
            element("circle", cx=x + 0.32 * size * dx, cy=y + 0.32 * size * dy, r=2.2, fill=INK)
        )
    marks = _goal(grid.goal, size) if grid.goal is not None else ""
    return _grid_picture(title, grid, size, *parts, marks)


def replay(
    grid: Grid,
    path: Sequence[Sequence[int]],
    values: Mapping[tuple[int, int], float] | None = None,
) -> Markup:
    """The way of an episode from cell to cell, over the value of each.

    Args:
        path: positions x, y, the start first; staying somewhere shows as a ring.
        values: a number for each cell, shown as colour.
    """
    size = max(16, min(38, 420 // max(grid.width, grid.height)))
    shown = values or {}
    limits = (min(shown.values()), max(shown.values())) if shown else (0.0, 0.0)
    cells = [
        _square(
            cell, size, element("title", f"({cell[0]}, {cell[1]}): {value:.5g}"),
            fill=rgb(shade(_share(value, limits), SEQUENTIAL)),
        )
        for cell, value in shown.items()
    ]  # fmt: skip
    # Drifting a little from step to step, so that ways back and forth stay visible.
    points = [_centre(p, size, (n % 7 - 3) * size / 22) for n, p in enumerate(path)]
    rings = [
        element("circle", cx=x, cy=y, r=size / 5, fill="none", stroke="#d64545")
        for (x, y), before, after in zip(points[1:], path, path[1:], strict=False)
        if tuple(before) == tuple(after)
    ]
    way = [polyline(points, "#f0b429", width=2.5)] if len(points) > 1 else []
    (x, y), (end_x, end_y) = points[0], points[-1]
    ends = (
        element("circle", cx=x, cy=y, r=size / 5, fill="#fff", stroke=INK),
        element("circle", cx=end_x, cy=end_y, r=size / 8, fill=INK),
    )
    marks = _goal(grid.goal, size) if grid.goal is not None else ""
    return _grid_picture("", grid, size, *cells, marks, *way, *rings, *ends)


def colour_bar(
    title: str, limits: tuple[float, float], palette: Sequence[Shade] = SEQUENTIAL
) -> Markup:
    """What the colours of a value map stand for."""
    num_shades, left = 40, 60 + 6 * len(title)
    boxes = [
        element(
            "rect", x=left + 4 * n, y=2, width=4.5, height=12,
            fill=rgb(shade(n / (num_shades - 1), palette)),
        )
        for n in range(num_shades)
    ]  # fmt: skip
    labels = (
        text(0, 12, title),
        text(left - 4, 12, short(limits[0]), anchor="end"),
        text(left + 4 * num_shades + 5, 12, short(limits[1])),
    )
    return svg(left + 4 * num_shades + 55, 18, *boxes, *labels)


def rollout(
    grid: Grid,
    starts: Sequence[Sequence[int]],
    paths: Sequence[Sequence[Sequence[int]]],
    goal: tuple[int, int] | None = None,
) -> Markup:
    """Where each chain led: a numbered arrow where it began, a line of the chain's colour.

    Args:
        starts: for each chain x, y and, where there is one, the orientation (0 up, 1 right, 2
            down, 3 left).
        paths: for each chain the positions (x, y, ...) that its actions led to, in order.
    """
    size = max(18, min(52, 300 // max(grid.width, grid.height)))
    lines, arrows = [], []
    for n, (start, path) in enumerate(zip(starts, paths, strict=True)):
        colour = chain_colour(n)
        # Each chain a little beside the one before, so that ways back and forth stay visible.
        shift = (n % 4 - 1.5) * size / 14
        points = [_centre(position, size, shift) for position in (start, *path)]
        if len(set(points)) > 1:
            lines.append(polyline(points, colour, width=2.5))
            x, y = points[-1]
            lines.append(element("circle", cx=x, cy=y, r=3.5, fill=colour))
        arrows.append(_arrow(start, size, colour, str(n + 1)))
    marks = _goal(goal, size) if goal is not None else ""
    # The first arrow on top: where the episode began must not be covered by a later visit.
    return _grid_picture("", grid, size, marks, *lines, *reversed(arrows))


def _grid_picture(title: str, grid: Grid, size: int, *content: object) -> Markup:
    width, height = grid.width * size, grid.height * size
    lines = [
        element("line", x1=x * size, x2=x * size, y1=0, y2=height, stroke="#cbd2d9")
        for x in range(grid.width + 1)
    ] + [
        element("line", x1=0, x2=width, y1=y * size, y2=y * size, stroke="#cbd2d9")
        for y in range(grid.height + 1)
    ]
    walls = [_square(wall, size, fill=WALL) for wall in sorted(grid.walls)]
    top = 20 if title else 2
    body = element("g", *lines, *walls, *content, transform=f"translate(2 {top})")
    heading = text(2, 13, title, size=12) if title else ""
    return svg(max(width + 4, 90), height + top + 2, heading, body)


def _share(value: float, limits: tuple[float, float]) -> float:
    """Where a number lies between two others, 0 to 1."""
    low, high = limits
    return (value - low) / (high - low) if high > low else 0.5


def _triangle(
    cell: tuple[int, int], side: tuple[int, int], size: int, *content: object, fill: str
) -> Markup:
    """The quarter of a cell on one of its sides."""
    x, y = _centre(cell, size)
    dx, dy = side
    half = size / 2 - 0.5
    corners = ((0, 0), (dx - dy, dx + dy), (dx + dy, dy - dx))
    points = " ".join(f"{x + half * a:.1f},{y + half * b:.1f}" for a, b in corners)
    return element("polygon", *content, points=points, fill=fill)


def _square(cell: tuple[int, int], size: int, *content: object, fill: str) -> Markup:
    x, y = cell[0] * size + 0.5, cell[1] * size + 0.5
    return element("rect", *content, x=x, y=y, width=size - 1, height=size - 1, fill=fill)


def _goal(cell: tuple[int, int], size: int) -> Markup:
    """A flag."""
    x, y, unit = cell[0] * size, cell[1] * size, size / 10
    pole = element(
        "line", x1=x + 3 * unit, x2=x + 3 * unit, y1=y + 2 * unit, y2=y + 8.5 * unit, stroke=INK
    )
    corners = ((3, 2), (8, 3.7), (3, 5.4))
    points = " ".join(f"{x + a * unit:.1f},{y + b * unit:.1f}" for a, b in corners)
    hint = element("title", f"goal ({cell[0]}, {cell[1]})")
    return element("g", hint, pole, element("polygon", points=points, fill="#f0b429", stroke=INK))


def _arrow(position: Sequence[int], size: int, colour: str, label: str) -> Markup:
    """An arrow head in the direction of the orientation (a disc without one), with a label."""
    x, y = _centre(position, size)
    radius = size * 0.34
    if len(position) > 2:
        (ahead_x, ahead_y), tail = HEADINGS[position[2]], 0.75
        corners = (
            (x + radius * ahead_x, y + radius * ahead_y),
            (x + radius * tail * (-ahead_x - ahead_y), y + radius * tail * (-ahead_y + ahead_x)),
            (x + radius * tail * (-ahead_x + ahead_y), y + radius * tail * (-ahead_y - ahead_x)),
        )
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
        marker = element("polygon", points=points, fill=colour, stroke="#fff")
    else:
        marker = element("circle", cx=x, cy=y, r=round(radius * 0.7, 1), fill=colour, stroke="#fff")
    number = text(x, y + 3.5, label, anchor="middle", size=9.5, fill="#fff", weight=600)
    return element("g", marker, number)


def _centre(position: Sequence[int], size: int, shift: float = 0.0) -> tuple[float, float]:
    return (
        round((position[0] + 0.5) * size + shift, 1),
        round((position[1] + 0.5) * size + shift, 1),
    )
