"""Gymnasium's toy_text in words: FrozenLake, CliffWalking and Taxi, whose classes are not ours."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.envs.toy_text.taxi import TaxiEnv

from lactchain.environments.exact import TabularModel, model_of_transitions
from lactchain.environments.views import State, TextView, shipped_view

_PLACES = ("red (0, 0)", "green (4, 0)", "yellow (0, 4)", "blue (3, 4)")


@shipped_view.register
def frozen_lake_view(world: FrozenLakeEnv) -> TextView:
    """FrozenLake in words.

    Fields: x, y, goal_x, goal_y, map (rows of S start, F ice, H hole, G goal).
    """
    goal_y, goal_x = np.argwhere(world.desc == b"G")[0].tolist()
    rows = "\n".join(row.tobytes().decode() for row in world.desc)
    return TextView(
        action_names=("left", "down", "right", "up"),
        template="A frozen lake; S, F are safe, H is a hole, G the goal:\n{map}\n"
        "You are at ({x}, {y}), the goal is at ({goal_x}, {goal_y}).{feedback}",
        describe=partial(_cell, world.ncol, {"goal_x": goal_x, "goal_y": goal_y, "map": rows}),
        get_state=_state,
        set_state=_reset_into,
        states=_states,
        model=_lake_model,
        position=partial(_position, world.ncol),
        success=_on_the_goal,
    )


@shipped_view.register
def cliff_walking_view(world: CliffWalkingEnv) -> TextView:
    """CliffWalking in words. Fields: x, y, goal_x, goal_y."""
    height, width = world.shape
    return TextView(
        action_names=("up", "right", "down", "left"),
        template=f"A {width}x{height} grid with a cliff along the lower edge, between its corners."
        "\nYou are at ({x}, {y}), the goal is at ({goal_x}, {goal_y}).{feedback}",
        describe=partial(_cell, width, {"goal_x": width - 1, "goal_y": height - 1}),
        get_state=_state,
        set_state=_reset_into,
        states=_states,
        model=_model,
        position=partial(_position, width),
    )


@shipped_view.register
def taxi_view(world: TaxiEnv) -> TextView:
    """Taxi in words.

    Fields: x, y, passenger (red, green, yellow, blue, or in the taxi), destination. A passenger who
    may want to go elsewhere on the way (`fickle_passenger`) is not in Gymnasium's table: such a
    world has no exact model.
    """
    fickle = world.fickle_passenger
    return TextView(
        action_names=("south", "north", "east", "west", "pick up", "drop off"),
        template="The taxi is at ({x}, {y}). The passenger {passenger} and wants to go to"
        " {destination}.{feedback}",
        describe=_ride,
        get_state=_state,
        set_state=_reset_into,
        states=_states,
        model=None if fickle else _model,
        unmodelled="the table of Taxi does not hold fickle_passenger; set it to false"
        if fickle
        else "",
        position=_taxi_position,
    )


def _cell(
    width: int, said: Mapping[str, object], env: gym.Env, observation: int, info: Mapping[str, Any]
) -> dict[str, object]:
    y, x = divmod(observation, width)
    return {"x": x, "y": y, **said}


def _ride(env: gym.Env, observation: int, info: Mapping[str, Any]) -> dict[str, object]:
    y, x, passenger, destination = env.unwrapped.decode(observation)
    return {
        "x": x,
        "y": y,
        "passenger": f"waits at {_PLACES[passenger]}" if passenger < 4 else "is in the taxi",
        "destination": _PLACES[destination],
    }


def _position(width: int, env: gym.Env) -> list[int]:
    return [int(part) for part in divmod(env.unwrapped.s, width)][::-1]


def _taxi_position(env: gym.Env) -> list[int]:
    return list(env.unwrapped.decode(env.unwrapped.s))[1::-1]


def _on_the_goal(env: gym.Env) -> bool:
    return env.unwrapped.desc.flat[env.unwrapped.s] == b"G"


def _state(env: gym.Env) -> State:
    return {"state": int(env.unwrapped.s)}


def _states(env: gym.Env) -> list[State]:
    return _model(env).non_terminal_states


def _reset_into(env: gym.Env, state: State) -> tuple[int, dict[str, Any]]:
    """Toy_text environments keep their state in `s`."""
    number = state["state"]
    if number not in env.observation_space:
        raise ValueError(f"state: expected a state in {env.observation_space}, got {state}")
    _, info = env.reset()
    env.unwrapped.s = number
    return number, info


def _model(env: gym.Env, good: np.ndarray | None = None) -> TabularModel:
    """Gymnasium's table `P`; `good` says which states are good ones to end in."""
    starts = np.flatnonzero(env.unwrapped.initial_state_distrib).tolist()
    return model_of_transitions(env.unwrapped.P, starts, good)


def _lake_model(env: gym.Env) -> TabularModel:
    return _model(env, env.unwrapped.desc.ravel() == b"G")
