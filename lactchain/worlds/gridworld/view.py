"""The grid world in words and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from lactchain.environments.pictures import Picture
from lactchain.environments.views import State, TextView
from lactchain.inspection import maps, plots
from lactchain.inspection.maps import Grid
from lactchain.inspection.markup import Markup, parts
from lactchain.types import Trajectory
from lactchain.worlds.cells import cell_view
from lactchain.worlds.gridworld.env import GridWorld
from lactchain.worlds.gridworld.tables import ORIENTATIONS, GridTables

MAX_GOALS = 3


def gridworld_view(world: GridWorld) -> TextView:
    """`GridWorld` in words.

    Fields: x, y, orientation (up, right, down, left), goal_x, goal_y, goal_right and goal_down
    (where the goal is seen from the agent, in cells, negative to the left and upwards), size (such
    as 4x4), info (the description of the world).
    """
    tables = world.tables
    return cell_view(
        action_names=tables.action_names,
        template="{info}\nYou are at ({x}, {y}), facing {orientation}.{feedback}",
        # The goal as the agent sees it: a tiny model would spend its training on the subtraction.
        brief="{x} {y} {orientation} {goal_right} {goal_down}",
        describe=_describe,
        position=_position,
        bump_feedback=" You bumped into the edge of the map or a wall.",
        picture=GridWorldPicture(Grid(tables.width, tables.height, tables.walls)),
    )


def _describe(env: gym.Env, observation: np.ndarray, info: Mapping[str, Any]) -> dict[str, object]:
    tables = _tables(env)
    fields = tables.state_fields(env.unwrapped.state)
    fields["orientation"] = ORIENTATIONS[fields["orientation"]]
    fields["goal_right"] = fields["goal_x"] - fields["x"]
    fields["goal_down"] = fields["goal_y"] - fields["y"]
    return fields | {"size": f"{tables.width}x{tables.height}", "info": info["description"]}


def _tables(env: gym.Env) -> GridTables:
    return env.unwrapped.tables


def _position(env: gym.Env) -> list[int]:
    return _tables(env).observations[env.unwrapped.state, :3].tolist()


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
    return state is not None and state.keys() >= {*GridTables.fields}


def _some_goals(states: Sequence[State]) -> list[tuple[int, int]]:
    """A few of the goals, evenly spread."""
    goals = sorted({(state["goal_x"], state["goal_y"]) for state in states})
    return [goals[place] for place in plots.evenly_spaced(len(goals), MAX_GOALS)]
