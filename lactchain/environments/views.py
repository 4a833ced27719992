"""How environments are put into words: `TextView`, and the views that are shipped.

GridWorld, FrozenLake, CliffWalking and Taxi have one; `lactchain.environments.language` shows how
to write another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.envs.toy_text.taxi import TaxiEnv

from lactchain.environments.exact import TabularModel, tabular_model
from lactchain.environments.gridworld import ACTION_NAMES, ORIENTATIONS, STATE_FIELDS, GridWorld
from lactchain.environments.maze import ACTION_NAMES as MAZE_ACTION_NAMES
from lactchain.environments.maze import Maze
from lactchain.environments.wordle import ALL_SQUARES, Wordle, clues
from lactchain.errors import ConfigError

State = Mapping[str, Any]
StepResult = tuple[Any, float, bool, bool, dict[str, Any]]


@dataclass(frozen=True)
class TextView:
    """How an environment is put into words.

    Attributes:
        action_names: the words of the actions, in the order of their numbers.
        template: text block of a state, with the fields of `describe` in braces, and `{feedback}`:
            what went wrong with the last answer, with a leading space, empty most of the time.
        describe: `describe(env, observation, info)`, the fields of the template.
        get_state: the state that the environment is in, such that JSON can hold it.
        set_state: `set_state(env, state)` resets into a state; returns what `reset` returns.
        states: all states in which an episode is not over, in the order of the exact model.
        model: the exact dynamics, for small worlds: without them nobody knows shortest paths and
            true values, so figures that need these are left out.
        position: where the agent is, x and y first.
        success: whether an episode that has terminated ended well.
        bump_feedback: said when some action of the chain left the state as it was.
        invalid_step: `invalid_step(env, text)`, the world's own rule for text that is no chain of
            actions; returns what `step` returns. None: nothing is done.
        invalid_wipes_history: whether such a text, and all before it, leave the history.
        ending: what is said instead of all else when the episode has ended, if anything is.
        max_chains: answers after which an episode is truncated, where no other number is given.
        rare_words: text of what observations may hold and random play seldom shows, for tokenizers.
    """

    action_names: tuple[str, ...]
    template: str
    describe: Callable[[gym.Env, Any, Mapping[str, Any]], Mapping[str, object]]
    get_state: Callable[[gym.Env], State] | None = None
    set_state: Callable[[gym.Env, State], tuple[Any, dict[str, Any]]] | None = None
    states: Callable[[gym.Env], list[State]] | None = None
    model: Callable[[gym.Env], TabularModel] | None = None
    position: Callable[[gym.Env], list[int]] = lambda env: []
    success: Callable[[gym.Env], bool] = lambda env: True
    bump_feedback: str = " Some action changed nothing."
    invalid_step: Callable[[gym.Env, str], StepResult] | None = None
    invalid_wipes_history: bool = False
    ending: Callable[[gym.Env], str | None] = lambda env: None
    max_chains: int = 16
    rare_words: str = ""


def view_of(env: gym.Env) -> TextView:
    """The view that is shipped for an environment; one that speaks text is taken at its word.

    Raises:
        ConfigError: there is none.
    """
    for world, view in _VIEWS.items():
        if isinstance(env.unwrapped, world):
            return view(env.unwrapped)
    if isinstance(env.observation_space, spaces.Text):
        return TextView((), "{observation}{feedback}", _describe_text)
    raise ConfigError(
        f"{env}: no text view is shipped for this environment; write a TextView and register a "
        "LanguageEnv with it (see lactchain.environments.language)"
    )


def gridworld_view(world: GridWorld) -> TextView:
    """GridWorld in words.

    Fields: x, y, orientation (up, right, down, left), goal_x, goal_y, goal_right and goal_down
    (where the goal is seen from the agent, in cells, negative to the left and upwards), size (such
    as 4x4), info (the description of the world).
    """
    return TextView(
        action_names=ACTION_NAMES[: world.action_space.n],
        template="{info}\nYou are at ({x}, {y}), facing {orientation}.{feedback}",
        describe=_describe_gridworld,
        get_state=lambda env: env.unwrapped.tables.state_fields(env.unwrapped.state),
        set_state=lambda env, state: env.reset(options={"state": state}),
        states=_model_states,
        model=tabular_model,
        position=lambda env: env.unwrapped.tables.observations[env.unwrapped.state, :3].tolist(),
        bump_feedback=" You bumped into the edge of the map or a wall.",
    )


def maze_view(world: Maze) -> TextView:
    """Maze in LMRL-Gym's words, fully observed.

    `maze.PARTIAL_TEMPLATE` shows the walls alone, `maze.TERSE_TEMPLATE` in letters.

    Fields: row, column, goal_row, goal_column (their digits apart, as LMRL-Gym writes them), walls
    (a sentence), sides (the walls as letters, `R L A B`).
    """
    goal_row, goal_column = map(_spelled, world.tables.goal)

    def describe(env: gym.Env, observation: np.ndarray, info: Mapping[str, Any]) -> dict[str, str]:
        row, column = map(_spelled, observation.tolist())
        tables, state = world.tables, env.unwrapped.state
        walls = {"walls": tables.walls[state], "sides": tables.sides[state]}
        place = {"row": row, "column": column} | walls
        return place | {"goal_row": goal_row, "goal_column": goal_column}

    return TextView(
        action_names=MAZE_ACTION_NAMES,
        template="The goal is at position {goal_row}, {goal_column}."
        " Your current position is at position {row}, {column}. {walls}\n",
        describe=describe,
        get_state=lambda env: env.unwrapped.tables.state_fields(env.unwrapped.state),
        set_state=lambda env, state: env.reset(options={"state": state}),
        states=lambda env: env.unwrapped.tables.model.non_terminal_states,
        model=lambda env: env.unwrapped.tables.model,
        position=lambda env: env.unwrapped.tables.cells[env.unwrapped.state, ::-1].tolist(),
        success=lambda env: env.unwrapped.succeeded,
        invalid_step=lambda env, text: env.unwrapped.stumble(),
        invalid_wipes_history=True,
        ending=lambda env: "Success\n" if env.unwrapped.succeeded else "Failure\n",
        max_chains=world.max_moves + 1,
    )


def wordle_view(world: Wordle) -> TextView:
    """Wordle in LMRL-Gym's words, the whole game in every observation.

    Fields: board (the game so far), tries_left, and what `wordle.clues` says of the letters (known,
    elsewhere, absent): `wordle.CLUES_TEMPLATE` shows these alone. The only state that it lists is
    the empty game.
    """
    words = world.tables.words

    def describe(
        env: gym.Env, observation: np.ndarray, info: Mapping[str, Any]
    ) -> dict[str, object]:
        tries_left = world.num_tries - len(env.unwrapped.guesses)
        said = {"board": env.unwrapped.render(), "tries_left": tries_left}
        return said | clues(env.unwrapped.knowledge)

    return TextView(
        action_names=tuple(map(" ".join, words)) if world.letters_apart else words,
        template="{board}",
        describe=describe,
        get_state=lambda env: env.unwrapped.state,
        set_state=lambda env, state: env.reset(options={"state": state}),
        states=lambda env: [{"guesses": [], "feedback": []}],
        success=lambda env: env.unwrapped.solved,
        invalid_step=lambda env, text: env.unwrapped.guess(text),
        max_chains=world.num_tries,
        rare_words=f" {ALL_SQUARES} {ALL_SQUARES.upper()}",
    )


def frozen_lake_view(world: FrozenLakeEnv) -> TextView:
    """FrozenLake in words.

    Fields: x, y, goal_x, goal_y, map (rows of S start, F ice, H hole, G goal).
    """
    goal_y, goal_x = np.argwhere(world.desc == b"G")[0].tolist()
    rows = "\n".join(row.tobytes().decode() for row in world.desc)

    def describe(env: gym.Env, observation: int, info: Mapping[str, Any]) -> dict[str, object]:
        y, x = divmod(observation, world.ncol)
        return {"x": x, "y": y, "goal_x": goal_x, "goal_y": goal_y, "map": rows}

    return TextView(
        action_names=("left", "down", "right", "up"),
        template="A frozen lake; S, F are safe, H is a hole, G the goal:\n{map}\n"
        "You are at ({x}, {y}), the goal is at ({goal_x}, {goal_y}).{feedback}",
        describe=describe,
        get_state=_get_toy_text_state,
        set_state=_set_toy_text_state,
        states=_model_states,
        model=tabular_model,
        position=lambda env: list(divmod(env.unwrapped.s, world.ncol))[::-1],
        success=lambda env: world.desc.flat[env.unwrapped.s] == b"G",
    )


def cliff_walking_view(world: CliffWalkingEnv) -> TextView:
    """CliffWalking in words. Fields: x, y, goal_x, goal_y."""
    height, width = world.shape

    def describe(env: gym.Env, observation: int, info: Mapping[str, Any]) -> dict[str, object]:
        y, x = divmod(observation, width)
        return {"x": x, "y": y, "goal_x": width - 1, "goal_y": height - 1}

    return TextView(
        action_names=("up", "right", "down", "left"),
        template=f"A {width}x{height} grid with a cliff along the lower edge, between its corners."
        "\nYou are at ({x}, {y}), the goal is at ({goal_x}, {goal_y}).{feedback}",
        describe=describe,
        get_state=_get_toy_text_state,
        set_state=_set_toy_text_state,
        states=_model_states,
        model=tabular_model,
        position=lambda env: [int(part) for part in divmod(env.unwrapped.s, width)][::-1],
    )


def taxi_view(world: TaxiEnv) -> TextView:
    """Taxi in words.

    Fields: x, y, passenger (red, green, yellow, blue, or in the taxi), destination.
    """
    places = ("red (0, 0)", "green (4, 0)", "yellow (0, 4)", "blue (3, 4)")

    def describe(env: gym.Env, observation: int, info: Mapping[str, Any]) -> dict[str, object]:
        y, x, passenger, destination = world.decode(observation)
        return {
            "x": x,
            "y": y,
            "passenger": f"waits at {places[passenger]}" if passenger < 4 else "is in the taxi",
            "destination": places[destination],
        }

    return TextView(
        action_names=("south", "north", "east", "west", "pick up", "drop off"),
        template="The taxi is at ({x}, {y}). The passenger {passenger} and wants to go to"
        " {destination}.{feedback}",
        describe=describe,
        get_state=_get_toy_text_state,
        set_state=_set_toy_text_state,
        states=_model_states,
        model=tabular_model,
        position=lambda env: list(world.decode(env.unwrapped.s))[1::-1],
    )


_VIEWS: dict[type, Callable[[Any], TextView]] = {
    GridWorld: gridworld_view,
    Maze: maze_view,
    Wordle: wordle_view,
    FrozenLakeEnv: frozen_lake_view,
    CliffWalkingEnv: cliff_walking_view,
    TaxiEnv: taxi_view,
}


def _spelled(number: int) -> str:
    """Digit by digit: 10 reads `1 0`."""
    return " ".join(str(number))


def _describe_gridworld(
    env: gym.Env, observation: np.ndarray, info: Mapping[str, Any]
) -> dict[str, object]:
    fields = dict(zip(STATE_FIELDS, observation.tolist(), strict=True))
    tables = env.unwrapped.tables
    fields["orientation"] = ORIENTATIONS[fields["orientation"]]
    fields["goal_right"] = fields["goal_x"] - fields["x"]
    fields["goal_down"] = fields["goal_y"] - fields["y"]
    return fields | {"size": f"{tables.width}x{tables.height}", "info": info["description"]}


def _describe_text(env: gym.Env, observation: str, info: Mapping[str, Any]) -> dict[str, object]:
    return {"observation": observation}


def _model_states(env: gym.Env) -> list[State]:
    return tabular_model(env).non_terminal_states


def _get_toy_text_state(env: gym.Env) -> State:
    return {"state": int(env.unwrapped.s)}


def _set_toy_text_state(env: gym.Env, state: State) -> tuple[int, dict[str, Any]]:
    """Resets one of Gymnasium's toy_text environments, which keep their state in `s`."""
    number = state["state"]
    if number not in env.observation_space:
        raise ValueError(f"state: expected a state in {env.observation_space}, got {state}")
    _, info = env.reset()
    env.unwrapped.s = number
    return number, info
