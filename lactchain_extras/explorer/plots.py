"""Charts as SVG, drawn from numbers.

Each function returns an `<svg>` element for a light background. Any text in it is escaped.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from markupsafe import Markup

from lactchain_extras.explorer.report import environment

shapes = environment.get_template("shapes.svg").module
"""Functions that return pieces of a picture: see `templates/shapes.svg`."""
LINE_COLOURS = ("#2166ac", "#d6604d", "#1b7837", "#8073ac", "#b35806", "#35978f", "#c51b7d")
AXIS = "#9fb3c8"


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
        (low, high), room = self.x_range, self.width - self.left - self.right
        return round(self.left + (value - low) / (high - low) * room, 1)

    def y(self, value: float) -> float:
        """How far down a number stands, in pixels."""
        (low, high), floor = self.y_range, self.height - self.bottom
        return round(floor - (value - low) / (high - low) * (floor - self.top), 1)

    def draw(
        self,
        title: str,
        x_label: str,
        *content: Markup,
        x_marks: Sequence[tuple[float, object]] | None = None,
    ) -> Markup:
        """The picture: title, axes with ticks (at `x_marks`, if given), content."""
        right, floor = self.width - self.right, self.height - self.bottom
        short = "{:.4g}".format
        heights = [(self.y(v), short(v).replace("-", "−")) for v in ticks(*self.y_range)]
        if x_marks is None:
            x_marks = [(self.x(v), short(v).replace("-", "−")) for v in ticks(*self.x_range)]
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
    """Curves by name, each (x, y) of finite numbers, with ticks at `x_marks`."""
    across = [x for xs, _ in series.values() for x in xs]
    heights = [y for _, ys in series.values() for y in ys]
    axes = Axes(padded(across, 0.0), padded(heights, 0.05), top=26 if len(series) < 2 else 42)
    coloured = zip(series.items(), cycle(LINE_COLOURS), strict=False)
    drawn = [_curve(axes, name, *curve, colour) for (name, curve), colour in coloured]
    marks = None if x_marks is None else [(axes.x(x), x) for x in x_marks]
    return axes.draw(title, x_label, *drawn, *legend(axes, series), x_marks=marks)


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
    room = share * (high - low)
    if high - low < 1e-6 * max(abs(low), abs(high), 1e-6):
        room = max(abs(low) / 2, 0.5)
    return low - room, high + room


def _curve(axes: Axes, name: str, xs: Sequence[float], ys: Sequence[float], colour: str) -> Markup:
    if not ys:
        return shapes.group(name)
    points = [(axes.x(x), axes.y(y)) for x, y in zip(xs, ys, strict=True)]
    line = [shapes.polyline(points, colour)] if len(points) > 1 else []
    name += f": last {ys[-1]:.5g}, lowest {min(ys):.5g}, highest {max(ys):.5g}"
    return shapes.group(name, *line, shapes.circle(*points[-1], 2.5, colour))


def legend(axes: Axes, names: Iterable[str]) -> list[Markup]:
    """Names in their colours, in one line above the plot; of a single one nothing."""
    drawn, left = [], float(axes.left)
    for name, colour in zip(names, LINE_COLOURS, strict=False):
        drawn.append(shapes.rect(round(left, 1), 24, 9, 9, colour))
        drawn.append(shapes.text(left + 13, 32, name))
        left += 24 + 6.2 * len(name)
    return drawn if len(drawn) > 2 else []
