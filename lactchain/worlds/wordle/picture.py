"""Games of Wordle as people know them: a row of coloured letters for each guess."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Any

from lactchain.environments.pictures import Picture
from lactchain.environments.views import State
from lactchain.inspection.markup import Markup, escape
from lactchain.types import Trajectory

COLOURS = {"g": "#538d4e", "y": "#b59f3b", "b": "#787c7e"}  # right place, elsewhere, absent

_GAME_STATE = {"guesses", "feedback"}
_TILE = Markup(
    '<span style="display:inline-block;width:1.7em;height:1.7em;line-height:1.7em;margin:1px;'
    'text-align:center;font-weight:600;color:#fff;background:{}">{}</span>'
)
_ROW = Markup('<div style="white-space:nowrap">{}</div>')
_STRUCK = Markup('<div class="bad"><span style="text-decoration:line-through">{}</span></div>')


class BoardPicture(Picture):
    """The board of a game, when it was over."""

    def episode(
        self,
        trajectory: Trajectory,
        states: Sequence[State] = (),
        values: Sequence[float] = (),
    ) -> Markup:
        """The guesses, their letters coloured; invalid ones struck through."""
        game = game_of(trajectory.infos)
        if game is None:
            return Markup("")
        turns = zip(game["guesses"], game["feedback"], strict=False)
        return Markup("<div>{}</div>").format(Markup("").join(starmap(_row, turns)))


def game_of(infos: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The game that an episode was, at its end; None if it was something else."""
    state = infos[-1].get("state")
    if not isinstance(state, Mapping) or state.keys() != _GAME_STATE:
        return None
    turns = list(zip(state["guesses"], state["feedback"], strict=False))
    regular = all(
        not marks or (len(g) == len(marks) and {*marks} <= {*COLOURS}) for g, marks in turns
    )
    return state if regular else None


def _row(guess: str, marks: str) -> Markup:
    if not marks:
        return _STRUCK.format(escape(guess or "(nothing)"))
    tiles = (
        _TILE.format(COLOURS[mark], escape(letter.upper()))
        for letter, mark in zip(guess, marks, strict=True)
    )
    return _ROW.format(Markup("").join(tiles))
