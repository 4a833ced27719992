"""What a world shows of its states: a `Picture`, a board of cells on which each state is a `Scene`.

A world describes, and others draw: the explorer in the browser, `draw` here, films. So a world has
no code of drawing, and whatever is drawn looks the same everywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lactchain.environments.views import State
from lactchain.inspection.markup import Markup, shapes
from lactchain.inspection.plots import chain_colour

KINDS = {
    "wall": "#52606d",
    "fence": "#52606d",
    "place": "#e4e7eb",
    "goal": "#f0b429",
    "danger": "#f5b5b0",
    "item": "#ffffff",
    "hit": "#538d4e",
    "near": "#b59f3b",
    "miss": "#787c7e",
    "struck": "#ffffff",
}
"""What a mark may be, and its colour. A fence is a wall on the right side of its cell; hit, near
and miss are letters of a guess; struck is text that counted for nothing, as wide as the board."""
HEADINGS = ((0, -1), (1, 0), (0, 1), (-1, 0))  # up, right, down, left


class Mark(NamedTuple):
    """Something in a cell, (0, 0) at the upper left; `kind` is one of `KINDS`."""

    x: int
    y: int
    kind: str
    text: str = ""


class Scene(NamedTuple):
    """One state.

    Attributes:
        agent: x, y and, where it matters, the heading (0 up, 1 right, 2 down, 3 left).
        marks: what else is there, besides the background.
        group: what states on one map have in common, such as the goal; empty: all do.
    """

    agent: tuple[int, ...] | None = None
    marks: tuple[Mark, ...] = ()
    group: str = ""


@dataclass(frozen=True)
class Picture:
    """The board of a world.

    Attributes:
        width, height: in cells.
        scene: what a state looks like; it may raise a `KeyError`, `TypeError` or `ValueError` when
            asked for something that is no state of this world.
        background: what is there in every state.
        fog_unless: a field of the world's template; where a template has not got it, the agent sees
            no more than the cells around it. Empty: it always sees all.
    """

    width: int
    height: int
    scene: Callable[[State], Scene]
    background: tuple[Mark, ...] = ()
    fog_unless: str = ""

    def look(self, state: State | None) -> Scene | None:
        """What a state looks like; None of what is no state of this world."""
        try:
            scene = self.scene(state)
        except (KeyError, TypeError, ValueError):
            return None
        cells = [*(mark[:2] for mark in scene.marks), *([scene.agent[:2]] if scene.agent else [])]
        return scene if all(self._holds(*cell) for cell in cells) else None

    def _holds(self, x: object, y: object) -> bool:
        whole = type(x) is int and type(y) is int
        return whole and 0 <= x < self.width and 0 <= y < self.height


def draw(
    picture: Picture, scene: Scene, ways: Sequence[Sequence[Sequence[int]]] = (), whole: int = 260
) -> Markup:
    """A scene as `<svg>`, on a light background, its longer side about `whole` pixels.

    Args:
        ways: for each chain from here the positions (x, y, ...) that its actions led to, in order.
    """
    size = max(14, min(52, whole // max(picture.width, picture.height)))
    width, height = picture.width * size, picture.height * size
    columns = [
        shapes.line(x * size, 0, x * size, height, "#cbd2d9") for x in range(picture.width + 1)
    ]
    rows = [shapes.line(0, y * size, width, y * size, "#cbd2d9") for y in range(picture.height + 1)]
    marks = [_mark(mark, picture, size) for mark in (*picture.background, *scene.marks)]
    content = [*columns, *rows, *marks, *_ways(scene, ways, size)]
    if scene.agent is not None:
        content.append(_agent(scene.agent, size))
    return shapes.svg(width + 4, height + 4, shapes.moved(2, 2, *content))


def _mark(mark: Mark, picture: Picture, size: int) -> Markup:
    x, y, colour = mark.x * size, mark.y * size, KINDS.get(mark.kind, KINDS["item"])
    if mark.kind == "fence":
        return shapes.line(x + size, y, x + size, y + size, colour, 3)
    if mark.kind == "goal":
        return _flag(mark, size)
    dark = mark.kind in ("hit", "near", "miss", "wall")
    middle = picture.width * size / 2 if mark.kind == "struck" else x + size / 2
    return shapes.group(
        "",
        "" if mark.kind == "struck" else shapes.rect(x + 1, y + 1, size - 2, size - 2, colour),
        shapes.text(
            middle, y + 0.68 * size, mark.text, "middle", size // 2, "#fff" if dark else shapes.INK
        ),
    )


def _flag(mark: Mark, size: int) -> Markup:
    x, y, unit = mark.x * size, mark.y * size, size / 10
    pole = shapes.line(x + 3 * unit, y + 2 * unit, x + 3 * unit, y + 8.5 * unit, shapes.INK)
    corners = [(x + a * unit, y + b * unit) for a, b in ((3, 2), (8, 3.7), (3, 5.4))]
    return shapes.group(
        f"goal ({mark.x}, {mark.y})", pole, shapes.polygon(corners, KINDS["goal"], shapes.INK)
    )


def _ways(scene: Scene, ways: Sequence[Sequence[Sequence[int]]], size: int) -> list[Markup]:
    """A line for each chain, a little beside the one before, so that ways back stay visible."""
    drawn, here = [], scene.agent
    for number, way in enumerate(ways):
        shift = (number % 4 - 1.5) * size / 14
        points = [_centre(position, size, shift) for position in ([here] if here else []) + [*way]]
        if len(set(points)) > 1:
            drawn.append(shapes.polyline(points, chain_colour(number), 2.5))
        here = way[-1] if way else here
    return drawn


def _agent(agent: Sequence[int], size: int) -> Markup:
    """An arrow head in the direction of the heading; a dot where there is none."""
    x, y = _centre(agent, size)
    radius = size * 0.3
    if len(agent) < 3:
        return shapes.circle(x, y, radius, chain_colour(0), "#fff")
    (dx, dy), tail = HEADINGS[agent[2] % 4], 0.75 * radius
    corners = (
        (x + radius * dx, y + radius * dy),
        (x + tail * (-dx - dy), y + tail * (-dy + dx)),
        (x + tail * (-dx + dy), y + tail * (-dy - dx)),
    )
    return shapes.polygon(corners, chain_colour(0), "#fff")


def _centre(position: Sequence[int], size: int, shift: float = 0.0) -> tuple[float, float]:
    x, y = ((number + 0.5) * size + shift for number in position[:2])
    return round(x, 1), round(y, 1)
