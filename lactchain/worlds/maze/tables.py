"""The maze of LMRL-Gym (Abdulhai et al. 2023) as arrays: four moves, walls, and a goal to walk to.

A *state* is the number of a free cell, counted row by row.
"""

from collections.abc import Sequence

import numpy as np

from lactchain.types import Reward
from lactchain.worlds.cells import (
    DOWN,
    LEFT,
    RIGHT,
    UP,
    CellTables,
    check_ways,
    find,
    neighbours,
    numbers,
    tabulate,
)

MOVES = [UP, DOWN, LEFT, RIGHT]
"""Where the actions lead."""

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


class MazeTables(CellTables):
    """The dynamics of one maze, a state for each free cell; the arguments are those of `Maze`.

    Attributes:
        free: (rows, columns), whether a cell is free.
        goal: its row and column.

    Raises:
        ValueError: an argument is not of its kind, or the goal cannot be reached from a start.
    """

    fields, place = ("row", "column"), "a free cell"

    def __init__(
        self,
        layout: str | Sequence[str] = "double_t",
        goal: Sequence[int] | None = None,
        start: Sequence[int] | None = None,
        reward: Reward | None = None,
    ) -> None:
        rows, goal = _rows(layout), _goal(layout, goal)
        self.free = np.array([[mark == "0" for mark in row] for row in rows])
        self.observations = np.argwhere(self.free)
        cells, states = numbers(self.observations), np.arange(len(self.observations))
        expected = "row, column of a free cell"
        goal_state = find("goal", goal, cells, expected)
        self.goal = tuple(self.observations[goal_state].tolist())
        self.terminal = states == goal_state
        near = neighbours(self.free)[:, MOVES]
        self.bumped = near < 0
        self.next_state = np.where(self.bumped, states[:, None], near)
        self.rewards = np.where(self.terminal[self.next_state], 0.0, -1.0)
        if reward is not None:
            self.rewards = tabulate(reward, self.observations, self.next_state)
        self.start_states = self.starts(
            start is None or states == find("start", start, cells, expected)
        )
        wanted = np.append(self.start_states, goal_state)
        check_ways("layout", near, wanted, self.observations)


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
