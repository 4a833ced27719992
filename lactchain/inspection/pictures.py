"""What a world shows of its states: a `Picture`, a board of cells on which each state is a `Scene`.

A world describes, and the explorer draws: so a world has no code of drawing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from lactchain.environments.views import State

KINDS = (
    "wall", "fence", "place", "goal", "danger", "item", "hit", "near", "miss", "struck",
)  # fmt: skip
"""What a mark may be. A fence is a wall on the right side of its cell; hit, near and miss are
letters of a guess; struck is text that counted for nothing, as wide as the board."""


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
        scene: what a state looks like; `KeyError`, `TypeError` or `ValueError` of what is none.
        background: what is there in every state.
        fog_unless: a field of the world's template, without which the agent sees no more than the
            cells around it. Empty: it always sees all.
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
        return type(x) is type(y) is int and 0 <= x < self.width and 0 <= y < self.height
