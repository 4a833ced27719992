"""Gymnasium's toy_text in words: FrozenLake, CliffWalking and Taxi, whose classes are not ours."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.envs.toy_text.taxi import TaxiEnv

from lactchain.environments.exact import TabularModel
from lactchain.environments.views import State, TextView, every_ending, fresh, shipped_view
from lactchain.inspection.pictures import Mark, Picture, Scene

_PLACES = ("red (0, 0)", "green (4, 0)", "yellow (0, 4)", "blue (3, 4)")
_COLOURS = ("red", "green", "yellow", "blue", "taxi")


def register() -> None:
    """Gives Gymnasium's classes, which have their ids already, their views."""
    for view in (frozen_lake_view, cliff_walking_view, taxi_view):
        shipped_view.register(view)


def frozen_lake_view(world: FrozenLakeEnv) -> TextView:
    """FrozenLake in words.

    Fields: x, y, goal_x, goal_y, map (rows of S start, F ice, H hole, G goal).
    """
    goal_y, goal_x = np.argwhere(world.desc == b"G")[0].tolist()
    rows = "\n".join(row.tobytes().decode() for row in world.desc)
    return _view(
        world,
        action_names=("left", "down", "right", "up"),
        template="A frozen lake; S, F are safe, H is a hole, G the goal:\n{map}\n"
        "You are at ({x}, {y}), the goal is at ({goal_x}, {goal_y}).{feedback}",
        brief="{x} {y}",
        describe=partial(_cell, world.ncol, {"goal_x": goal_x, "goal_y": goal_y, "map": rows}),
        model=partial(_model, good=world.desc.ravel() == b"G"),
        position=fresh(partial(_position, world.ncol)),
        success=_on_the_goal,
        picture=_board(world.desc.shape[::-1], _letters(world.desc)),
    )


def cliff_walking_view(world: CliffWalkingEnv) -> TextView:
    """CliffWalking in words. Fields: x, y, goal_x, goal_y."""
    height, width = world.shape
    return _view(
        world,
        action_names=("up", "right", "down", "left"),
        template=f"A {width}x{height} grid with a cliff along the lower edge, between its corners."
        "\nYou are at ({x}, {y}), the goal is at ({goal_x}, {goal_y}).{feedback}",
        brief="{x} {y}",
        describe=partial(_cell, width, {"goal_x": width - 1, "goal_y": height - 1}),
        position=fresh(partial(_position, width)),
        success=every_ending,
        picture=_board(
            (width, height),
            [Mark(x, height - 1, "danger") for x in range(1, width - 1)]
            + [Mark(width - 1, height - 1, "goal")],
        ),
    )


def taxi_view(world: TaxiEnv) -> TextView:
    """Taxi in words.

    Fields: x, y, passenger and destination in words, from_ and to (red, green, yellow, blue, and
    from_ also taxi). A passenger who may want to go elsewhere on the way (`fickle_passenger`) is
    not in Gymnasium's table: such a world has no exact model.
    """
    return _view(
        world,
        action_names=("south", "north", "east", "west", "pick up", "drop off"),
        template="The taxi is at ({x}, {y}). The passenger {passenger} and wants to go to"
        " {destination}.{feedback}",
        brief="{x} {y} {from_} {to}",
        describe=_ride,
        position=_taxi_position,
        success=every_ending,
        model=None if world.fickle_passenger else _model,
        picture=_streets(world),
    )


def _view(world: gym.Env, **fields: Any) -> TextView:
    """What the views share: the state is the number `s`, the dynamics are the table `P`."""
    set_state = partial(_reset_into, _endings(world))
    defaults = {"get_state": _state, "set_state": set_state, "states": _states, "model": _model}
    return TextView(**defaults | fields)


def _cell(
    width: int, rest: Mapping[str, object], env: gym.Env, observation: int, info: Mapping[str, Any]
) -> dict[str, object]:
    y, x = divmod(observation, width)
    return {"x": x, "y": y, **rest}


def _ride(env: gym.Env, observation: int, info: Mapping[str, Any]) -> dict[str, object]:
    y, x, passenger, destination = env.unwrapped.decode(observation)
    return {
        "x": x,
        "y": y,
        "passenger": f"waits at {_PLACES[passenger]}" if passenger < 4 else "is in the taxi",
        "destination": _PLACES[destination],
        "from_": _COLOURS[passenger],
        "to": _COLOURS[destination],
    }


def _board(shape: tuple[int, int], background: list[Mark]) -> Picture:
    width, height = map(int, shape)
    return Picture(width, height, partial(_scene, width), tuple(background))


def _scene(width: int, state: State) -> Scene:
    y, x = divmod(state["state"], width)
    return Scene((x, y))


def _letters(rows: np.ndarray) -> list[Mark]:
    """The start, the holes and the goal of a lake."""
    kinds = {b"S": ("place", "S"), b"H": ("danger", ""), b"G": ("goal", "")}
    cells = np.ndenumerate(rows)
    return [Mark(x, y, *kinds[letter]) for (y, x), letter in cells if letter in kinds]


def _streets(world: TaxiEnv) -> Picture:
    """The four places, walls as in the world's own drawing, and who waits where."""
    corners = [(int(x), int(y)) for y, x in world.locs]
    names = [colour[0].upper() for colour in _COLOURS]
    places = [Mark(*corner, "place", name) for corner, name in zip(corners, names, strict=False)]
    rows = world.desc[1:-1, 1:-1]
    walls = [Mark(x // 2, y, "fence") for y, x in np.argwhere(rows == b"|").tolist()]
    width, height = rows.shape[1] // 2 + 1, len(rows)
    return Picture(width, height, partial(_traffic, corners), (*places, *walls))


def _traffic(corners: list[tuple[int, int]], state: State) -> Scene:
    y, x, passenger, destination = map(int, np.unravel_index(state["state"], (5, 5, 5, 4)))
    waits = [Mark(*corners[passenger], "item", "☺")] if passenger < len(corners) else []
    ride = f"{_COLOURS[passenger]} → {_COLOURS[destination]}"
    return Scene((x, y), (Mark(*corners[destination], "goal"), *waits), ride)


def _position(width: int, env: gym.Env) -> list[int]:
    return [int(part) for part in divmod(env.unwrapped.s, width)][::-1]


@fresh
def _taxi_position(env: gym.Env) -> list[int]:
    return list(env.unwrapped.decode(env.unwrapped.s))[1::-1]


def _on_the_goal(env: gym.Env) -> bool:
    return env.unwrapped.desc.flat[env.unwrapped.s] == b"G"


@fresh
def _state(env: gym.Env) -> State:
    return {"state": int(env.unwrapped.s)}


def _states(env: gym.Env) -> list[State]:
    return _model(env).non_terminal_states


def _reset_into(ended: set[int], env: gym.Env, state: State) -> tuple[int, dict[str, Any]]:
    number = state["state"]
    if number not in env.observation_space or number in ended:
        known = f"a state in {env.observation_space} in which the episode is not over"
        raise ValueError(f"state: expected {known}, got {state}")
    _, info = env.reset()
    env.unwrapped.s = number
    return number, info


def _endings(env: gym.Env) -> set[int]:
    """The states in which an episode ends."""
    table = env.unwrapped.P
    outcomes = (outcome for row in table.values() for every in row.values() for outcome in every)
    return {int(state) for _, state, _, terminated in outcomes if terminated}


def _model(env: gym.Env, good: np.ndarray | None = None) -> TabularModel:
    """The model of `P[state][action] = [(probability, next state, reward, terminated), ...]`.

    It holds the states that can be reached from a start. `good` says which states are good ones to
    end in; None: all of them.
    """
    table, ended = env.unwrapped.P, _endings(env)
    frontier = np.flatnonzero(env.unwrapped.initial_state_distrib).tolist()
    reached = {*frontier}
    for state in frontier:  # which grows
        outcomes = [] if state in ended else sum(table[state].values(), [])
        after = {int(outcome[1]) for outcome in outcomes} - reached
        frontier += after
        reached |= after
    numbers = {state: number for number, state in enumerate(sorted(reached))}
    num_outcomes = max(len(outcomes) for s in reached for outcomes in table[s].values())
    shape = (len(numbers), env.action_space.n, num_outcomes)
    next_state = np.broadcast_to(np.arange(shape[0])[:, None, None], shape).copy()
    probability, reward = np.zeros(shape), np.zeros(shape)
    probability[:, :, 0] = 1.0
    for state in reached - ended:
        for action, outcomes in table[state].items():
            for k, (p, successor, r, _) in enumerate(outcomes):
                cell = numbers[state], action, k
                next_state[cell], probability[cell], reward[cell] = numbers[successor], p, r
    terminal = np.array([state in ended for state in numbers])
    return TabularModel(
        next_state=next_state,
        probability=probability,
        reward=reward,
        terminal=terminal,
        goal=terminal if good is None else terminal & good[list(numbers)],
        states=tuple({"state": state} for state in numbers),
    )
