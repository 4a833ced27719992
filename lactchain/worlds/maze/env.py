"""The maze of LMRL-Gym (Abdulhai et al. 2023) as an environment."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lactchain.environments.checks import at_least_one
from lactchain.environments.views import TextView
from lactchain.worlds.maze.tables import MazeTables

STUMBLE_REWARD = -4.0
"""Of text that is no move."""


class Maze(gym.Env[np.ndarray, int]):
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
    - `layout`: double_t (LMRL-Gym's), u, rooms; or rows of 1 (wall) and 0 (free), outside of which
      there are walls.
    - `goal`: (row, column); None: that of a named layout. `start`: likewise; None draws it.
    - `reward`: None for the above, or an object with `reward(state, action, next_state)`.
    - `max_moves`: time limit, 100 in LMRL-Gym. `failure_terminates`: see above.
    - `render_mode`: "ansi", "rgb_array" or None.

    Raises `ValueError` if an argument does not fit or the goal cannot be reached.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}

    def __init__(
        self,
        *,
        max_moves: int = 100,
        failure_terminates: bool = False,
        render_mode: str | None = None,
        **world: Any,
    ) -> None:
        self.max_moves = at_least_one("max_moves", max_moves)
        self.tables = MazeTables(**world)
        self.observation_space = spaces.MultiDiscrete(self.tables.free.shape)
        self.action_space = spaces.Discrete(4)
        self.failure_terminates = failure_terminates
        self.render_mode = render_mode
        self.state = int(self.tables.start_states[0])
        self.num_moves = 0

    @property
    def succeeded(self) -> bool:
        """Whether the agent is on the goal."""
        return self.tables.terminal.item(self.state)

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
            self.state = self.tables.open_state(options["state"])
        else:
            self.state = int(self.np_random.choice(self.tables.start_states))
        self.num_moves = 0
        return self._observation(), {"bumped": False, "failed": False}

    def step(self, action: int | str) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Plays one move; text that is none counts as one, and costs four."""
        if not isinstance(action, str) and not 0 <= action < 4:
            raise ValueError(f"action: expected one of {self.action_space}, got {action!r}")
        self.num_moves += 1
        if self.failed:
            return self._outcome(-1.0)
        if isinstance(action, str):
            return self._outcome(STUMBLE_REWARD)
        reward, bumped, self.state = self.tables.outcome(self.state, action)
        return self._outcome(reward, bumped)

    def render(self) -> str | np.ndarray:
        """The maze in pixels, or in characters: `@` the agent, `G` the goal, `#` walls."""
        if self.render_mode == "rgb_array":
            return self._pixels()
        rows = [["." if free else "#" for free in row] for row in self.tables.free]
        for (row, column), mark in ((self.tables.goal, "G"), (self._observation(), "@")):
            rows[row][column] = mark
        return "\n".join(map("".join, rows))

    def text_view(self) -> TextView:
        """The same world in words."""
        from lactchain.worlds.maze.view import maze_view

        return maze_view(self)

    def _outcome(
        self, reward: float, bumped: bool = False
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        failed = self.failed
        terminated = self.succeeded or (failed and self.failure_terminates)
        info = {"bumped": bumped, "failed": failed}
        return self._observation(), reward, terminated, failed and not terminated, info

    def _pixels(self) -> np.ndarray:
        from lactchain.worlds.canvas import AGENT, floor

        height, width = self.tables.free.shape
        walls = np.argwhere(~self.tables.free)[:, ::-1].tolist()
        canvas = floor(width, height, walls, self.tables.goal[::-1])
        row, column = self._observation().tolist()
        canvas.disc(column + 0.5, row + 0.5, 0.3, AGENT)
        return canvas.pixels()

    def _observation(self) -> np.ndarray:
        return self.tables.observations[self.state].copy()
