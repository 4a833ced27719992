"""The oriented grid world of the founding document: rules, words, pictures."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lactchain.environments.faults import at_least_one
from lactchain.environments.views import State, TextView
from lactchain.functional.random_streams import draw, stream
from lactchain.inspection.pictures import Mark, Picture, Scene
from lactchain.types import Reward
from lactchain.worlds.cells import (
    CellTables,
    CellWorld,
    cell_view,
    find,
    neighbours,
    numbers,
    tabulate,
)

ACTION_NAMES = ("move forward", "turn left", "turn right")
ORIENTATIONS = ("up", "right", "down", "left")
REWARDS = {"sparse": (1.0, 0.0), "founding": (100.0, -1.0)}
"""For reaching the goal, and for every other step."""

_TURNS = (-1, 1)  # left, right
_MAX_STATES = 2**20  # tables of about 100 MB


class GridTables(CellTables):
    """The dynamics of one grid world; the arguments, and the errors of them, are of `GridWorld`.

    Attributes:
        walls: the cells (x, y) that cannot be entered.
        num_poses: number of free cells times four orientations.
    """

    fields = ("x", "y", "orientation", "goal_x", "goal_y")

    def __init__(
        self,
        size: int = 4,
        width: int | None = None,
        height: int | None = None,
        walls: Sequence[Sequence[int]] = (),
        start: Sequence[int] | None = None,
        goal: Sequence[int] | None = None,
        turn_right: bool = False,
        reward: str | Reward = "sparse",
    ) -> None:
        size = at_least_one("size", size)
        self.width = size if width is None else at_least_one("width", width)
        self.height = size if height is None else at_least_one("height", height)
        self.action_names = ACTION_NAMES if turn_right else ACTION_NAMES[:2]
        grid = f"a {self.width}x{self.height} grid"
        self.place = f"free cells in {grid} with orientation 0-3"
        free = self._free_cells(walls, f"x, y in {grid}, whole numbers")
        cells = np.argwhere(free)[:, ::-1]
        self.walls = frozenset((x, y) for y, x in np.argwhere(~free).tolist())
        goals = cells
        if goal is not None:
            goals = cells[[find("goal", goal, numbers(cells), f"x, y of a free cell in {grid}")]]
        self.num_poses = 4 * len(cells)
        if self.num_poses * len(goals) > _MAX_STATES:
            raise ValueError(
                f"size: expected at most {_MAX_STATES} states, got {grid}"
                f" with {len(goals)} goals; fix the goal or make the grid smaller"
            )
        self._expand(neighbours(free), cells, goals, reward)
        self.start_in(start is None or self._in_pose(start), "walls")

    def _free_cells(self, walls: Sequence[Sequence[int]], expected: str) -> np.ndarray:
        """Whether each cell (height, width) is free."""
        cells = numbers(np.argwhere(np.ones((self.width, self.height))))
        free = np.ones(len(cells), dtype=bool)
        free[[find("walls", wall, cells, expected) for wall in walls]] = False
        if not free.any():
            raise ValueError("walls: expected a free cell, and there is none")
        return free.reshape(self.width, self.height).T

    def _expand(
        self, near: np.ndarray, cells: np.ndarray, goals: np.ndarray, reward: str | Reward
    ) -> None:
        """Tabulates observations, successors, rewards and endings over poses and goals."""
        poses = np.column_stack([np.repeat(cells, 4, axis=0), np.tile(range(4), len(cells))])
        self.observations = np.column_stack(
            [np.tile(poses, (len(goals), 1)), np.repeat(goals, len(poses), axis=0)]
        )
        self.terminal = (self.observations[:, :2] == self.observations[:, 3:]).all(axis=1)
        self.next_state = self._moves(near)
        if not isinstance(reward, str):
            self.rewards = tabulate(reward, self.observations, self.next_state)
        elif reward in REWARDS:
            self.rewards = np.where(self.terminal[self.next_state], *REWARDS[reward])
        else:
            raise ValueError(f"reward: expected one of {sorted(REWARDS)}, got {reward!r}")

    def _in_pose(self, start: Sequence[int]) -> np.ndarray:
        """Whether each state (S,) is in this pose."""
        poses = numbers(self.observations[: self.num_poses, :3])
        pose = find("start", start, poses, "a free x, y, orientation 0-3")
        return np.arange(len(self.terminal)) % self.num_poses == pose

    def _moves(self, near: np.ndarray) -> np.ndarray:
        """The one place where the rules of motion are written: next states (S, A)."""
        states = np.arange(len(self.terminal))
        pose = states % self.num_poses
        cell, orientation = np.divmod(pose, 4)
        target = near[cell, orientation]
        forward = np.where(target < 0, cell, target)
        turned = [4 * cell + (orientation + turn) % 4 for turn in _TURNS]
        poses = np.stack([4 * forward + orientation, *turned], axis=1)
        return (states - pose)[:, None] + poses[:, : len(self.action_names)]


class GridWorld(CellWorld):
    """An agent with an orientation walks to a goal on a small grid.

    ## Description
    A grid of `width` x `height` cells, some of them walls. The agent stands on a free cell and
    looks in one of four directions; it can step forward and turn.

    ## Action Space
    `Discrete(2)`, or `Discrete(3)` with `turn_right`:
    - 0: move forward
    - 1: turn left
    - 2: turn right

    ## Observation Space
    `MultiDiscrete([width, height, 4, width, height])`: x, y, orientation, goal_x, goal_y. The
    origin is the upper left cell; orientation 0 is up (y − 1), 1 right (x + 1), 2 down (y + 1),
    3 left (x − 1), so turning left is −1 modulo 4.

    ## Starting State
    Cell, orientation and goal are drawn uniformly from all with cell != goal, walls excluded;
    `start` and `goal` fix them. `reset(options={"state": {...}})` starts in a given state with the
    five fields of the observation by name. The draws are a function of the seed, of
    `options={"copy": i}` (default 0) and of the number of episodes since: a single environment
    with copy i replays copy i of the vector environment of that seed.

    ## Rewards
    - "sparse": +1 on reaching the goal, else 0.
    - "founding": +100 on reaching the goal, −1 for every other step.
    - Or an object with `reward(state, action, next_state)` over batches of observation rows; it is
      tabulated once.

    ## Episode End
    Terminated: the agent is on the goal. Truncated: `max_steps` actions were played, and the goal
    was not reached by the last one.

    ## Information
    - `bumped`: the action would have left the map or entered a wall; the agent stayed where it
      was, and the step counted. False on reset.
    - `description`: the world in words.

    ## Arguments
    By name, those of the world itself as `GridTables` takes them:
    - `size`: width and height, 4 by default; or `width` and `height`.
    - `walls`: cells (x, y) that cannot be entered.
    - `start`: (x, y, orientation); None draws it. `goal`: (x, y); None draws it.
    - `turn_right`: adds the third action.
    - `reward`: see above.
    - `max_steps`: time limit in actions, 64 by default.
    - `render_mode`: "ansi", "rgb_array" or None.

    Raises `ValueError` if an argument does not fit or a goal cannot be reached.
    """

    def __init__(
        self, *, max_steps: int = 64, render_mode: str | None = None, **world: Any
    ) -> None:
        super().__init__(GridTables.shared(**world), max_steps, render_mode)
        extent = [self.tables.width, self.tables.height]
        self.observation_space = spaces.MultiDiscrete([*extent, 4, *extent])
        self._stream = stream(self.np_random_seed, 0)
        self._num_episodes = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode, in a drawn state or in `options["state"]`."""
        if seed is not None:  # before a start is drawn, since the stream is of it
            gym.Env.reset(self, seed=seed)
        if seed is not None or "copy" in (options or {}):
            self._stream = stream(self.np_random_seed, (options or {}).get("copy", 0))
            self._num_episodes = 0
        return super().reset(options=options)

    def _drawn_start(self) -> int:
        starts = self.tables.start_states
        self._num_episodes += 1
        return int(starts[draw(self._stream, self._num_episodes - 1, len(starts))])

    def _characters(self) -> str:
        """`^>v<` the agent, `G` the goal, `#` walls."""
        x, y, orientation, goal_x, goal_y = self._observation().tolist()
        rows = [["."] * self.tables.width for _ in range(self.tables.height)]
        for wall_x, wall_y in self.tables.walls:
            rows[wall_y][wall_x] = "#"
        rows[goal_y][goal_x] = "G"
        rows[y][x] = "^>v<"[orientation]
        return "\n".join(map("".join, rows))

    def text_view(self) -> TextView:
        """The same world in words.

        Fields: x, y, orientation (up, right, down, left), goal_x, goal_y, goal_right and goal_down
        (from the agent's cell, negative to the left and upwards), goal_ahead and goal_aside (as the
        agent sees it, in words: 2 ahead, 1 behind, 0 right), size (such as 4x4), info (the
        description of the world).
        """
        tables = self.tables
        walls = tuple(Mark(x, y, "wall") for x, y in sorted(tables.walls))
        return cell_view(
            slice(3),
            action_names=tables.action_names,
            template="{info}\nYou are at ({x}, {y}), facing {orientation}.{feedback}",
            # From its own cell: a tiny model would spend its training on the subtraction.
            brief="{x} {y} {orientation} {goal_right} {goal_down}",
            relative="The goal is {goal_ahead} and {goal_aside}.{feedback}",
            describe=_describe,
            bump_feedback=" You bumped into the edge of the map or a wall.",
            picture=Picture(tables.width, tables.height, _scene, walls),
        )

    def _info(self, bumped: bool) -> dict[str, Any]:
        *_, goal_x, goal_y = self._observation().tolist()
        size = f"{self.tables.width}x{self.tables.height}"
        text = f"Grid world of size {size}, goal at ({goal_x}, {goal_y})."
        return {"bumped": bumped, "description": text}


def _describe(env: gym.Env, observation: np.ndarray, info: Mapping[str, Any]) -> dict[str, object]:
    tables = env.unwrapped.tables
    fields = tables.state_fields(env.unwrapped.state)
    turns = fields["orientation"]
    right, down = fields["goal_x"] - fields["x"], fields["goal_y"] - fields["y"]
    ahead, aside = ((-down, right), (right, down), (down, -right), (-right, -down))[turns]
    fields |= {"orientation": ORIENTATIONS[turns], "goal_right": right, "goal_down": down}
    fields["goal_ahead"] = f"{abs(ahead)} {'behind' if ahead < 0 else 'ahead'}"
    fields["goal_aside"] = f"{abs(aside)} {'left' if aside < 0 else 'right'}"
    return fields | {"size": f"{tables.width}x{tables.height}", "info": info["description"]}


def _scene(state: State) -> Scene:
    goal = state["goal_x"], state["goal_y"]
    agent = state["x"], state["y"], state["orientation"]
    return Scene(agent, (Mark(*goal, "goal"),), f"goal at {goal}")
