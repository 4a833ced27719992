"""Pictures as SVG, drawn from numbers: curves, bars, value maps, rollouts on a grid.

Each function returns an `<svg>` element for a light background. Any text in it is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lactchain.inspection.markup import Markup, element, escape, join

LINE_COLOURS = ("#2166ac", "#d6604d", "#1b7837", "#8073ac", "#b35806", "#35978f", "#c51b7d")
INK, AXIS, WALL = "#1f2933", "#9fb3c8", "#52606d"
# Light to dark, so that a map also reads in print (ColorBrewer's Blues and RdBu).
SEQUENTIAL = ((247, 251, 255), (198, 219, 239), (107, 174, 214), (33, 113, 181), (8, 48, 107))
DIVERGING = ((178, 24, 43), (244, 165, 130), (247, 247, 247), (146, 197, 222), (33, 102, 172))
HEADINGS = ((0, -1), (1, 0), (0, 1), (-1, 0))  # up, right, down, left
MAX_POINTS = 600  # of a curve
MAX_DOTS = 1500  # of a scatter plot
MAX_NAMES = 3  # that a legend has room for


@dataclass(frozen=True)
class Grid:
    """A grid of cells, (0, 0) at the upper left, some of them walls."""

    width: int
    height: int
    walls: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class _Axes:
    """A plot area in a picture, and the numbers that its sides stand for."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    width: int = 262
    height: int = 180
    left: int = 46
    right: int = 12
    top: int = 26
    bottom: int = 30

    def x(self, value: float) -> float:
        low, high = self.x_range
        share = (value - low) / (high - low)
        return round(self.left + share * (self.width - self.left - self.right), 1)

    def y(self, value: float) -> float:
        low, high = self.y_range
        share = (value - low) / (high - low)
        return round(self.height - self.bottom - share * (self.height - self.top - self.bottom), 1)

    def draw(self, title: str, x_label: str, *content: object, x_ticks: object = None) -> Markup:
        """The picture: title, axes with ticks, content."""
        right, floor = self.width - self.right, self.height - self.bottom
        lines = [
            element("line", x1=self.left, x2=right, y1=self.y(v), y2=self.y(v), stroke="#e4e7eb")
            for v in ticks(*self.y_range)
        ]
        y_labels = [
            _text(self.left - 6, self.y(v) + 4, _short(v), anchor="end")
            for v in ticks(*self.y_range)
        ]
        if x_ticks is None:
            x_ticks = [
                _text(self.x(v), floor + 14, _short(v), anchor="middle")
                for v in ticks(*self.x_range)
            ]
        axis = element("line", x1=self.left, x2=right, y1=floor, y2=floor, stroke=AXIS)
        heading = _text(self.left, 15, title, size=12.5, weight=600)
        label = _text(right, self.height - 3, x_label, anchor="end", fill="#627d98")
        return _svg(
            self.width, self.height, *lines, axis, *y_labels, *x_ticks, heading, label, *content
        )


def line_chart(
    title: str, series: Mapping[str, tuple[Sequence[float], Sequence[float]]], x_label: str = "step"
) -> Markup:
    """Curves by name, each (x, y); points that are not finite leave a gap."""
    curves = {name: _finite_range(x, y) for name, (x, y) in series.items()}
    axes = _Axes(
        _padded([x for xs, _ in curves.values() for x in xs], 0.0),
        _padded([y for _, ys in curves.values() for y in ys if math.isfinite(y)], 0.05),
        top=26 if len(curves) < 2 else 42,
    )
    colours = _series_colours(len(curves))
    drawn = [
        _curve(axes, name, xs, ys, colour)
        for (name, (xs, ys)), colour in zip(curves.items(), colours, strict=True)
    ]
    return axes.draw(title, x_label, *drawn, _legend(axes, list(curves), colours))


def bar_chart(
    title: str, bars: Mapping[str, Mapping[int, tuple[float, int]]], x_label: str
) -> Markup:
    """Shares in [0, 1] as bars side by side: name → {x: (share, number of cases)}."""
    positions = sorted({x for group in bars.values() for x in group})
    axes = _Axes((-0.6, len(positions) - 0.4), (0.0, 1.0), width=520, top=42)
    width = (axes.x(0.8) - axes.x(0.0)) / len(bars)
    colours = _series_colours(len(bars))
    drawn = []
    for n, (name, group) in enumerate(bars.items()):
        for place, x in enumerate(positions):
            share, cases = group.get(x, (0.0, 0))
            hint = element("title", f"{name}, {x_label} {x}: {share:.1%} of {cases}")
            drawn.append(
                element(
                    "rect",
                    hint,
                    x=round(axes.x(place - 0.4) + n * width, 1),
                    y=axes.y(share),
                    width=round(width - 1, 1),
                    height=round(axes.y(0.0) - axes.y(share), 1),
                    fill=colours[n],
                )
            )
    labels = [
        _text(axes.x(place), axes.height - axes.bottom + 14, x, anchor="middle")
        for place, x in enumerate(positions)
    ]
    return axes.draw(title, x_label, *drawn, _legend(axes, list(bars), colours), x_ticks=labels)


def scatter(title: str, x: Sequence[float], y: Sequence[float], x_label: str) -> Markup:
    """Points (x, y) beside the line y = x, on which they would agree."""
    limits = _padded([*x, *y], 0.05)
    axes = _Axes(limits, limits, width=260, height=250)
    low, high = limits
    diagonal = element(
        "line", x1=axes.x(low), y1=axes.y(low), x2=axes.x(high), y2=axes.y(high), stroke=AXIS
    )
    stride = -(-len(x) // MAX_DOTS) or 1
    dots = [
        element("circle", cx=axes.x(a), cy=axes.y(b), r=2, fill=LINE_COLOURS[0], fill_opacity=0.35)
        for a, b in zip(x[::stride], y[::stride], strict=True)
    ]
    return axes.draw(title, x_label, diagonal, *dots)


def histogram(title: str, values: Sequence[float], x_label: str, num_bins: int = 24) -> Markup:
    """How often values occur."""
    counts, edges = np.histogram(values, num_bins, range=_padded(values, 0.0))
    axes = _Axes((edges[0], edges[-1]), (0.0, float(max(counts.max(), 1))))
    bars = [
        element(
            "rect",
            element("title", f"{left:.4g} to {right:.4g}: {count}"),
            x=axes.x(left),
            y=axes.y(count),
            width=round(axes.x(right) - axes.x(left) - 0.5, 1),
            height=round(axes.y(0) - axes.y(count), 1),
            fill=LINE_COLOURS[0],
        )
        for left, right, count in zip(edges, edges[1:], counts, strict=False)
    ]
    return axes.draw(title, x_label, *bars)


def value_map(
    title: str,
    grid: Grid,
    values: Mapping[tuple[int, int], float],
    limits: tuple[float, float],
    goal: tuple[int, int] | None = None,
    palette: Sequence[tuple[int, int, int]] = SEQUENTIAL,
) -> Markup:
    """A number for each cell, as colour and as text; cells without one stay white.

    Args:
        limits: the numbers at both ends of the palette; equal limits make maps comparable.
        goal: a cell to mark.
    """
    size = max(16, min(38, 300 // max(grid.width, grid.height)))
    low, high = limits
    cells = []
    for cell, value in values.items():
        share = (value - low) / (high - low) if high > low else 0.5
        red, green, blue = _colour(share, palette)
        ink = "#fff" if 0.3 * red + 0.59 * green + 0.11 * blue < 140 else INK
        fill = _rgb((red, green, blue))
        hint = element("title", f"({cell[0]}, {cell[1]}): {value:.5g}")
        cells.append(_square(cell, size, hint, fill=fill))
        if size >= 30:
            x, y = (cell[0] + 0.5) * size, (cell[1] + 0.5) * size + 4
            text = f"{round(value, 2) + 0.0:.2f}"  # + 0.0: no "-0.00"
            cells.append(_text(x, y, text, anchor="middle", size=11, fill=ink))
    marks = _goal(goal, size) if goal is not None else ""
    return _grid_picture(title, grid, size, *cells, marks)


def colour_bar(
    title: str, limits: tuple[float, float], palette: Sequence[tuple[int, int, int]] = SEQUENTIAL
) -> Markup:
    """What the colours of a value map stand for."""
    num_shades, left = 40, 60 + 6 * len(title)
    boxes = [
        element(
            "rect", x=left + 4 * n, y=2, width=4.5, height=12,
            fill=_rgb(_colour(n / (num_shades - 1), palette)),
        )
        for n in range(num_shades)
    ]  # fmt: skip
    labels = (
        _text(0, 12, title),
        _text(left - 4, 12, _short(limits[0]), anchor="end"),
        _text(left + 4 * num_shades + 5, 12, _short(limits[1])),
    )
    return _svg(left + 4 * num_shades + 55, 18, *boxes, *labels)


def rollout(
    title: str,
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
            lines.append(_polyline(points, colour, width=2.5))
            x, y = points[-1]
            lines.append(element("circle", cx=x, cy=y, r=3.5, fill=colour))
        arrows.append(_arrow(start, size, colour, str(n + 1)))
    marks = _goal(goal, size) if goal is not None else ""
    # The first arrow on top: where the episode began must not be covered by a later visit.
    return _grid_picture(title, grid, size, marks, *lines, *reversed(arrows))


def chain_colour(index: int) -> str:
    """The colour that stands for the chain of this place in an episode."""
    return LINE_COLOURS[index % len(LINE_COLOURS)]


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round numbers in [low, high]."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def _padded(values: Iterable[float], share: float) -> tuple[float, float]:
    """The range of values with some room around, never empty."""
    values = list(values) or [0.0, 1.0]
    low, high = min(values), max(values)
    smallest = 1e-6 * max(abs(low), abs(high), 1e-6)
    if high - low < smallest:
        middle = max(abs(low) / 2, 0.5)
        return low - middle, high + middle
    return low - share * (high - low), high + share * (high - low)


def _finite_range(x: Sequence[float], y: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """At most `MAX_POINTS` points, within what a picture can be computed for."""
    stride = -(-len(x) // MAX_POINTS) or 1
    xs, ys = np.asarray(x, dtype=float)[::stride], np.asarray(y, dtype=float)[::stride]
    return xs, np.where(np.abs(ys) < 1e100, ys, np.nan)


def _curve(axes: _Axes, name: str, xs: np.ndarray, ys: np.ndarray, colour: str) -> Markup:
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(xs, ys, strict=True):
        if math.isfinite(y):
            pieces[-1].append((axes.x(x), axes.y(y)))
        elif pieces[-1]:
            pieces.append([])
    lines = [_polyline(piece, colour) for piece in pieces if len(piece) > 1]
    dots = [
        element("circle", cx=piece[-1][0], cy=piece[-1][1], r=2.5, fill=colour)
        for piece in pieces
        if piece
    ]
    return element("g", element("title", _extremes(name, ys[np.isfinite(ys)])), *lines, *dots)


def _extremes(name: str, values: np.ndarray) -> str:
    if not len(values):
        return name
    return f"{name}: last {values[-1]:.5g}, lowest {values.min():.5g}, highest {values.max():.5g}"


def _series_colours(count: int) -> list[str]:
    """Colours that tell few curves apart, or show the order of many."""
    if count <= MAX_NAMES:
        return list(LINE_COLOURS[:count])
    shades = (_colour(0.3 + 0.7 * n / (count - 1), SEQUENTIAL) for n in range(count))
    return [_rgb(shade) for shade in shades]


def _legend(axes: _Axes, names: Sequence[str], colours: Sequence[str]) -> Markup:
    """Names in their colours, in one line above the plot: of many the first and the last."""
    entries = list(zip(names, colours, strict=True))
    if len(entries) < 2:
        return Markup("")
    if len(entries) > MAX_NAMES:
        entries = [entries[0], entries[-1]]
    parts = []
    left = float(axes.left)
    for name, colour in entries:
        parts.append(element("rect", x=round(left, 1), y=24, width=9, height=9, fill=colour))
        parts.append(_text(left + 13, 32, name))
        left += 24 + 6.2 * len(name)
    return join(parts)


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
    heading = _text(2, 13, title, size=12) if title else ""
    return _svg(max(width + 4, 90), height + top + 2, heading, body)


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
        shape = element("polygon", points=points, fill=colour, stroke="#fff")
    else:
        shape = element("circle", cx=x, cy=y, r=round(radius * 0.7, 1), fill=colour, stroke="#fff")
    text = _text(x, y + 3.5, label, anchor="middle", size=9.5, fill="#fff", weight=600)
    return element("g", shape, text)


def _centre(position: Sequence[int], size: int, shift: float = 0.0) -> tuple[float, float]:
    return (
        round((position[0] + 0.5) * size + shift, 1),
        round((position[1] + 0.5) * size + shift, 1),
    )


def _polyline(points: Iterable[tuple[float, float]], colour: str, width: float = 1.8) -> Markup:
    path = " ".join(f"{x},{y}" for x, y in points)
    return element(
        "polyline",
        points=path,
        fill="none",
        stroke=colour,
        stroke_width=width,
        stroke_linejoin="round",
        stroke_opacity=0.85,
    )


def _colour(share: float, palette: Sequence[tuple[int, int, int]]) -> tuple[int, int, int]:
    place = min(max(share, 0.0), 1.0) * (len(palette) - 1)
    index = min(int(place), len(palette) - 2)
    low, high = np.array(palette[index]), np.array(palette[index + 1])
    red, green, blue = np.rint(low + (place - index) * (high - low)).astype(int).tolist()
    return red, green, blue


def _rgb(colour: tuple[int, int, int]) -> str:
    return "rgb({},{},{})".format(*colour)


def _text(
    x: float,
    y: float,
    text: object,
    anchor: str = "start",
    size: float = 11,
    fill: str = INK,
    weight: int = 400,
) -> Markup:
    return element(
        "text",
        escape(text),
        x=round(x, 1),
        y=round(y, 1),
        text_anchor=anchor,
        font_size=size,
        fill=fill,
        font_weight=weight,
    )


def _short(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def _svg(width: float, height: float, *content: object) -> Markup:
    return element(
        "svg",
        *content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
    )
