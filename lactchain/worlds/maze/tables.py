"""The maze of LMRL-Gym (Abdulhai et al. 2023) as arrays: four moves, walls, and a goal to walk to.

The environment, its text view and `exact.py` all read them, so they cannot disagree. A *state* is
the number of a free cell, counted row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lactchain.environments.exact import TabularModel, shortest_paths
from lactchain.environments.rewards import tabulate
from lactchain.types import Reward

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""(rows, columns) of the actions: up, down, left, right."""

LAYOUTS: dict[str, tuple[tuple[str, ...], tuple[int, int]]] = {
    "double_t": (
        (
            "1111111111111",
            "1000001000001",
            "1110111110111",
            "1110111110111",
            "1110111110111",
            "1110000000111",
            "1111110111111",
            "1111110111111",
            "1111110111111",
            "1111111111111",
        ),
        (8, 6),
    ),
    "u": (("11111", "10001", "10101", "10101", "11111"), (3, 3)),
    "rooms": (
        (
            "11111111111111111",
            "10000001000000001",
            "10111101011111101",
            "10100101010000101",
            "10101101010110101",
            "10100000000100101",
            "10111011110111101",
            "10001010010000001",
            "11101010011111011",
            "10001000010001001",
            "10111111010100001",
            "10000000010111111",
            "10111111000000001",
            "10000001011111101",
            "11111111111111111",
        ),
        (7, 8),
    ),
}
"""The mazes that are shipped: rows of 1 (wall) and 0 (free), and the goal (row, column)."""


class MazeTables:
    """The dynamics of one maze as arrays, for S states and 4 actions.

    Arguments are those of `Maze`.

    Attributes:
        cells: (S, 2), row and column of each state.
        next_state: (S, 4), the state after each action.
        bumped: (S, 4), whether a wall stops the action.
        terminal: (S,), whether the cell is the goal.
        rewards: (S, 4), 0 for reaching the goal, else −1; or those of `reward`.
        start_states: the states that an episode may start in, ascending.
        model: the same, as `exact.py` has it.

    Raises:
        ValueError: an argument is not of its kind, or the goal cannot be reached from a start.
    """

    def __init__(
        self,
        layout: str | Sequence[str] = "double_t",
        goal: Sequence[int] | None = None,
        start: Sequence[int] | None = None,
        reward: Reward | None = None,
    ) -> None:
        rows, goal = _rows(layout), _goal(layout, goal)
        self.free = np.array([[mark == "0" for mark in row] for row in rows])
        self.cells = np.argwhere(self.free)
        self._number = {tuple(cell): n for n, cell in enumerate(self.cells.tolist())}
        self.goal = self._free_cell("goal", goal)
        self.terminal = (self.cells == self.goal).all(axis=1)
        self.next_state, self.bumped = self._moves()
        self.rewards = np.where(self.terminal[self.next_state], 0.0, -1.0)
        if reward is not None:
            self.rewards = tabulate(reward, self.cells, self.next_state)
        self.model = self._model()
        self.start_states = self._starts(start)

    def state_number(self, state: Mapping[str, int]) -> int:
        """The number of a state given as `{row, column}`.

        Raises:
            ValueError: it is no free cell of this maze.
        """
        try:
            return self._number[state["row"], state["column"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"state: expected row, column of a free cell, got {state}") from error

    def open_state(self, state: Mapping[str, int]) -> int:
        """The number of a state that an episode can be begun in.

        Raises:
            ValueError: it is no free cell of this maze, or the goal.
        """
        number = self.state_number(state)
        if self.terminal[number]:
            raise ValueError(f"state: expected another cell than the goal, got {state}")
        return number

    def state_fields(self, state: int) -> dict[str, int]:
        """The inverse of `state_number`; JSON can hold it."""
        row, column = self.cells[state].tolist()
        return {"row": row, "column": column}

    def _free_cell(self, name: str, value: Sequence[int]) -> tuple[int, int]:
        try:
            row, column = self.cells[self._number[tuple(value)]].tolist()
        except (KeyError, TypeError) as error:
            raise ValueError(f"{name}: expected row, column of a free cell, got {value}") from error
        return row, column

    def _moves(self) -> tuple[np.ndarray, np.ndarray]:
        """The one place where the rules of motion are written: next state and bump (S, 4)."""
        state_at = np.full(np.add(self.free.shape, 2), -1)  # a border saves the range checks
        row, column = self.cells.T + 1
        down, right = np.array(MOVES).T
        state_at[row, column] = np.arange(len(self.cells))
        target = state_at[row[:, None] + down, column[:, None] + right]
        here = np.arange(len(self.cells))[:, None]
        return np.where(target < 0, here, target), target < 0

    def _model(self) -> TabularModel:
        ended, here = self.terminal[:, None], np.arange(len(self.cells))[:, None]
        reward = np.where(ended, 0.0, self.rewards)[:, :, None]
        return TabularModel(
            next_state=np.where(ended, here, self.next_state)[:, :, None],
            probability=np.ones_like(reward),
            reward=reward,
            terminal=self.terminal,
            goal=self.terminal,
            states=tuple(map(self.state_fields, range(len(self.cells)))),
        )

    def _starts(self, start: Sequence[int] | None) -> np.ndarray:
        states = self.model.non_terminal
        if start is not None:
            cell = self._free_cell("start", start)
            states = states[states == self._number[cell]]
        if len(states) == 0:
            raise ValueError("start: expected a free cell other than the goal, and there is none")
        distances = shortest_paths(self.model)[self.model.row_of_state[states]]
        if np.isinf(distances).any():
            apart = tuple(self.cells[states[np.isinf(distances)][0]].tolist())
            raise ValueError(
                f"layout: expected a way from every start to the goal {self.goal}, but there is"
                f" none from {apart}"
            )
        return states


def _rows(layout: str | Sequence[str]) -> Sequence[str]:
    """The rows of a layout, all of one length."""
    if isinstance(layout, str):
        if layout not in LAYOUTS:
            raise ValueError(
                f"layout: expected one of {sorted(LAYOUTS)}, or rows of 0 and 1, got {layout!r}"
            )
        return LAYOUTS[layout][0]
    if not isinstance(layout, Sequence) or not layout:
        raise ValueError(f"layout: expected rows of 0 and 1, got {layout}")
    for number, row in enumerate(layout):
        if not isinstance(row, str) or set(row) - {"0", "1"} or len(row) != len(layout[0]):
            raise ValueError(
                f"layout: row {number}: expected {len(layout[0])} characters 0 or 1 in quotes, got"
                f" {row!r}"
            )
    return layout


def _goal(layout: str | Sequence[str], goal: Sequence[int] | None) -> Sequence[int]:
    if goal is not None:
        return goal
    if isinstance(layout, str):
        return LAYOUTS[layout][1]
    raise ValueError("goal: expected row, column for a layout of your own, got none")
