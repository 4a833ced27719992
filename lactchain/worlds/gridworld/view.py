"""The grid world in words and pictures."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from lactchain.environments.views import State, TextView
from lactchain.inspection.pictures import Mark, Picture, Scene
from lactchain.worlds.cells import cell_view
from lactchain.worlds.gridworld.env import GridWorld
from lactchain.worlds.gridworld.tables import ORIENTATIONS


def gridworld_view(world: GridWorld) -> TextView:
    """`GridWorld` in words.

    Fields: x, y, orientation (up, right, down, left), goal_x, goal_y, goal_right and goal_down
    (where the goal is seen from the agent, in cells, negative to the left and upwards), goal_across
    and goal_along (the same in words: 2 right, 1 left, 0 down), size (such as 4x4), info (the
    description of the world).
    """
    tables = world.tables
    walls = tuple(Mark(x, y, "wall") for x, y in sorted(tables.walls))
    return cell_view(
        action_names=tables.action_names,
        template="{info}\nYou are at ({x}, {y}), facing {orientation}.{feedback}",
        # The goal as the agent sees it: a tiny model would spend its training on the subtraction.
        brief="{x} {y} {orientation} {goal_right} {goal_down}",
        relative="The goal is {goal_across} and {goal_along}. You face {orientation}.{feedback}",
        describe=_describe,
        position=_position,
        bump_feedback=" You bumped into the edge of the map or a wall.",
        picture=Picture(tables.width, tables.height, _scene, walls),
    )


def _describe(env: gym.Env, observation: np.ndarray, info: Mapping[str, Any]) -> dict[str, object]:
    tables = env.unwrapped.tables
    fields = tables.state_fields(env.unwrapped.state)
    fields["orientation"] = ORIENTATIONS[fields["orientation"]]
    right = fields["goal_right"] = fields["goal_x"] - fields["x"]
    down = fields["goal_down"] = fields["goal_y"] - fields["y"]
    fields["goal_across"] = f"{abs(right)} {'left' if right < 0 else 'right'}"
    fields["goal_along"] = f"{abs(down)} {'up' if down < 0 else 'down'}"
    return fields | {"size": f"{tables.width}x{tables.height}", "info": info["description"]}


def _position(env: gym.Env) -> list[int]:
    return env.unwrapped.tables.observations[env.unwrapped.state, :3].tolist()


def _scene(state: State) -> Scene:
    goal = state["goal_x"], state["goal_y"]
    agent = state["x"], state["y"], state["orientation"]
    return Scene(agent, (Mark(*goal, "goal"),), f"goal at {goal}")
