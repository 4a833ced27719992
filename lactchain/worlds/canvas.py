"""What the worlds draw themselves on, where `render` is asked for pixels."""

from collections.abc import Iterable, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

PAPER, LINE, WALL, INK = "#ffffff", "#cbd2d9", "#52606d", "#1f2933"
FLAG, AGENT = "#f0b429", "#2680c2"
CELL = 40
"""Pixels on each side of a cell."""

_FINER = 4  # so many pixels are drawn for each that is shown: edges become smooth

Point = tuple[float, float]


class Canvas:
    """A picture that is drawn on; lengths are in cells, from the upper left corner.

    Args:
        width, height: in cells.
    """

    def __init__(self, width: int, height: int) -> None:
        self._unit = CELL * _FINER
        size = width * self._unit + _FINER, height * self._unit + _FINER
        self._image = Image.new("RGB", size, PAPER)
        self._draw = ImageDraw.Draw(self._image)

    def box(self, x: float, y: float, fill: str | None, outline: str = LINE) -> None:
        """A cell, by its upper left corner."""
        self._draw.rectangle(self._scaled(((x, y), (x + 1, y + 1))), fill, outline, _FINER)

    def polygon(self, points: Sequence[Point], fill: str) -> None:
        """A filled polygon by its corners."""
        self._draw.polygon(self._scaled(points), fill)

    def disc(self, x: float, y: float, radius: float, fill: str) -> None:
        """A filled circle by its centre."""
        corners = (x - radius, y - radius), (x + radius, y + radius)
        self._draw.ellipse(self._scaled(corners), fill)

    def line(self, points: Sequence[Point], fill: str = INK, width: float = 0.05) -> None:
        """A line from point to point."""
        self._draw.line(self._scaled(points), fill, round(width * self._unit))

    def text(self, x: float, y: float, text: str, fill: str, size: float = 0.5) -> None:
        """A text around its middle; `size` is its height."""
        font = ImageFont.load_default(size * self._unit)
        self._draw.text((x * self._unit, y * self._unit), text, fill, font, "mm")

    def pixels(self) -> np.ndarray:
        """The picture (H, W, 3), 0 to 255, as Gymnasium's `rgb_array` has it."""
        return np.asarray(self._image.reduce(_FINER))

    def _scaled(self, points: Iterable[Point]) -> list[Point]:
        return [(x * self._unit, y * self._unit) for x, y in points]


def floor(
    width: int, height: int, walls: Iterable[Sequence[int]], goal: Sequence[int] | None
) -> Canvas:
    """Free cells, walls (x, y), and a flag on the goal (x, y), if there is one."""
    canvas, walls = Canvas(width, height), {tuple(wall) for wall in walls}
    for x in range(width):
        for y in range(height):
            canvas.box(x, y, WALL if (x, y) in walls else None)
    if goal is not None:
        x, y = goal
        canvas.line([(x + 0.3, y + 0.2), (x + 0.3, y + 0.85)])
        canvas.polygon([(x + 0.3, y + 0.2), (x + 0.8, y + 0.37), (x + 0.3, y + 0.54)], FLAG)
    return canvas
