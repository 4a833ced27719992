"""The maze of LMRL-Gym (Abdulhai et al. 2023): four moves, walls, and a goal to walk to.

`MazeTables` holds the dynamics as arrays. The environment, its text view and `exact.py` all read
them, so they cannot disagree. A *state* is the number of a free cell, counted row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lactchain.environments.exact import TabularModel, shortest_paths

ACTION_NAMES = ("move up", "move down", "move left", "move right")
PARTIAL_TEMPLATE = "{walls}\n"
TERSE_TEMPLATE = "{sides}\n"
STUMBLE_REWARD = -4.0

_STEPS = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])  # (rows, columns) of the actions
_SIDES = ((3, "to your right"), (2, "to your left"), (0, "above you"), (1, "below you"))
_SIDE_LETTERS = ((3, "R"), (2, "L"), (0, "A"), (1, "B"))

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
        rewards: (S, 4), 0 for reaching the goal, else −1.
        walls: a sentence for each state.
        sides: the same in letters, `R L A B`: right, left, above, below.
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
    ) -> None:
        rows, goal = _rows(layout), _goal(layout, goal)
        self.free = np.array([[mark == "0" for mark in row] for row in rows])
        self.cells = np.argwhere(self.free)
        self._number = {tuple(cell): n for n, cell in enumerate(self.cells.tolist())}
        self.goal = self._free_cell("goal", goal)
        self.terminal = (self.cells == self.goal).all(axis=1)
        self.next_state, self.bumped = self._moves()
        self.rewards = np.where(self.terminal[self.next_state], 0.0, -1.0)
        self.walls = [_wall_sentence(sides) for sides in self.bumped]
        self.sides = [_wall_letters(sides) for sides in self.bumped]
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
        state_at[row, column] = np.arange(len(self.cells))
        target = state_at[row[:, None] + _STEPS[:, 0], column[:, None] + _STEPS[:, 1]]
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


class Maze(gym.Env[np.ndarray, int]):
    """An agent walks through a maze to a goal; LMRL-Gym's rules.

    ## Description
    The agent stands on a free cell of a grid and moves to one of the four next to it.

    ## Action Space
    `Discrete(4)`: 0 move up (row − 1), 1 move down, 2 move left (column − 1), 3 move right.

    ## Observation Space
    `MultiDiscrete([rows, columns])`: row and column; (0, 0) is the upper left cell.

    ## Starting State
    A free cell other than the goal, drawn uniformly, or `start`.
    `reset(options={"state": {"row": 1, "column": 1}})` starts in a given one.

    ## Rewards
    0 for reaching the goal, else −1, into a wall as well; −4 for `stumble`, which stands for text
    that is no move.

    ## Episode End
    Terminated: the agent is on the goal. Truncated: the move after the `max_moves`-th; it is not
    played any more, so the least return of legal moves is −(max_moves + 1). LMRL-Gym calls this end
    terminal as well: `failure_terminates`.

    ## Information
    - `bumped`: a wall stopped the move; it counted. False on reset.
    - `failed`: the episode is over, and this move was not played.

    ## Arguments
    - `layout`: double_t (LMRL-Gym's), u, rooms; or rows of 1 (wall) and 0 (free), outside of which
      there are walls.
    - `goal`: (row, column); None: that of a named layout. `start`: likewise; None draws it.
    - `max_moves`: time limit, 100 in LMRL-Gym. `failure_terminates`: see above.
    - `render_mode`: "ansi" or None.

    Raises `ValueError` if an argument does not fit or the goal cannot be reached.

    ## Version History
    - v0: first version.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}

    def __init__(
        self,
        layout: str | Sequence[str] = "double_t",
        goal: Sequence[int] | None = None,
        start: Sequence[int] | None = None,
        max_moves: int = 100,
        failure_terminates: bool = False,
        render_mode: str | None = None,
    ) -> None:
        if not isinstance(max_moves, int) or max_moves < 1:
            raise ValueError(f"max_moves: expected a number of at least 1, got {max_moves!r}")
        self.tables = MazeTables(layout, goal, start)
        self.observation_space = spaces.MultiDiscrete(self.tables.free.shape)
        self.action_space = spaces.Discrete(4)
        self.max_moves = max_moves
        self.failure_terminates = failure_terminates
        self.render_mode = render_mode
        # Plain lists: a look-up of one element is several times faster than in an array.
        self._next_state = self.tables.next_state.tolist()
        self._bumped = self.tables.bumped.tolist()
        self._terminal = self.tables.terminal.tolist()
        self.state = int(self.tables.start_states[0])
        self.num_moves = 0

    @property
    def succeeded(self) -> bool:
        """Whether the agent is on the goal."""
        return self._terminal[self.state]

    @property
    def failed(self) -> bool:
        """Whether the episode ended without reaching it."""
        return self.num_moves > self.max_moves

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode, in a drawn cell or in `options["state"]`."""
        super().reset(seed=seed)
        if options and "state" in options:
            self.state = self.tables.state_number(options["state"])
        else:
            self.state = int(self.np_random.choice(self.tables.start_states))
        self.num_moves = 0
        return self._observation(), {"bumped": False, "failed": False}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Plays one move."""
        if not 0 <= action < 4:
            raise ValueError(f"action: expected one of {self.action_space}, got {action!r}")
        before = self.state
        self.num_moves += 1
        if self.failed:
            return self._outcome(-1.0)
        self.state = self._next_state[before][action]
        return self._outcome(0.0 if self.succeeded else -1.0, self._bumped[before][action])

    def stumble(self) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """What LMRL-Gym does with text that is no move: it counts as one, and costs four."""
        self.num_moves += 1
        return self._outcome(-1.0 if self.failed else STUMBLE_REWARD)

    def render(self) -> str:
        """The maze in characters: `@` the agent, `G` the goal, `#` walls."""
        rows = [["." if free else "#" for free in row] for row in self.tables.free]
        for (row, column), mark in ((self.tables.goal, "G"), (self._observation(), "@")):
            rows[row][column] = mark
        return "\n".join(map("".join, rows))

    def _outcome(
        self, reward: float, bumped: bool = False
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        failed = self.failed
        terminated = self.succeeded or (failed and self.failure_terminates)
        info = {"bumped": bumped, "failed": failed}
        return self._observation(), reward, terminated, failed and not terminated, info

    def _observation(self) -> np.ndarray:
        return self.tables.cells[self.state].copy()


def open_moves(text: str) -> list[int]:
    """The moves that no wall stops, read from the last sentence on walls in an observation.

    Raises:
        ValueError: there is no such sentence.
    """
    _, found, walls = text.rpartition("There ")
    if not found:
        raise ValueError(f"observation: expected a sentence on walls, got {text!r}")
    return sorted(action for action, name in _SIDES if name not in walls)


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


def _wall_letters(sides: np.ndarray) -> str:
    """The walls on the four sides, a letter each, `-` for none."""
    return " ".join(letter for action, letter in _SIDE_LETTERS if sides[action]) or "-"


def _wall_sentence(sides: np.ndarray) -> str:
    """LMRL-Gym's words for the walls on the four sides, in its order."""
    walls = [name for action, name in _SIDES if sides[action]]
    if not walls:
        return "There are no walls near you."
    if len(walls) == 1:
        return f"There is a wall {walls[0]}."
    return f"There are walls {', '.join(walls)}."
