"""The oriented grid world of the founding document as arrays.

The single environment, the batch and `exact.py` all read them, so the three cannot disagree.

A *pose* is a free cell and an orientation: `pose = 4 * cell + orientation`, cells counted row by
row and walls left out. A *state* is a pose and a goal: `state = goal * num_poses + pose`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
from gymnasium import spaces

from lactchain.environments.arguments import at_least_one
from lactchain.environments.exact import TabularModel
from lactchain.environments.rewards import tabulate
from lactchain.types import Reward

ACTION_NAMES = ("move forward", "turn left", "turn right")
ORIENTATIONS = ("up", "right", "down", "left")
STATE_FIELDS = ("x", "y", "orientation", "goal_x", "goal_y")

_STEPS = np.array([(0, -1), (1, 0), (0, 1), (-1, 0)])  # (dx, dy) of up, right, down, left
_TURNS = (-1, 1)  # left, right
_MAX_STATES = 2**20  # tables of about 100 MB


class SparseReward:
    """+1 on reaching the goal, else 0."""

    def reward(self, state: np.ndarray, action: np.ndarray, next_state: np.ndarray) -> np.ndarray:
        """Rewards (B,) of B transitions between observation rows (B, 5)."""
        return _at_goal(next_state).astype(float)


class FoundingReward:
    """The founding scheme: +100 on reaching the goal, −1 for every other step."""

    def reward(self, state: np.ndarray, action: np.ndarray, next_state: np.ndarray) -> np.ndarray:
        """Rewards (B,) of B transitions between observation rows (B, 5)."""
        return np.where(_at_goal(next_state), 100.0, -1.0)


REWARDS: dict[str, Reward] = {"sparse": SparseReward(), "founding": FoundingReward()}


class GridTables:
    """The dynamics of one grid world as arrays, for S states and A actions.

    Arguments are those of `GridWorld`.

    Attributes:
        next_pose: (poses, A), the pose after each action.
        bumped: (poses, A), whether the action left the pose as it was.
        observations: (S, 5), the rows x, y, orientation, goal_x, goal_y.
        next_state: (S, A), the state after each action.
        rewards: (S, A).
        terminal: (S,), whether the agent stands on the goal.
        descriptions: the world in words, one for each goal.
        start_states: the states that an episode may start in, ascending.

    Raises:
        ValueError: an argument is not of its kind, or a goal cannot be reached from a start.
    """

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
        self.walls = frozenset(_cell("walls", wall, self.width, self.height) for wall in walls)
        self.cells = [
            (x, y)
            for y in range(self.height)
            for x in range(self.width)
            if (x, y) not in self.walls
        ]
        if not self.cells:
            raise ValueError("walls: expected a free cell, and there is none")
        self._cell_number = {cell: number for number, cell in enumerate(self.cells)}
        poses = [(x, y, orientation) for x, y in self.cells for orientation in range(4)]
        self._pose_number = {pose: number for number, pose in enumerate(poses)}
        self.goals = self.cells if goal is None else [self._free_cell("goal", goal)]
        self._goal_number = {cell: number for number, cell in enumerate(self.goals)}
        if 4 * len(self.cells) * len(self.goals) > _MAX_STATES:
            raise ValueError(
                f"size: expected at most {_MAX_STATES} states, got a {self.width}x{self.height}"
                f" grid with {len(self.goals)} goals; fix the goal or make the grid smaller"
            )
        self.descriptions = [
            f"Grid world of size {self.width}x{self.height}, goal at {goal}." for goal in self.goals
        ]
        self.next_pose, self.bumped = self._moves()
        self._expand(reward)
        self.start_states = self._starts(start)
        self._check_reachable()

    @property
    def num_poses(self) -> int:
        """Number of free cells times four orientations."""
        return 4 * len(self.cells)

    @property
    def non_terminal(self) -> np.ndarray:
        """States (N,) in which the agent is not on the goal, ascending."""
        return np.flatnonzero(~self.terminal)

    @property
    def spaces(self) -> tuple[spaces.MultiDiscrete, spaces.Discrete]:
        """Where observations and actions lie."""
        width, height = self.width, self.height
        observations = spaces.MultiDiscrete([width, height, 4, width, height])
        return observations, spaces.Discrete(len(self.action_names))

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

    def state_number(self, state: Mapping[str, int]) -> int:
        """The number of a state given as `{x, y, orientation, goal_x, goal_y}`.

        Raises:
            ValueError: there is no such state in this world.
        """
        try:
            pose = self._pose_number[state["x"], state["y"], state["orientation"]]
            goal = self._goal_number[state["goal_x"], state["goal_y"]]
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"state: expected {', '.join(STATE_FIELDS)} of free cells in a"
                f" {self.width}x{self.height} grid with orientation 0-3, got {state}"
            ) from error
        return goal * self.num_poses + pose

    def open_state(self, state: Mapping[str, int]) -> int:
        """The number of a state that an episode can be begun in.

        Raises:
            ValueError: there is no such state in this world, or the agent is on the goal already.
        """
        number = self.state_number(state)
        if self.terminal[number]:
            raise ValueError(f"state: expected another cell than the goal's, got {state}")
        return number

    def state_fields(self, state: int) -> dict[str, int]:
        """The inverse of `state_number`; JSON can hold it."""
        return dict(zip(STATE_FIELDS, self.observations[state].tolist(), strict=True))

    def _free_cell(self, name: str, value: Sequence[int]) -> tuple[int, int]:
        cell = _cell(name, value, self.width, self.height)
        if cell in self.walls:
            raise ValueError(f"{name}: expected a free cell, got the wall {cell}")
        return cell

    def _moves(self) -> tuple[np.ndarray, np.ndarray]:
        """The one place where the rules of motion are written: next pose and bump (poses, A)."""
        cell_at = np.full((self.width + 2, self.height + 2), -1)  # a border saves the range checks
        xy = np.array(self.cells)
        cell_at[xy[:, 0] + 1, xy[:, 1] + 1] = np.arange(len(xy))
        cell, orientation = np.divmod(np.arange(self.num_poses), 4)
        x, y = (xy[cell] + _STEPS[orientation]).T
        target = cell_at[x + 1, y + 1]
        bumped = np.zeros((self.num_poses, len(self.action_names)), dtype=bool)
        bumped[:, 0] = target < 0
        forward = np.where(target < 0, cell, target)
        turned = [4 * cell + (orientation + turn) % 4 for turn in _TURNS]
        columns = [4 * forward + orientation, *turned][: len(self.action_names)]
        return np.stack(columns, axis=1), bumped

    def _expand(self, reward: str | Reward) -> None:
        """Tabulates observations, successors, rewards and endings over poses × goals."""
        cell, orientation = np.divmod(np.arange(self.num_poses), 4)
        poses = np.column_stack([np.array(self.cells)[cell], orientation])
        self.observations = np.column_stack(
            [np.tile(poses, (len(self.goals), 1)), np.repeat(self.goals, self.num_poses, axis=0)]
        )
        self.terminal = _at_goal(self.observations)
        first_pose = np.repeat(np.arange(len(self.goals)) * self.num_poses, self.num_poses)
        self.next_state = np.tile(self.next_pose, (len(self.goals), 1)) + first_pose[:, None]
        if isinstance(reward, str) and reward not in REWARDS:
            raise ValueError(f"reward: expected one of {sorted(REWARDS)}, got {reward!r}")
        scheme = REWARDS[reward] if isinstance(reward, str) else reward
        self.rewards = tabulate(scheme, self.observations, self.next_state)

    def _starts(self, start: Sequence[int] | None) -> np.ndarray:
        if start is None:
            states = self.non_terminal
        else:
            if tuple(start) not in self._pose_number:
                raise ValueError(f"start: expected a free x, y, orientation 0-3, got {start}")
            pose = self._pose_number[tuple(start)]
            every = np.arange(len(self.goals)) * self.num_poses + pose
            states = every[~self.terminal[every]]
        if len(states) == 0:
            raise ValueError("start: expected a free cell other than the goal, and there is none")
        return states

    def _check_reachable(self) -> None:
        """Every goal must be within reach of every start; moves between cells go both ways."""
        starts = self.observations[self.start_states]
        wanted = {tuple(cell) for cell in starts[:, [0, 1, 3, 4]].reshape(-1, 2).tolist()}
        first = min(wanted)
        reached, frontier = {first}, [first]
        while frontier:
            x, y = frontier.pop()
            neighbours = {(x + dx, y + dy) for dx, dy in _STEPS.tolist()}
            new = (neighbours & self._cell_number.keys()) - reached
            reached |= new
            frontier.extend(new)
        if apart := wanted - reached:
            raise ValueError(
                f"walls: expected every goal to be reachable from every start, but there is no"
                f" way between {first} and {min(apart)}"
            )


def _at_goal(observations: np.ndarray) -> np.ndarray:
    """Whether the agent stands on the goal (B,), of observation rows (B, 5)."""
    return (observations[:, :2] == observations[:, 3:]).all(axis=1)


def _cell(name: str, value: Sequence[int], width: int, height: int) -> tuple[int, int]:
    """The cell (x, y), if it is on the map."""
    cell = tuple(value) if isinstance(value, Iterable) else ()
    if len(cell) != 2 or cell[0] not in range(width) or cell[1] not in range(height):
        raise ValueError(
            f"{name}: expected x, y in a {width}x{height} grid, whole numbers, got {value}"
        )
    return int(cell[0]), int(cell[1])
