"""Pixels of a world, where `render` is asked for them: drawn by what its `Picture` says.

Lengths are in cells, from the upper left corner.
"""

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
_UNIT = CELL * _FINER

Point = tuple[float, float]


def pixels(world: gym.Env) -> np.ndarray:
    """The state of a world (H, W, 3), whose view has a picture and says what the state is."""
    view = world.text_view()
    board, scene = view.picture, view.picture.scene(view.get_state(world))
    size = board.width * _UNIT + _FINER, board.height * _UNIT + _FINER
    image = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(image)
    for x, y in product(range(board.width), range(board.height)):
        draw.rectangle(_scaled((x, y), (x + 1, y + 1)), None, LINE, _FINER)
    for mark in (*board.background, *scene.marks):
        _draw_mark(draw, mark, board.width)
    if scene.agent is not None:
        _draw_agent(draw, *scene.agent)
    return np.asarray(image.reduce(_FINER))


def _draw_mark(draw: ImageDraw.ImageDraw, mark: Mark, width: int) -> None:
    x, y, kind, text = mark
    if kind in FILLS:
        draw.rectangle(_scaled((x, y), (x + 1, y + 1)), FILLS[kind], LINE, _FINER)
        shown = text if text.isascii() else ""  # no font has all
        _write(draw, (x + 0.5, y + 0.5), shown, PAPER, 0.5)
    elif kind == "goal":
        _line(draw, (x + 0.3, y + 0.2), (x + 0.3, y + 0.85), INK)
        flag = (x + 0.3, y + 0.2), (x + 0.8, y + 0.37), (x + 0.3, y + 0.54)
        draw.polygon(_scaled(*flag), FLAG)
    elif kind == "item":
        corners = ((0.25, 0.25), (0.75, 0.25), (0.75, 0.75), (0.25, 0.75))
        draw.polygon(_scaled(*((x + across, y + down) for across, down in corners)), FLAG)
    elif kind == "struck":
        _write(draw, (width / 2, y + 0.5), text[:_SHOWN], INK, 0.3)
        _line(draw, (0.4, y + 0.5), (width - 0.4, y + 0.5), WALL)


def _draw_agent(draw: ImageDraw.ImageDraw, x: int, y: int, heading: int | None = None) -> None:
    """An arrow, or a disc where the agent looks nowhere."""
    if heading is None:
        draw.ellipse(_scaled((x + 0.2, y + 0.2), (x + 0.8, y + 0.8)), AGENT)
        return
    right, down = _AHEAD[heading]
    corners = ((0.36, 0.0), (-0.28, 0.28), (-0.16, 0.0), (-0.28, -0.28))  # ahead, aside
    turned = ((a * right - b * down, a * down + b * right) for a, b in corners)
    draw.polygon(_scaled(*((x + 0.5 + across, y + 0.5 + along) for across, along in turned)), AGENT)


def _line(draw: ImageDraw.ImageDraw, start: Point, end: Point, fill: str) -> None:
    draw.line(_scaled(start, end), fill, round(0.05 * _UNIT))


def _write(draw: ImageDraw.ImageDraw, middle: Point, text: str, fill: str, height: float) -> None:
    font = ImageFont.load_default(height * _UNIT)
    draw.text(_scaled(middle)[0], text, fill, font, "mm")


def _scaled(*points: Point) -> list[Point]:
    return [(x * _UNIT, y * _UNIT) for x, y in points]
