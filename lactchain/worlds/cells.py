"""Worlds of free cells and walls: their dynamics as arrays, and what their views share."""

import json
from collections.abc import Mapping
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, Self
from weakref import WeakValueDictionary

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lactchain import plugins
from lactchain.environments.exact import TabularModel
from lactchain.environments.faults import at_least_one, rewards_of
from lactchain.environments.views import State, TextView, every_ending, fresh, reset_into
from lactchain.types import Reward

UP, RIGHT, DOWN, LEFT = range(4)
STEPS = ((0, -1), (1, 0), (0, 1), (-1, 0))
"""(dx, dy) of up, right, down, left."""
_SHARED: WeakValueDictionary[tuple[type, str], Any] = WeakValueDictionary()
"""The tables of the worlds that are there, by their kinds and arguments."""


class CellTables:
    """The dynamics of a deterministic world as arrays, for S states and A actions.

    The environment, the batch and `exact.py` all read them, so the three cannot disagree. A
    subclass fills them in.

    Attributes:
        fields: what the D numbers of an observation are called; a state is told by them.
        place: what they are the fields of, as an error message has it.
        observations: (S, D), the row that each state is observed as.
        next_state: (S, A), the state after each action.
        rewards: (S, A).
        terminal: (S,), whether the agent stands on the goal.
        start_states: the states that an episode may start in, ascending.
    """

    @classmethod
    def shared(cls, **world: Any) -> Self:
        """The tables of a world, the same ones for all its copies, who only read them."""
        try:
            key = cls, json.dumps(world, sort_keys=True)
        except (TypeError, ValueError, RecursionError):  # it has an object of its own, say a reward
            return cls(**world)
        tables = _SHARED.get(key)
        if tables is None:
            tables = _SHARED[key] = cls(**world)
            for array in vars(tables).values():
                if isinstance(array, np.ndarray):
                    array.flags.writeable = False
        return tables

    @cached_property
    def model(self) -> TabularModel:
        """The same, as `exact.py` has it."""
        ended, here = self.terminal[:, None], np.arange(len(self.terminal))[:, None]
        reward = np.where(ended, 0.0, self.rewards)[:, :, None]
        return TabularModel(
            next_state=np.where(ended, here, self.next_state)[:, :, None],
            probability=np.ones_like(reward),
            reward=reward,
            terminal=self.terminal,
            goal=self.terminal,
            states=tuple(map(self.state_fields, range(len(self.terminal)))),
        )

    @cached_property
    def _numbers(self) -> dict[tuple[int, ...], int]:
        return numbers(self.observations)

    def state_number(self, state: Mapping[str, int]) -> int:
        """The number of a state given by its fields; `ValueError` where there is none."""
        try:
            return self._numbers[tuple(state[field] for field in self.fields)]
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"state: expected {', '.join(self.fields)} of {self.place}, got {state}"
            ) from error

    def open_state(self, state: Mapping[str, int]) -> int:
        """The number of a state that an episode can begin in; `ValueError` for others."""
        number = self.state_number(state)
        if self.terminal[number]:
            raise ValueError(f"state: expected another cell than the goal's, got {state}")
        return number

    def state_fields(self, state: int) -> dict[str, int]:
        """The inverse of `state_number`; JSON can hold it."""
        return dict(zip(self.fields, self.observations[state].tolist(), strict=True))

    @property
    def starting(self) -> list[dict[str, int]]:
        """The states that an episode may start in."""
        return [self.state_fields(state) for state in self.start_states]

    def outcome(self, state: int, action: int) -> tuple[float, bool, int]:
        """The reward of an action in a state, whether it bumps, and the state that follows."""
        after = self.next_state.item(state, action)
        return self.rewards.item(state, action), after == state, after

    def start_in(self, chosen: np.ndarray | bool, walls: str) -> None:
        """Lets episodes start in the chosen states (S,) that are not terminal.

        `walls` is the argument that says where there are some. Raises `ValueError` if no state is
        left, or the goal cannot be reached from one.
        """
        self.start_states = np.flatnonzero(~self.terminal & chosen)
        if len(self.start_states) == 0:
            raise ValueError("start: expected a free cell other than the goal, and there is none")
        solvable, left = self.terminal.copy(), np.flatnonzero(~self.terminal)
        while (one_more := solvable[self.next_state[left]].any(axis=1)).any():
            solvable[left[one_more]] = True
            left = left[~one_more]
        lost = self.start_states[~solvable[self.start_states]]
        if len(lost):
            raise ValueError(
                f"{walls}: expected the goal to be reachable from every start, but there is no way"
                f" from {self.state_fields(lost[0])}"
            )


class CellWorld(gym.Env[np.ndarray, int]):
    """A world that plays its `CellTables`; a subclass makes them, and says how it looks.

    Attributes:
        max_steps: actions after which an episode is truncated.
        state: the number of the state.
        num_steps: actions of the episode so far.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}

    def __init__(self, tables: CellTables, max_steps: int, render_mode: str | None) -> None:
        self.tables, self.render_mode = tables, render_mode
        self.max_steps = at_least_one("max_steps", max_steps)
        self._num_actions = tables.rewards.shape[1]
        self.action_space = spaces.Discrete(self._num_actions)
        self.state, self.num_steps = int(tables.start_states[0]), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode, in a drawn state or in `options["state"]`."""
        super().reset(seed=seed)
        if options and "state" in options:
            self.state = self.tables.open_state(options["state"])
        else:
            self.state = self._drawn_start()
        self.num_steps = 0
        return self._observation(), self._info(bumped=False)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Plays one action."""
        self._check(action)
        reward, bumped, self.state = self.tables.outcome(self.state, action)
        self.num_steps += 1
        terminated = self.tables.terminal.item(self.state)
        truncated = self.num_steps >= self.max_steps and not terminated
        return self._observation(), reward, terminated, truncated, self._info(bumped)

    def render(self) -> str | np.ndarray:
        """The state in pixels, or in characters."""
        if self.render_mode != "rgb_array":
            return self._characters()
        return plugins.required("films", "render_mode").pixels(self)

    def _check(self, action: int) -> None:
        if not 0 <= action < self._num_actions:
            raise ValueError(f"action: expected one of {self.action_space}, got {action!r}")

    def _drawn_start(self) -> int:
        return int(self.np_random.choice(self.tables.start_states))

    def _observation(self) -> np.ndarray:
        return self.tables.observations[self.state].copy()

    def _info(self, bumped: bool) -> dict[str, Any]:
        return {"bumped": bumped}


def numbers(rows: np.ndarray) -> dict[tuple[int, ...], int]:
    """The number of each row of an array (N, D)."""
    return {tuple(row): number for number, row in enumerate(rows.tolist())}


def find(name: str, row: Any, rows: Mapping[tuple[int, ...], int], expected: str) -> int:
    """The number of the row that an argument tells; `ValueError` unless it is as `expected`."""
    try:
        return rows[tuple(row)]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{name}: expected {expected}, got {row}") from error


def neighbours(free: np.ndarray) -> np.ndarray:
    """Numbers (C, 4) of the cells up, right, down and left of each free one; −1 where none is free.

    Args:
        free: (height, width), whether a cell is free. Those that are, C, are counted row by row.
    """
    numbers = np.where(free, free.cumsum().reshape(free.shape) - 1, -1)
    bordered = np.pad(numbers, 1, constant_values=-1)  # a border saves the range checks
    row, column = np.argwhere(free).T + 1
    return np.stack([bordered[row + down, column + right] for right, down in STEPS], axis=1)


def tabulate(scheme: Reward, observations: np.ndarray, next_state: np.ndarray) -> np.ndarray:
    """Rewards (S, A) of all actions, by rows observed (S, D) and the states that follow (S, A)."""
    columns = [
        rewards_of(scheme, observations, np.full(len(after), action), observations[after])
        for action, after in enumerate(next_state.T)
    ]
    return np.stack(columns, axis=1)


def cell_view(place: slice, **fields: Any) -> TextView:
    """The view of a `CellWorld`; `place` are the fields of a state that say where the agent is."""
    in_tables = {"model": "model", "states": "model.non_terminal_states", "starts": "starting"}
    own = {name: attrgetter(f"unwrapped.tables.{path}") for name, path in in_tables.items()}
    own |= {"get_state": _state, "set_state": reset_into}
    own |= {"success": every_ending, "position": fresh(partial(_position, place))}
    return TextView(**own | fields)


@fresh
def _state(env: gym.Env) -> State:
    return env.unwrapped.tables.state_fields(env.unwrapped.state)


def _position(place: slice, env: gym.Env) -> list[int]:
    return env.unwrapped.tables.observations[env.unwrapped.state, place].tolist()
