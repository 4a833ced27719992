"""A grid of cells in pictures: a number for each cell, and the way that an episode took.

`CellPicture` is all that a world needs in which a state is a cell. Each function returns an `<svg>`
element for a light background.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lactchain.data.evaluations import CompletionValues, StateValues
from lactchain.environments.views import State
from lactchain.inspection.markup import Markup, parts, shapes
from lactchain.inspection.pictures import Picture
from lactchain.inspection.plots import (
    DIVERGING,
    SEQUENTIAL,
    Shade,
    chain_colour,
    rgb,
    shade,
    share,
    short,
)
from lactchain.types import Trajectory

WALL, LINE, FLAG = "#52606d", "#cbd2d9", "#f0b429"
HEADINGS = ((0, -1), (1, 0), (0, 1), (-1, 0))  # up, right, down, left
_NAMES = dict(zip(HEADINGS, ("up", "right", "down", "left"), strict=True))
Cell = tuple[int, int]


@dataclass(frozen=True)
class Grid:
    """A grid of cells, (0, 0) at the upper left, some of them walls; a goal that is fixed."""

    width: int
    height: int
    walls: frozenset[Cell] = frozenset()
    goal: Cell | None = None

    def cell_size(self, least: int, most: int, whole: int) -> int:
        """Pixels of a cell, so that the longer side of the grid has about `whole` of them."""
        return max(least, min(most, whole // max(self.width, self.height)))


def value_map(
    title: str,
    grid: Grid,
    values: Mapping[Cell, float],
    limits: tuple[float, float],
    goal: Cell | None = None,
    palette: Sequence[Shade] = SEQUENTIAL,
) -> Markup:
    """A number for each cell, as colour between `limits` and as text; white where there is none."""
    size = grid.cell_size(16, 38, 300)
    cells = []
    for cell, value in values.items():
        red, green, blue = colour = shade(share(value, limits), palette)
        cells.append(_square(cell, size, rgb(colour), _hint(cell, value)))
        if size >= 30:
            x, y = (cell[0] + 0.5) * size, (cell[1] + 0.5) * size + 4
            ink = "#fff" if 0.3 * red + 0.59 * green + 0.11 * blue < 140 else shapes.INK
            number = f"{round(value, 2) + 0.0:.2f}"  # + 0.0: no "-0.00"
            cells.append(shapes.text(x, y, number, "middle", fill=ink))
    return _grid_picture(title, grid, size, *cells, _goal(goal, size))


def value_maps(
    grid: Grid, values: StateValues, panels: Mapping[str, Mapping[int, Cell]], goal: Cell | None
) -> Markup:
    """A row of maps for each panel (title → number of a state → cell): critic, exact, and error."""
    both = [*values.critic, *(values.exact or ())]
    limits = min(both), max(both)
    bars = [colour_bar("value", limits)]
    drawn = [("critic", values.critic, limits, SEQUENTIAL)]
    if values.exact is not None:
        errors = [critic - exact for critic, exact in zip(values.critic, values.exact, strict=True)]
        around = _around_zero(errors)
        bars.append(colour_bar("error = critic − exact", around, DIVERGING))
        drawn.append(("exact", values.exact, limits, SEQUENTIAL))
        drawn.append(("error", errors, around, DIVERGING))
    rows = [
        [
            value_map(
                name + panel, grid, {c: numbers[n] for n, c in cells.items()}, ends, goal, palette
            )
            for name, numbers, ends, palette in drawn
        ]
        for panel, cells in panels.items()
    ]
    return parts.card(parts.gallery(bars), *map(parts.gallery, rows))


def move_map(
    title: str,
    grid: Grid,
    moves: Sequence[Cell],
    values: Mapping[Cell, Sequence[float]],
    limits: tuple[float, float],
    palette: Sequence[Shade] = SEQUENTIAL,
) -> Markup:
    """Numbers of the moves out of each cell as triangles on its sides; a dot marks the greatest."""
    size = grid.cell_size(16, 38, 300)
    drawn = []
    for cell, numbers in values.items():
        for move, value in zip(moves, numbers, strict=True):
            fill = rgb(shade(share(value, limits), palette))
            hint = _hint(cell, value, f" {_NAMES[move]}")
            drawn.append(shapes.polygon(_side(cell, move, size), fill, hint=hint))
        x, y = _centre(cell, size)
        dx, dy = moves[max(range(len(moves)), key=numbers.__getitem__)]
        drawn.append(shapes.circle(x + 0.32 * size * dx, y + 0.32 * size * dy, 2.2, shapes.INK))
    return _grid_picture(title, grid, size, *drawn, _goal(grid.goal, size))


def replay(
    grid: Grid, path: Sequence[Sequence[int]], values: Mapping[Cell, float] | None = None
) -> Markup:
    """The way of an episode from cell to cell, over the value of each.

    `path` are positions x, y, the start first; staying somewhere shows as a ring.
    """
    size, shown = grid.cell_size(16, 38, 420), values or {}
    limits = (min(shown.values()), max(shown.values())) if shown else (0.0, 0.0)
    cells = [
        _square(cell, size, rgb(shade(share(value, limits), SEQUENTIAL)), _hint(cell, value))
        for cell, value in shown.items()
    ]
    # Shifted a little from step to step, so that ways back and forth stay visible.
    points = [_centre(p, size, (n % 7 - 3) * size / 22) for n, p in enumerate(path)]
    way = [shapes.polyline(points, FLAG, 2.5)] if len(points) > 1 else []
    rings = [
        shapes.circle(*point, size / 5, "none", "#d64545")
        for point, before, after in zip(points[1:], path, path[1:], strict=False)
        if tuple(before) == tuple(after)
    ]
    start = shapes.circle(*points[0], size / 5, "#fff", shapes.INK)
    end = shapes.circle(*points[-1], size / 8, shapes.INK)
    return _grid_picture("", grid, size, *cells, _goal(grid.goal, size), *way, *rings, start, end)


def colour_bar(
    title: str, limits: tuple[float, float], palette: Sequence[Shade] = SEQUENTIAL
) -> Markup:
    """What the colours of a value map stand for."""
    num_shades, left = 40, 60 + 6 * len(title)
    right = left + 4 * num_shades
    boxes = [
        shapes.rect(left + 4 * n, 2, 4.5, 12, rgb(shade(n / (num_shades - 1), palette)))
        for n in range(num_shades)
    ]
    labels = (
        shapes.text(0, 12, title),
        shapes.text(left - 4, 12, short(limits[0]), "end"),
        shapes.text(right + 5, 12, short(limits[1])),
    )
    return shapes.svg(right + 55, 18, *boxes, *labels)


def rollout(
    grid: Grid,
    starts: Sequence[Sequence[int]],
    paths: Sequence[Sequence[Sequence[int]]],
    goal: Cell | None = None,
) -> Markup:
    """Where each chain led: a numbered arrow where it began, a line of the chain's colour.

    Args:
        starts: for each chain x, y and the orientation (0 up, 1 right, 2 down, 3 left).
        paths: for each chain the positions (x, y, ...) that its actions led to, in order.
    """
    size = grid.cell_size(18, 52, 300)
    lines, arrows = [], []
    for n, (start, path) in enumerate(zip(starts, paths, strict=True)):
        colour = chain_colour(n)
        # Each chain a little beside the one before, so that ways back and forth stay visible.
        shift = (n % 4 - 1.5) * size / 14
        points = [_centre(position, size, shift) for position in (start, *path)]
        if len(set(points)) > 1:
            lines.append(shapes.polyline(points, colour, 2.5))
            lines.append(shapes.circle(*points[-1], 3.5, colour))
        arrows.append(_arrow(start, size, colour, str(n + 1)))
    # The first arrow on top: where the episode began must not be covered by a later visit.
    return _grid_picture("", grid, size, _goal(goal, size), *lines, *reversed(arrows))


@dataclass(frozen=True)
class CellPicture(Picture):
    """Values of cells, what each move out of them is worth, and the way of an episode.

    Attributes:
        grid: what is drawn on.
        cell: the cell (x, y) of a state; None of what is no state of this world.
        moves: where single actions lead, of `HEADINGS`, in the order of their numbers; empty
            where they are other things than moves.
    """

    grid: Grid
    cell: Callable[[State], Cell | None]
    moves: tuple[Cell, ...] = ()

    def values(self, values: StateValues) -> Markup:
        """The critic's value of each cell, the exact one, and the error."""
        cells = self._cells(values.states)
        if not cells:
            return Markup("")
        return value_maps(self.grid, values, {"": dict(enumerate(cells))}, self.grid.goal)

    def completions(self, values: CompletionValues) -> Markup:
        """V of each cell, Q and advantage of each move; chains of moves are not drawn."""
        cells = self._cells(values.states)
        if not cells or len(values.completions) != len(self.moves):
            return Markup("")
        v = dict(zip(cells, values.values, strict=True))
        gains = dict(zip(cells, values.advantages, strict=True))
        q = {cell: [v[cell] + gain for gain in row] for cell, row in gains.items()}
        worth = [number for row in q.values() for number in row] + list(v.values())
        limits = min(worth), max(worth)
        around = _around_zero([number for row in gains.values() for number in row])
        bars = colour_bar("V, Q", limits), colour_bar("advantage", around, DIVERGING)
        title, best = "advantage of each move", "Q of each move, the best dotted"
        pictures = (
            value_map("V of each cell", self.grid, v, limits, self.grid.goal),
            move_map(best, self.grid, self.moves, q, limits),
            move_map(title, self.grid, self.moves, gains, around, DIVERGING),
        )
        return parts.gallery(bars) + parts.gallery(pictures)

    def episode(self, trajectory: Trajectory, behind: Sequence[tuple[State, float]] = ()) -> Markup:
        """One way from cell to cell, over their values."""
        begun = self._cells([info.get("state") or {} for info in trajectory.infos[:-1]])
        if not begun:
            return Markup("")
        paths = [info.get("positions", []) for info in trajectory.infos[1:]]
        way = [begun[0], *(position for path in paths for position in path)]
        shown = self._cells([state for state, _ in behind])
        return replay(self.grid, way, dict(zip(shown, (v for _, v in behind), strict=False)))

    def _cells(self, states: Sequence[State]) -> list[Cell]:
        """The cells of states; none at all if one of them is no state of this world."""
        cells = list(map(self.cell, states))
        return [] if None in cells else cells


def _grid_picture(title: str, grid: Grid, size: int, *content: Markup) -> Markup:
    width, height = grid.width * size, grid.height * size
    columns = [shapes.line(x * size, 0, x * size, height, LINE) for x in range(grid.width + 1)]
    rows = [shapes.line(0, y * size, width, y * size, LINE) for y in range(grid.height + 1)]
    walls = [_square(wall, size, WALL) for wall in sorted(grid.walls)]
    top = 20 if title else 2
    heading = shapes.text(2, 13, title, size=12) if title else ""
    body = shapes.moved(2, top, *columns, *rows, *walls, *content)
    return shapes.svg(max(width + 4, 90), height + top + 2, heading, body)


def _hint(cell: Cell, value: float, move: str = "") -> str:
    return f"({cell[0]}, {cell[1]}){move}: {value:.5g}"


def _around_zero(values: Sequence[float]) -> tuple[float, float]:
    """Limits for numbers of both signs."""
    largest = max(map(abs, values)) or 1.0
    return -largest, largest


def _side(cell: Cell, side: Cell, size: int) -> list[tuple[float, float]]:
    """The corners of the quarter of a cell on one of its sides."""
    (x, y), (dx, dy), half = _centre(cell, size), side, size / 2 - 0.5
    corners = ((0, 0), (dx - dy, dx + dy), (dx + dy, dy - dx))
    return [(x + half * a, y + half * b) for a, b in corners]


def _square(cell: Cell, size: int, fill: str, hint: str = "") -> Markup:
    x, y = cell[0] * size + 0.5, cell[1] * size + 0.5
    return shapes.rect(x, y, size - 1, size - 1, fill, hint)


def _goal(cell: Cell | None, size: int) -> Markup:
    """A flag; nothing where there is no goal."""
    if cell is None:
        return Markup("")
    x, y, unit = cell[0] * size, cell[1] * size, size / 10
    pole = shapes.line(x + 3 * unit, y + 2 * unit, x + 3 * unit, y + 8.5 * unit, stroke=shapes.INK)
    corners = [(x + a * unit, y + b * unit) for a, b in ((3, 2), (8, 3.7), (3, 5.4))]
    flag = shapes.polygon(corners, FLAG, shapes.INK)
    return shapes.group(f"goal ({cell[0]}, {cell[1]})", pole, flag)


def _arrow(position: Sequence[int], size: int, colour: str, label: str) -> Markup:
    """An arrow head in the direction of the orientation, with a label."""
    x, y = _centre(position, size)
    radius = size * 0.34
    (dx, dy), tail = HEADINGS[position[2]], 0.75 * radius
    points = (
        (x + radius * dx, y + radius * dy),
        (x + tail * (-dx - dy), y + tail * (-dy + dx)),
        (x + tail * (-dx + dy), y + tail * (-dy - dx)),
    )
    marker = shapes.polygon(points, colour, "#fff")
    number = shapes.text(x, y + 3.5, label, "middle", 9.5, "#fff", 600)
    return shapes.group("", marker, number)


def _centre(position: Sequence[int], size: int, shift: float = 0.0) -> tuple[float, float]:
    x, y = ((number + 0.5) * size + shift for number in position[:2])
    return round(x, 1), round(y, 1)
