"""Pictures of a world in which a state is a cell of a grid, with one goal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lactchain.environments.pictures import Picture
from lactchain.inspection import maps, plots
from lactchain.inspection.maps import Grid
from lactchain.inspection.markup import Markup, parts
from lactchain.types import Trajectory

State = Mapping[str, Any]
Cell = tuple[int, int]


@dataclass(frozen=True)
class CellPicture(Picture):
    """Values of cells, what each move out of them is worth, and the way of an episode.

    Attributes:
        grid: what is drawn on.
        cell: the cell (x, y) of a state; None of what is no state of this world.
        moves: where single actions lead, of `maps.HEADINGS`, in the order of their numbers; empty
            where they are other things than moves.
    """

    grid: Grid
    cell: Callable[[State], Cell | None]
    moves: tuple[tuple[int, int], ...] = ()

    def values(
        self, states: Sequence[State], critic: Sequence[float], exact: Sequence[float] | None
    ) -> Markup:
        """The critic's value of each cell, and the exact one."""
        cells = self._cells(states)
        if not cells:
            return Markup("")
        named = {"critic": critic} if exact is None else {"critic": critic, "exact": exact}
        every = [number for numbers in named.values() for number in numbers]
        limits, goal = (min(every), max(every)), self.grid.goal
        pictures = [
            maps.value_map(name, self.grid, dict(zip(cells, numbers, strict=True)), limits, goal)
            for name, numbers in named.items()
        ]
        return parts.gallery([maps.colour_bar("value", limits), *pictures])

    def answers(
        self,
        states: Sequence[State],
        values: Sequence[float],
        advantages: Sequence[Sequence[float]],
    ) -> Markup:
        """V of each cell, Q and advantage of each move; chains of moves are not drawn."""
        cells = self._cells(states)
        if not cells or len(advantages[0]) != len(self.moves):
            return Markup("")
        v = dict(zip(cells, values, strict=True))
        gains = dict(zip(cells, advantages, strict=True))
        q = {cell: [v[cell] + gain for gain in row] for cell, row in gains.items()}
        worth = [number for row in q.values() for number in row] + list(v.values())
        limits = min(worth), max(worth)
        largest = max(abs(number) for row in gains.values() for number in row) or 1.0
        around = -largest, largest
        bars = (
            maps.colour_bar("V, Q", limits),
            maps.colour_bar("advantage", around, plots.DIVERGING),
        )
        title, best = "advantage of each move", "Q of each move, the best dotted"
        pictures = (
            maps.value_map("V of each cell", self.grid, v, limits, self.grid.goal),
            maps.move_map(best, self.grid, self.moves, q, limits),
            maps.move_map(title, self.grid, self.moves, gains, around, plots.DIVERGING),
        )
        return parts.gallery(bars) + parts.gallery(pictures)

    def episode(
        self,
        trajectory: Trajectory,
        states: Sequence[State] = (),
        values: Sequence[float] = (),
    ) -> Markup:
        """One way from cell to cell, over their values."""
        begun = self._cells([info.get("state") or {} for info in trajectory.infos[:-1]])
        if not begun:
            return Markup("")
        paths = [info.get("positions", []) for info in trajectory.infos[1:]]
        way = [begun[0], *(position for path in paths for position in path)]
        return maps.replay(self.grid, way, dict(zip(self._cells(states), values, strict=False)))

    def _cells(self, states: Sequence[State]) -> list[Cell]:
        """The cells of states; none at all if one of them is no state of this world."""
        cells = list(map(self.cell, states))
        return [] if None in cells else cells
