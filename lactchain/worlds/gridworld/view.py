"""The grid world in words, and what else may be asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from lactchain.environments.views import TextView
from lactchain.inspection.maps import Grid
from lactchain.worlds.cells import cell_view
from lactchain.worlds.gridworld.env import GridWorld
from lactchain.worlds.gridworld.picture import GridWorldPicture
from lactchain.worlds.gridworld.tables import ORIENTATIONS, GridTables


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
