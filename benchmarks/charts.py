"""Curves with intervals, as the race and the peers are drawn."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from lactchain_extras.explorer.plots import LINE_COLOURS, Axes, Markup, padded, shapes

Band = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""x, middle, low, high; a limit that is NaN leaves the line alone."""


def band_chart(
    title: str,
    x_label: str,
    bands: Mapping[str, Band],
    heights: Sequence[float],
    *,
    log_x: bool = False,
    level: float | None = None,
) -> Markup:
    """Curves by name.

    Args:
        heights: numbers that the y-axis has to hold; intervals are cut where it ends.
        log_x: x, above 0, stands on a log scale.
        level: a line across.
    """
    scale = math.log10 if log_x else float
    across = [scale(x) for xs, *_ in bands.values() for x in xs]
    top = 30 + 16 * len(bands)
    axes = Axes(padded(across, 0.0), padded(heights, 0.05), width=640, height=350, top=top)
    drawn = []
    if level is not None:
        height, right = axes.y(level), axes.width - axes.right
        drawn.append(shapes.line(axes.left, height, right, height, "#243b53"))
    for n, (name, (xs, middle, *limits)) in enumerate(bands.items()):
        colour, places = LINE_COLOURS[n % len(LINE_COLOURS)], [axes.x(scale(x)) for x in xs]
        if not np.isnan(limits).any():
            low, high = (map(axes.y, np.clip(limit, *axes.y_range)) for limit in limits)
            rim = [*zip(places, low, strict=True), *[*zip(places, high, strict=True)][::-1]]
            drawn.append(shapes.polygon(rim, colour, opacity=0.1))
        drawn.append(shapes.polyline(list(zip(places, map(axes.y, middle), strict=True)), colour))
        drawn.append(shapes.rect(axes.left, 24 + 16 * n, 9, 9, colour))
        drawn.append(shapes.text(axes.left + 14, 33 + 16 * n, name))
    marks = [(axes.x(math.log10(x)), f"{x:,.0f}") for x in _rounded(across)] if log_x else None
    return axes.draw(title, x_label, *drawn, x_marks=marks)


def _rounded(exponents: Sequence[float]) -> list[float]:
    """The numbers of the series 1, 2, 5, 10, … between powers of ten."""
    first, last = math.ceil(min(exponents) * 3 - 1e-9), math.floor(max(exponents) * 3 + 1e-9)
    return [(1, 2, 5)[n % 3] * 10.0 ** (n // 3) for n in range(first, last + 1)]
