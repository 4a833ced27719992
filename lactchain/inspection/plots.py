"""Charts as SVG, drawn from numbers: curves, bars, dots, histograms.

Each function returns an `<svg>` element for a light background. Any text in it is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lactchain.inspection.markup import Markup, element, escape, join

LINE_COLOURS = ("#2166ac", "#d6604d", "#1b7837", "#8073ac", "#b35806", "#35978f", "#c51b7d")
INK, AXIS = "#1f2933", "#9fb3c8"
Shade = tuple[int, int, int]  # red, green, blue
# Light to dark, so that a map also reads in print (ColorBrewer's Blues and RdBu).
SEQUENTIAL = ((247, 251, 255), (198, 219, 239), (107, 174, 214), (33, 113, 181), (8, 48, 107))
DIVERGING = ((178, 24, 43), (244, 165, 130), (247, 247, 247), (146, 197, 222), (33, 102, 172))
MAX_POINTS = 600  # of a curve
MAX_DOTS = 1500  # of a scatter plot
MAX_NAMES = 3  # that a legend has room for


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
            text(self.left - 6, self.y(v) + 4, short(v), anchor="end") for v in ticks(*self.y_range)
        ]
        if x_ticks is None:
            x_ticks = [
                text(self.x(v), floor + 14, short(v), anchor="middle") for v in ticks(*self.x_range)
            ]
        axis = element("line", x1=self.left, x2=right, y1=floor, y2=floor, stroke=AXIS)
        heading = text(self.left, 15, title, size=12.5, weight=600)
        label = text(right, self.height - 3, x_label, anchor="end", fill="#627d98")
        return svg(
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


def band_chart(
    title: str,
    bands: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]]],
    x_label: str,
) -> Markup:
    """Curves with intervals by name, each (x, middle, low, high); x, above 0, on a log scale."""
    exponents = [math.log10(x) for xs, *_ in bands.values() for x in xs]
    axes = _Axes(
        _padded(exponents, 0.0),
        _padded([y for _, *ys in bands.values() for line in ys for y in line], 0.05),
        width=640,
        height=340,
        top=30 + 16 * len(bands),
    )
    drawn, legend = [], []
    for n, (name, (xs, middle, low, high)) in enumerate(bands.items()):
        colour, places = LINE_COLOURS[n % len(LINE_COLOURS)], [axes.x(math.log10(x)) for x in xs]
        rim = [*zip(places, map(axes.y, low), strict=True)]
        rim += [*zip(places, map(axes.y, high), strict=True)][::-1]
        outline = " ".join(f"{x},{y}" for x, y in rim)
        drawn.append(element("polygon", points=outline, fill=colour, fill_opacity=0.15))
        drawn.append(polyline(zip(places, map(axes.y, middle), strict=True), colour))
        legend.append(element("rect", x=axes.left, y=24 + 16 * n, width=9, height=9, fill=colour))
        legend.append(text(axes.left + 14, 33 + 16 * n, name))
    first, last = math.ceil(min(exponents) * 3 - 1e-9), math.floor(max(exponents) * 3 + 1e-9)
    marks = [_rounded(n) for n in range(first, last + 1)]
    floor = axes.height - axes.bottom
    labels = [text(axes.x(math.log10(x)), floor + 14, f"{x:,.0f}", "middle") for x in marks]
    return axes.draw(title, x_label, *drawn, *legend, x_ticks=labels)


def _rounded(thirds: int) -> float:
    """The number of the series 1, 2, 5, 10, … that is about ten to the power of so many thirds."""
    return (1, 2, 5)[thirds % 3] * 10.0 ** (thirds // 3)


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
        text(axes.x(place), axes.height - axes.bottom + 14, x, anchor="middle")
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
    places = _spread(len(x), MAX_DOTS)
    dots = [
        element("circle", cx=axes.x(a), cy=axes.y(b), r=2, fill=LINE_COLOURS[0], fill_opacity=0.35)
        for a, b in zip(np.array(x)[places], np.array(y)[places], strict=True)
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
    places = _spread(len(x), MAX_POINTS)
    xs, ys = np.asarray(x, dtype=float)[places], np.asarray(y, dtype=float)[places]
    return xs, np.where(np.abs(ys) < 1e100, ys, np.nan)


def _spread(length: int, count: int) -> np.ndarray:
    """At most `count` places in a row of this length, the first and the last among them."""
    return np.linspace(0, length - 1, min(length, count)).round().astype(int)


def _curve(axes: _Axes, name: str, xs: np.ndarray, ys: np.ndarray, colour: str) -> Markup:
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(xs, ys, strict=True):
        if math.isfinite(y):
            pieces[-1].append((axes.x(x), axes.y(y)))
        elif pieces[-1]:
            pieces.append([])
    lines = [polyline(piece, colour) for piece in pieces if len(piece) > 1]
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
    shades = (shade(0.3 + 0.7 * n / (count - 1), SEQUENTIAL) for n in range(count))
    return [rgb(shade) for shade in shades]


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
        parts.append(text(left + 13, 32, name))
        left += 24 + 6.2 * len(name)
    return join(parts)


def polyline(points: Iterable[tuple[float, float]], colour: str, width: float = 1.8) -> Markup:
    """A line through points."""
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


def text(
    x: float,
    y: float,
    content: object,
    anchor: str = "start",
    size: float = 11,
    fill: str = INK,
    weight: int = 400,
) -> Markup:
    """Text whose baseline begins (or has its middle or end) at x, y."""
    return element(
        "text",
        escape(content),
        x=round(x, 1),
        y=round(y, 1),
        text_anchor=anchor,
        font_size=size,
        fill=fill,
        font_weight=weight,
    )


def short(value: float) -> str:
    """A number with four digits."""
    return f"{value:.4g}".replace("-", "−")


def svg(width: float, height: float, *content: object) -> Markup:
    """A picture of this size, in pixels."""
    return element(
        "svg",
        *content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
    )
