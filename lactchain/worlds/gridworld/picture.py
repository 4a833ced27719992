"""The grid world in reports: maps for each goal and orientation, and where each chain led."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lactchain.environments.pictures import Picture
from lactchain.environments.views import State
from lactchain.inspection import maps, plots
from lactchain.inspection.maps import Grid
from lactchain.inspection.markup import Markup, parts
from lactchain.types import Trajectory
from lactchain.worlds.gridworld.tables import ORIENTATIONS, STATE_FIELDS

MAX_GOALS = 3


@dataclass(frozen=True)
class GridWorldPicture(Picture):
    """Pictures on one grid."""

    grid: Grid

    def values(
        self, states: Sequence[State], critic: Sequence[float], exact: Sequence[float] | None
    ) -> Markup:
        """Some of the goals, the first one unfolded."""
        if not all(map(_is_state, states)):
            return Markup("")
        return Markup("").join(
            parts.details(f"goal at {goal}", self._goal(states, critic, exact, goal), n == 0)
            for n, goal in enumerate(_some_goals(states))
        )

    def episode(
        self,
        trajectory: Trajectory,
        states: Sequence[State] = (),
        values: Sequence[float] = (),
    ) -> Markup:
        """Chain by chain."""
        begun = [info.get("state") for info in trajectory.infos[:-1]]
        if not begun or not all(map(_is_state, begun)):
            return Markup("")
        starts = [(state["x"], state["y"], state["orientation"]) for state in begun]
        paths = [info.get("positions", []) for info in trajectory.infos[1:]]
        goal = begun[0]["goal_x"], begun[0]["goal_y"]
        return maps.rollout(self.grid, starts, paths, goal)

    def _goal(
        self,
        states: Sequence[State],
        critic: Sequence[float],
        exact: Sequence[float] | None,
        goal: tuple[int, int],
    ) -> Markup:
        """Rows: critic, exact, error; columns: orientations."""
        both = [*critic, *(exact or ())]
        limits = min(both), max(both)
        bars = [maps.colour_bar("value", limits)]
        rows = [self._row("critic", states, critic, goal, limits)]
        if exact is not None:
            errors = np.subtract(critic, exact).tolist()
            largest = max(map(abs, errors)) or 1.0
            around = -largest, largest
            bars.append(maps.colour_bar("error = critic − exact", around, plots.DIVERGING))
            rows += [
                self._row("exact", states, exact, goal, limits),
                self._row("error", states, errors, goal, around, plots.DIVERGING),
            ]
        return parts.card(parts.gallery(bars), *rows)

    def _row(
        self,
        name: str,
        states: Sequence[State],
        values: Sequence[float],
        goal: tuple[int, int],
        limits: tuple[float, float],
        palette: Sequence[plots.Shade] = plots.SEQUENTIAL,
    ) -> Markup:
        """One map for each orientation."""
        values_at: list[dict[tuple[int, int], float]] = [{} for _ in ORIENTATIONS]
        for state, value in zip(states, values, strict=True):
            if (state["goal_x"], state["goal_y"]) == goal:
                values_at[state["orientation"]][state["x"], state["y"]] = value
        return parts.gallery(
            [
                maps.value_map(f"{name}, facing {heading}", self.grid, cells, limits, goal, palette)
                for heading, cells in zip(ORIENTATIONS, values_at, strict=True)
            ]
        )


def _is_state(state: Mapping[str, Any] | None) -> bool:
    return state is not None and state.keys() >= {*STATE_FIELDS}


def _some_goals(states: Sequence[State]) -> list[tuple[int, int]]:
    """A few of the goals, evenly spread."""
    goals = sorted({(state["goal_x"], state["goal_y"]) for state in states})
    return [goals[place] for place in plots.spread(len(goals), MAX_GOALS)]
