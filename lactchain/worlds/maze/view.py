"""The maze in LMRL-Gym's words, and what else may be asked of it."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from lactchain.environments.views import State, TextView
from lactchain.inspection.pictures import Mark, Picture, Scene
from lactchain.worlds.cells import cell_view
from lactchain.worlds.maze.env import Maze
from lactchain.worlds.maze.policies import LegalMoves
from lactchain.worlds.maze.tables import MazeTables
from lactchain.worlds.maze.words import ACTION_NAMES, wall_letters, wall_sentence

PARTIAL_TEMPLATE = "{walls}\n"
TERSE_TEMPLATE = "{sides}\n"


def maze_view(world: Maze) -> TextView:
    """`Maze` in LMRL-Gym's words, fully observed.

    `PARTIAL_TEMPLATE` shows the walls alone, `TERSE_TEMPLATE` in letters.

    Fields: row, column, goal_row, goal_column (their digits apart, as LMRL-Gym writes them), walls
    (a sentence), sides (the walls as letters, `R L A B`).
    """
    return cell_view(
        action_names=ACTION_NAMES,
        template="The goal is at position {goal_row}, {goal_column}."
        " Your current position is at position {row}, {column}. {walls}\n",
        describe=_describe,
        position=_position,
        success=_succeeded,
        step_takes_text=True,
        invalid_wipes_history=True,
        ending=_ending,
        max_chains=world.max_moves + 1,
        policies={"legal": LegalMoves},
        picture=_picture(world.tables),
    )


def _describe(env: gym.Env, observation: np.ndarray, info: Mapping[str, Any]) -> dict[str, str]:
    tables = env.unwrapped.tables
    row, column = map(_spelled, observation.tolist())
    goal_row, goal_column = map(_spelled, tables.goal)
    bumped = tables.bumped[env.unwrapped.state]
    walls = {"walls": wall_sentence(bumped), "sides": wall_letters(bumped)}
    place = {"row": row, "column": column} | walls
    return place | {"goal_row": goal_row, "goal_column": goal_column}


def _spelled(number: int) -> str:
    """Digit by digit: 10 reads `1 0`."""
    return " ".join(str(number))


def _position(env: gym.Env) -> list[int]:
    return env.unwrapped.tables.observations[env.unwrapped.state, ::-1].tolist()


def _succeeded(env: gym.Env) -> bool:
    return env.unwrapped.succeeded


def _ending(env: gym.Env) -> str:
    return "Success\n" if env.unwrapped.succeeded else "Failure\n"


def _picture(tables: MazeTables) -> Picture:
    height, width = tables.free.shape
    walls = (Mark(x, y, "wall") for y, x in np.argwhere(~tables.free).tolist())
    row, column = map(int, tables.goal)
    background = (*walls, Mark(column, row, "goal"))
    return Picture(width, height, _scene, background, fog_unless="row")


def _scene(state: State) -> Scene:
    return Scene((state["column"], state["row"]))
