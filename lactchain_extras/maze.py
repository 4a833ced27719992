"""The maze of LMRL-Gym (Abdulhai et al. 2023): rules, words, and the scripted policy."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lactchain.environments.faults import at_least_one
from lactchain.environments.language import LanguageEnv
from lactchain.environments.scripted import RowPolicy
from lactchain.environments.views import State, TextView
from lactchain.inspection.pictures import Mark, Picture, Scene
from lactchain.types import Reward
from lactchain.worlds.cells import (
    DOWN,
    LEFT,
    RIGHT,
    UP,
    CellTables,
    CellWorld,
    cell_view,
    find,
    neighbours,
    numbers,
    tabulate,
)

MOVES = [UP, DOWN, LEFT, RIGHT]
"""Where the actions lead."""

DOUBLE_T = """
1111111111111
1000001000001
1110111110111
1110111110111
1110111110111
1110000000111
1111110111111
1111110111111
1111110111111
1111111111111
"""
LAYOUTS: dict[str, tuple[list[str], tuple[int, int]]] = {
    "double_t": (DOUBLE_T.split(), (8, 6)),
    "u": (["11111", "10001", "10101", "10101", "11111"], (3, 3)),
}
"""The mazes that are shipped: rows of 1 (wall) and 0 (free), and the goal (row, column)."""


def register() -> None:
    """Registers the id."""
    gym.register("lactchain/Maze-v0", entry_point="lactchain_extras.maze:Maze")


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
        rows, usual_goal = _laid_out(layout)
        goal = usual_goal if goal is None else goal
        if goal is None:
            raise ValueError("goal: expected row, column for a layout of your own, got none")
        self.free = np.array([[mark == "0" for mark in row] for row in rows])
        self.observations = np.argwhere(self.free)
        cells, states = numbers(self.observations), np.arange(len(self.observations))
        expected = "row, column of a free cell"
        goal_state = find("goal", goal, cells, expected)
        self.goal = tuple(self.observations[goal_state].tolist())
        self.terminal = states == goal_state
        near = neighbours(self.free)[:, MOVES]
        self.next_state = np.where(near < 0, states[:, None], near)
        self.rewards = np.where(self.terminal[self.next_state], 0.0, -1.0)
        if reward is not None:
            self.rewards = tabulate(reward, self.observations, self.next_state)
        chosen = start is None or states == find("start", start, cells, expected)
        self.start_in(chosen, "layout")


def _laid_out(layout: str | Sequence[str]) -> tuple[Sequence[str], tuple[int, int] | None]:
    """The rows of a layout, all of one length, and the goal of a named one."""
    if isinstance(layout, str):
        if layout not in LAYOUTS:
            known = f"one of {sorted(LAYOUTS)}, or rows of 0 and 1"
            raise ValueError(f"layout: expected {known}, got {layout!r}")
        return LAYOUTS[layout]
    if not isinstance(layout, Sequence) or not layout:
        raise ValueError(f"layout: expected rows of 0 and 1, got {layout}")
    for number, row in enumerate(layout):
        if not isinstance(row, str) or set(row) - {"0", "1"} or len(row) != len(layout[0]):
            cells = f"{len(layout[0])} characters 0 or 1 in quotes"
            raise ValueError(f"layout: row {number}: expected {cells}, got {row!r}")
    return layout, None


ACTION_NAMES = ("move up", "move down", "move left", "move right")

_SIDES = (
    (3, "to your right", "R"),
    (2, "to your left", "L"),
    (0, "above you", "A"),
    (1, "below you", "B"),
)


def wall_sentence(sides: np.ndarray) -> str:
    """LMRL-Gym's words for the walls on the four sides, in its order."""
    walls = [name for action, name, _ in _SIDES if sides[action]]
    if not walls:
        return "There are no walls near you."
    if len(walls) == 1:
        return f"There is a wall {walls[0]}."
    return f"There are walls {', '.join(walls)}."


STUMBLE_REWARD = -4.0
"""Of text that is no move."""


class Maze(CellWorld):
    """An agent walks through a maze to a goal; LMRL-Gym's rules.

    ## Description
    The agent stands on a free cell of a grid and moves to one of the four next to it.

    ## Action Space
    `Discrete(4)`: 0 move up (row − 1), 1 move down, 2 move left (column − 1), 3 move right. `step`
    takes text as well, which stands for a completion that is no move: it counts as one.

    ## Observation Space
    `MultiDiscrete([rows, columns])`: row and column; (0, 0) is the upper left cell.

    ## Starting State
    A free cell other than the goal, drawn uniformly, or `start`.
    `reset(options={"state": {"row": 1, "column": 1}})` starts in a given one.

    ## Rewards
    0 for reaching the goal, else −1, into a wall as well; −4 for text that is no move. A `reward`
    of one's own, over batches of observation rows, is tabulated once and takes the place of the
    first two.

    ## Episode End
    Terminated: the agent is on the goal. Truncated: the move after the `max_moves`-th; it is not
    played any more, so the least return of legal moves is −(max_moves + 1). LMRL-Gym calls this end
    terminal as well: `failure_terminates`.

    ## Information
    - `bumped`: a wall stopped the move; it counted. False on reset.
    - `failed`: the episode is over, and this move was not played.

    ## Arguments
    By name, those of the world itself as `MazeTables` takes them:
    - `layout`: double_t (LMRL-Gym's), u; or rows of 1 (wall) and 0 (free), outside of which
      there are walls.
    - `goal`: (row, column); None: that of a named layout. `start`: likewise; None draws it.
    - `reward`: None for the above, or an object with `reward(state, action, next_state)`.
    - `max_moves`: time limit, 100 in LMRL-Gym. `failure_terminates`: see above.
    - `render_mode`: "ansi", "rgb_array" or None.

    Raises `ValueError` if an argument does not fit or the goal cannot be reached.
    """

    def __init__(
        self,
        *,
        max_moves: int = 100,
        failure_terminates: bool = False,
        render_mode: str | None = None,
        **world: Any,
    ) -> None:
        max_steps = at_least_one("max_moves", max_moves) + 1
        super().__init__(MazeTables.shared(**world), max_steps, render_mode)
        self.observation_space = spaces.MultiDiscrete(self.tables.free.shape)
        self.failure_terminates = failure_terminates

    @property
    def succeeded(self) -> bool:
        """Whether the agent is on the goal."""
        return self.tables.terminal.item(self.state)

    @property
    def failed(self) -> bool:
        """Whether the episode ended without reaching it."""
        return self.num_steps >= self.max_steps

    def step(self, action: int | str) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Plays one move; text that is none counts as one, and costs four."""
        if not isinstance(action, str):
            self._check(action)
        self.num_steps += 1
        if self.failed:
            return self._outcome(-1.0)
        if isinstance(action, str):
            return self._outcome(STUMBLE_REWARD)
        reward, bumped, self.state = self.tables.outcome(self.state, action)
        return self._outcome(reward, bumped)

    def _characters(self) -> str:
        """`@` the agent, `G` the goal, `#` walls."""
        rows = [["." if free else "#" for free in row] for row in self.tables.free]
        for (row, column), mark in ((self.tables.goal, "G"), (self._observation(), "@")):
            rows[row][column] = mark
        return "\n".join(map("".join, rows))

    def text_view(self) -> TextView:
        """The same world in LMRL-Gym's words, fully observed.

        `PARTIAL_TEMPLATE` shows the walls alone, `TERSE_TEMPLATE` in letters.

        Fields: row, column, goal_row, goal_column (their digits apart, as LMRL-Gym writes them),
        walls (a sentence), sides (the walls as letters, `R L A B`).
        """
        (height, width), (row, column) = self.tables.free.shape, self.tables.goal
        walls = [Mark(x, y, "wall") for y, x in np.argwhere(~self.tables.free).tolist()]
        background = (*walls, Mark(column, row, "goal"))
        return cell_view(
            slice(None, None, -1),  # x first
            action_names=ACTION_NAMES,
            template="The goal is at position {goal_row}, {goal_column}."
            " Your current position is at position {row}, {column}. {walls}\n",
            describe=_describe,
            success=attrgetter("unwrapped.succeeded"),
            step_takes_text=True,
            invalid_wipes_history=True,
            ending=_ending,
            max_chains=self.max_steps,
            policies={"legal": LegalMoves},
            picture=Picture(width, height, _scene, background, fog_unless="row"),
        )

    def _outcome(
        self, reward: float, bumped: bool = False
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        terminated = self.succeeded or (self.failed and self.failure_terminates)
        truncated = self.failed and not terminated
        return self._observation(), reward, terminated, truncated, self._info(bumped)

    def _info(self, bumped: bool) -> dict[str, Any]:
        return {"bumped": bumped, "failed": self.failed}


class LegalMoves(RowPolicy):
    """In a maze, a random move among those that no wall stops; reads only what the text says.

    Raises:
        ValueError: the environment is not a maze.
    """

    name = "legal"

    def __init__(self, env: LanguageEnv) -> None:
        if not isinstance(env.env.unwrapped, Maze):
            raise ValueError(f"world: expected a maze, got {env.env.unwrapped}")
        self.grammar = env.grammar

    def complete(self, text: str, seed: int) -> str:
        """A drawn move, by the text's last sentence on walls; `ValueError` where there is none."""
        _, found, walls = text.rpartition("There ")
        if not found:
            raise ValueError(f"observation: expected a sentence on walls, got {text!r}")
        legal = sorted(action for action, name, _ in _SIDES if name not in walls)
        return self.grammar.render([int(np.random.default_rng(seed).choice(legal))])


PARTIAL_TEMPLATE = "{walls}\n"
TERSE_TEMPLATE = "{sides}\n"


def _describe(env: gym.Env, observation: np.ndarray, info: Mapping[str, Any]) -> dict[str, str]:
    tables = env.unwrapped.tables
    digits = [" ".join(str(number)) for number in (*observation.tolist(), *tables.goal)]
    place = dict(zip(("row", "column", "goal_row", "goal_column"), digits, strict=True))
    bumped = tables.next_state[env.unwrapped.state] == env.unwrapped.state
    letters = [letter for action, _, letter in _SIDES if bumped[action]]
    return place | {"walls": wall_sentence(bumped), "sides": " ".join(letters) or "-"}


def _ending(env: gym.Env) -> str:
    return "Success\n" if env.unwrapped.succeeded else "Failure\n"


def _scene(state: State) -> Scene:
    return Scene((state["column"], state["row"]))
