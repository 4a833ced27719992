"""The oriented grid world of the founding document as arrays.

A *pose* is a free cell and an orientation: `pose = 4 * cell + orientation`, cells counted row by
row and walls left out. A *state* is a pose and a goal: `state = goal * num_poses + pose`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lactchain.environments.checks import at_least_one
from lactchain.types import Reward
from lactchain.worlds.cells import CellTables, check_ways, find, neighbours, numbers, tabulate

ACTION_NAMES = ("move forward", "turn left", "turn right")
ORIENTATIONS = ("up", "right", "down", "left")

_TURNS = (-1, 1)  # left, right
_MAX_STATES = 2**20  # tables of about 100 MB


@dataclass(frozen=True)
class GoalReward:
    """One number for reaching the goal, another for every other step."""

    on_goal: float
    elsewhere: float

    def reward(self, state: np.ndarray, action: np.ndarray, next_state: np.ndarray) -> np.ndarray:
        """Rewards (B,) of B transitions between observation rows (B, 5)."""
        return np.where(_at_goal(next_state), self.on_goal, self.elsewhere)


REWARDS = {"sparse": GoalReward(1.0, 0.0), "founding": GoalReward(100.0, -1.0)}


class GridTables(CellTables):
    """The dynamics of one grid world; the arguments are those of `GridWorld`.

    Attributes:
        walls: the cells (x, y) that cannot be entered.
        num_poses: number of free cells times four orientations.
        descriptions: the world in words, one for each goal.

    Raises:
        ValueError: an argument is not of its kind, or a goal cannot be reached from a start.
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
        goal_cells = np.arange(len(cells))
        if goal is not None:
            expected = f"x, y of a free cell in {grid}"
            goal_cells = np.array([find("goal", goal, numbers(cells), expected)])
        self.num_poses = 4 * len(cells)
        if self.num_poses * len(goal_cells) > _MAX_STATES:
            raise ValueError(
                f"size: expected at most {_MAX_STATES} states, got {grid}"
                f" with {len(goal_cells)} goals; fix the goal or make the grid smaller"
            )
        near = neighbours(free)
        self._expand(near, cells, cells[goal_cells], reward)
        self.start_states = self.starts(start is None or self._in_pose(start))
        goal_number, pose = np.divmod(self.start_states, self.num_poses)
        check_ways("walls", near, np.concatenate([pose // 4, goal_cells[goal_number]]), cells)

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
        self.descriptions = [
            f"Grid world of size {self.width}x{self.height}, goal at ({x}, {y})."
            for x, y in goals.tolist()
        ]
        self.terminal = _at_goal(self.observations)
        self.next_state, self.bumped = self._moves(near)
        if isinstance(reward, str) and reward not in REWARDS:
            raise ValueError(f"reward: expected one of {sorted(REWARDS)}, got {reward!r}")
        scheme = REWARDS[reward] if isinstance(reward, str) else reward
        self.rewards = tabulate(scheme, self.observations, self.next_state)

    def _in_pose(self, start: Sequence[int]) -> np.ndarray:
        """Whether each state (S,) is in this pose."""
        poses = numbers(self.observations[: self.num_poses, :3])
        pose = find("start", start, poses, "a free x, y, orientation 0-3")
        return np.arange(len(self.terminal)) % self.num_poses == pose

    def _moves(self, near: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The one place where the rules of motion are written: next state and bump (S, A)."""
        states = np.arange(len(self.terminal))
        pose = states % self.num_poses
        cell, orientation = np.divmod(pose, 4)
        target = near[cell, orientation]
        bumped = np.zeros((len(states), len(self.action_names)), dtype=bool)
        bumped[:, 0] = target < 0
        forward = np.where(target < 0, cell, target)
        turned = [4 * cell + (orientation + turn) % 4 for turn in _TURNS]
        poses = np.stack([4 * forward + orientation, *turned], axis=1)
        return (states - pose)[:, None] + poses[:, : bumped.shape[1]], bumped


def _at_goal(observations: np.ndarray) -> np.ndarray:
    """Whether the agent stands on the goal (B,), of observation rows (B, 5)."""
    return (observations[:, :2] == observations[:, 3:]).all(axis=1)
