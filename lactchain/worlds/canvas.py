"""Pixels of a world, where `render` is asked for them: drawn by what its `Picture` says."""

from collections.abc import Iterable, Sequence
from itertools import product

import gymnasium as gym
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from lactchain.inspection.pictures import Mark

PAPER, LINE, WALL, INK = "#ffffff", "#cbd2d9", "#52606d", "#1f2933"
FLAG, AGENT = "#f0b429", "#2680c2"
FILLS = {"wall": WALL, "hit": "#538d4e", "near": "#b59f3b", "miss": "#787c7e"}
"""Marks that fill their cell."""
CELL = 40
"""Pixels on each side of a cell."""

_SHOWN = 20  # letters of a struck text that there is room for
_AHEAD = ((0, -1), (1, 0), (0, 1), (-1, 0))  # (dx, dy) of the headings of a `Scene`
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


def pixels(world: gym.Env) -> np.ndarray:
    """The state of a world (H, W, 3), whose view has a picture and says what the state is."""
    view = world.text_view()
    board, scene = view.picture, view.picture.scene(view.get_state(world))
    canvas = Canvas(board.width, board.height)
    for x, y in product(range(board.width), range(board.height)):
        canvas.box(x, y, None)
    for mark in (*board.background, *scene.marks):
        _draw_mark(canvas, mark, board.width)
    if scene.agent is not None:
        _draw_agent(canvas, *scene.agent)
    return canvas.pixels()


def _draw_mark(canvas: Canvas, mark: Mark, width: int) -> None:
    x, y, kind, text = mark
    if kind in FILLS:
        canvas.box(x, y, FILLS[kind])
        canvas.text(x + 0.5, y + 0.5, text if text.isascii() else "", PAPER)  # no font has all
    elif kind == "goal":
        canvas.line([(x + 0.3, y + 0.2), (x + 0.3, y + 0.85)])
        canvas.polygon([(x + 0.3, y + 0.2), (x + 0.8, y + 0.37), (x + 0.3, y + 0.54)], FLAG)
    elif kind == "item":
        corners = ((0.25, 0.25), (0.75, 0.25), (0.75, 0.75), (0.25, 0.75))
        canvas.polygon([(x + across, y + down) for across, down in corners], FLAG)
    elif kind == "struck":
        canvas.text(width / 2, y + 0.5, text[:_SHOWN], INK, 0.3)
        canvas.line([(0.4, y + 0.5), (width - 0.4, y + 0.5)], WALL)


def _draw_agent(canvas: Canvas, x: int, y: int, heading: int | None = None) -> None:
    """An arrow, or a disc where the agent looks nowhere."""
    middle_x, middle_y = x + 0.5, y + 0.5
    if heading is None:
        canvas.disc(middle_x, middle_y, 0.3, AGENT)
        return
    ahead_x, ahead_y = _AHEAD[heading]
    corners = ((0.36, 0.0), (-0.28, 0.28), (-0.16, 0.0), (-0.28, -0.28))  # ahead, aside
    arrow = [
        (middle_x + a * ahead_x - b * ahead_y, middle_y + a * ahead_y + b * ahead_x)
        for a, b in corners
    ]
    canvas.polygon(arrow, AGENT)
