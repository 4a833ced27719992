"""Charts as SVG, drawn from numbers: curves, bars, dots, histograms.

Each function returns an `<svg>` element for a light background. Any text in it is escaped.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lactchain.inspection.markup import Markup, shapes

LINE_COLOURS = ("#2166ac", "#d6604d", "#1b7837", "#8073ac", "#b35806", "#35978f", "#c51b7d")
AXIS = "#9fb3c8"
Shade = tuple[int, int, int]  # red, green, blue
# Light to dark, so that a map also reads in print (ColorBrewer's Blues).
SEQUENTIAL = ((247, 251, 255), (198, 219, 239), (107, 174, 214), (33, 113, 181), (8, 48, 107))
MAX_POINTS = 600  # of a curve
MAX_NAMES = 3  # that a legend has room for


@dataclass(frozen=True)
class Axes:
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
        """How far to the right a number stands, in pixels."""
        room = self.width - self.left - self.right
        return round(self.left + share(value, self.x_range) * room, 1)

    def y(self, value: float) -> float:
        """How far down a number stands, in pixels."""
        floor, room = self.height - self.bottom, self.height - self.top - self.bottom
        return round(floor - share(value, self.y_range) * room, 1)

    def box(self, left: float, width: float, value: float, colour: str, hint: str = "") -> Markup:
        """A box from the x-axis up to a number."""
        top = self.y(value)
        height = round(self.y(0.0) - top, 1)
        return shapes.rect(round(left, 1), top, round(width, 1), height, colour, hint)

    def draw(
        self,
        title: str,
        x_label: str,
        *content: Markup,
        x_marks: Sequence[tuple[float, object]] | None = None,
    ) -> Markup:
        """The picture: title, axes with ticks (at `x_marks`, if given), content."""
        right, floor = self.width - self.right, self.height - self.bottom
        heights = [(self.y(v), short(v)) for v in ticks(*self.y_range)]
        if x_marks is None:
            x_marks = [(self.x(v), short(v)) for v in ticks(*self.x_range)]
        return shapes.svg(
            self.width,
            self.height,
            *(shapes.line(self.left, y, right, y, "#e4e7eb") for y, _ in heights),
            shapes.line(self.left, floor, right, floor, AXIS),
            *(shapes.text(self.left - 6, y + 4, number, "end") for y, number in heights),
            *(shapes.text(x, floor + 14, mark, "middle") for x, mark in x_marks),
            shapes.text(self.left, 15, title, size=12.5, weight=600),
            shapes.text(right, self.height - 3, x_label, "end", fill="#627d98"),
            *content,
        )


def line_chart(
    title: str,
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x_label: str = "step",
    x_marks: Sequence[float] | None = None,
) -> Markup:
    """Curves by name, each (x, y), with ticks at `x_marks`; what is not finite leaves a gap."""
    curves = {name: _finite_range(x, y) for name, (x, y) in series.items()}
    axes = Axes(
        padded([x for xs, _ in curves.values() for x in xs], 0.0),
        padded([y for _, ys in curves.values() for y in ys if math.isfinite(y)], 0.05),
        top=26 if len(curves) < 2 else 42,
    )
    colours = _series_colours(len(curves))
    drawn = [
        _curve(axes, name, xs, ys, colour)
        for (name, (xs, ys)), colour in zip(curves.items(), colours, strict=True)
    ]
    marks = None if x_marks is None else [(axes.x(x), x) for x in x_marks]
    return axes.draw(title, x_label, *drawn, *_legend(axes, list(curves), colours), x_marks=marks)


def bar_chart(
    title: str,
    bars: Mapping[str, Mapping[int, tuple[float, int]]],
    x_label: str,
    width: int = 520,
) -> Markup:
    """Shares in [0, 1] as bars side by side: name → {x: (share, number of cases)}."""
    positions = sorted({x for group in bars.values() for x in group})
    axes = Axes((-0.6, len(positions) - 0.4), (0.0, 1.0), width=width, top=42)
    box = (axes.x(0.8) - axes.x(0.0)) / len(bars)
    colours, drawn = _series_colours(len(bars)), []
    for n, (name, group) in enumerate(bars.items()):
        for place, x in enumerate(positions):
            share, cases = group.get(x, (0.0, 0))
            hint = f"{name}, {x_label} {x}: {share:.1%} of {cases}"
            left = axes.x(place - 0.4) + n * box
            drawn.append(axes.box(left, box - 1, share, colours[n], hint))
    marks = [(axes.x(place), x) for place, x in enumerate(positions)]
    return axes.draw(title, x_label, *drawn, *_legend(axes, list(bars), colours), x_marks=marks)


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


def padded(values: Iterable[float], share: float) -> tuple[float, float]:
    """The range of values with some room around, never empty."""
    values = list(values) or [0.0, 1.0]
    low, high = min(values), max(values)
    smallest = 1e-6 * max(abs(low), abs(high), 1e-6)
    if high - low < smallest:
        middle = max(abs(low) / 2, 0.5)
        return low - middle, high + middle
    return low - share * (high - low), high + share * (high - low)


def evenly_spaced(length: int, count: int) -> np.ndarray:
    """At most `count` places in a row of this length, the first and the last among them."""
    return np.linspace(0, length - 1, min(length, count)).round().astype(int)


def _finite_range(x: Sequence[float], y: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """At most `MAX_POINTS` points, within what a picture can be computed for."""
    places = evenly_spaced(len(x), MAX_POINTS)
    xs, ys = np.asarray(x, dtype=float)[places], np.asarray(y, dtype=float)[places]
    return xs, np.where(np.abs(ys) < 1e100, ys, np.nan)


def _curve(axes: Axes, name: str, xs: np.ndarray, ys: np.ndarray, colour: str) -> Markup:
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(xs, ys, strict=True):
        if math.isfinite(y):
            pieces[-1].append((axes.x(x), axes.y(y)))
        elif pieces[-1]:
            pieces.append([])
    lines = [shapes.polyline(piece, colour) for piece in pieces if len(piece) > 1]
    dots = [shapes.circle(*piece[-1], 2.5, colour) for piece in pieces if piece]
    return shapes.group(_extremes(name, ys[np.isfinite(ys)]), *lines, *dots)


def _extremes(name: str, values: np.ndarray) -> str:
    if not len(values):
        return name
    return f"{name}: last {values[-1]:.5g}, lowest {values.min():.5g}, highest {values.max():.5g}"


def _series_colours(count: int) -> list[str]:
    """Colours that tell few curves apart, or show the order of many."""
    if count <= MAX_NAMES:
        return list(LINE_COLOURS[:count])
    return [rgb(shade(0.3 + 0.7 * n / (count - 1), SEQUENTIAL)) for n in range(count)]


def _legend(axes: Axes, names: Sequence[str], colours: Sequence[str]) -> list[Markup]:
    """Names in their colours, in one line above the plot: of many the first and the last."""
    entries = list(zip(names, colours, strict=True))
    if len(entries) < 2:
        return []
    if len(entries) > MAX_NAMES:
        entries = [entries[0], entries[-1]]
    drawn, left = [], float(axes.left)
    for name, colour in entries:
        drawn.append(shapes.rect(round(left, 1), 24, 9, 9, colour))
        drawn.append(shapes.text(left + 13, 32, name))
        left += 24 + 6.2 * len(name)
    return drawn


def share(value: float, limits: tuple[float, float]) -> float:
    """Where a number lies between two others, 0 to 1."""
    low, high = limits
    return (value - low) / (high - low) if high > low else 0.5


def shade(share: float, palette: Sequence[Shade]) -> Shade:
    """The colour at a share in [0, 1] of the way through a palette."""
    place = min(max(share, 0.0), 1.0) * (len(palette) - 1)
    index = min(int(place), len(palette) - 2)
    low, high = np.array(palette[index]), np.array(palette[index + 1])
    red, green, blue = np.rint(low + (place - index) * (high - low)).astype(int).tolist()
    return red, green, blue


def rgb(colour: Shade) -> str:
    """A colour as SVG writes it."""
    return "rgb({},{},{})".format(*colour)


def short(value: float) -> str:
    """A number with four digits."""
    return f"{value:.4g}".replace("-", "−")
