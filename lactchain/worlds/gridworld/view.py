"""The grid world in words and pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from lactchain.data.evaluations import StateValues
from lactchain.environments.views import State, TextView
from lactchain.inspection import maps, plots
from lactchain.inspection.maps import Grid
from lactchain.inspection.markup import Markup, parts
from lactchain.inspection.pictures import Picture
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
    tables = env.unwrapped.tables
    fields = tables.state_fields(env.unwrapped.state)
    fields["orientation"] = ORIENTATIONS[fields["orientation"]]
    fields["goal_right"] = fields["goal_x"] - fields["x"]
    fields["goal_down"] = fields["goal_y"] - fields["y"]
    return fields | {"size": f"{tables.width}x{tables.height}", "info": info["description"]}


def _position(env: gym.Env) -> list[int]:
    return env.unwrapped.tables.observations[env.unwrapped.state, :3].tolist()


@dataclass(frozen=True)
class GridWorldPicture(Picture):
    """Pictures on one grid."""

    grid: Grid

    def values(self, values: StateValues) -> Markup:
        """Some of the goals, the first one unfolded."""
        if not all(map(_is_state, values.states)):
            return Markup("")
        return Markup("").join(
            parts.details(f"goal at {goal}", self._goal(values, goal), n == 0)
            for n, goal in enumerate(_some_goals(values.states))
        )

    def episode(self, trajectory: Trajectory, behind: Sequence[tuple[State, float]] = ()) -> Markup:
        """Chain by chain."""
        begun = [info.get("state") for info in trajectory.infos[:-1]]
        if not begun or not all(map(_is_state, begun)):
            return Markup("")
        starts = [(state["x"], state["y"], state["orientation"]) for state in begun]
        paths = [info.get("positions", []) for info in trajectory.infos[1:]]
        goal = begun[0]["goal_x"], begun[0]["goal_y"]
        return maps.rollout(self.grid, starts, paths, goal)

    def _goal(self, values: StateValues, goal: maps.Cell) -> Markup:
        """A row of maps for each orientation."""
        panels: dict[str, dict[int, maps.Cell]] = {f", facing {name}": {} for name in ORIENTATIONS}
        for number, state in enumerate(values.states):
            if (state["goal_x"], state["goal_y"]) == goal:
                facing = ORIENTATIONS[state["orientation"]]
                panels[f", facing {facing}"][number] = state["x"], state["y"]
        return maps.value_maps(self.grid, values, panels, goal)


def _is_state(state: Mapping[str, Any] | None) -> bool:
    return state is not None and state.keys() >= {*GridTables.fields}


def _some_goals(states: Sequence[State]) -> list[maps.Cell]:
    """A few of the goals, evenly spread."""
    goals = sorted({(state["goal_x"], state["goal_y"]) for state in states})
    return [goals[place] for place in plots.evenly_spaced(len(goals), MAX_GOALS)]
