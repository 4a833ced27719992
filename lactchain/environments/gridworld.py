"""The oriented grid world of the founding document: one table, played one by one or in batches.

`GridTables` holds the dynamics as arrays. The single environment, the vector environment and
`exact.py` all read them, so the three cannot disagree.

A *pose* is a free cell and an orientation: `pose = 4 * cell + orientation`, cells counted row by
row and walls left out. A *state* is a pose and a goal: `state = goal * num_poses + pose`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from lactchain.streams import draw, stream
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
        self.width = size if width is None else width
        self.height = size if height is None else height
        if min(self.width, self.height) < 1:
            raise ValueError(f"size: expected at least 1, got {self.width}x{self.height}")
        self.action_names = ACTION_NAMES if turn_right else ACTION_NAMES[:2]
        self.walls = frozenset(_cell("walls", wall, self.width, self.height) for wall in walls)
        self.cells = [
            (x, y)
            for y in range(self.height)
            for x in range(self.width)
            if (x, y) not in self.walls
        ]
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

    def state_number(self, state: Mapping[str, int]) -> int:
        """The number of a state given as `{x, y, orientation, goal_x, goal_y}`.

        Raises:
            ValueError: there is no such state in this world.
        """
        try:
            pose = self._pose_number[state["x"], state["y"], state["orientation"]]
            goal = self._goal_number[state["goal_x"], state["goal_y"]]
        except KeyError as error:
            raise ValueError(
                f"state: expected {', '.join(STATE_FIELDS)} of free cells in a"
                f" {self.width}x{self.height} grid with orientation 0-3, got {dict(state)}"
            ) from error
        return goal * self.num_poses + pose

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
        columns = [
            scheme.reward(self.observations, np.full(len(after), action), self.observations[after])
            for action, after in enumerate(self.next_state.T)
        ]
        self.rewards = np.stack(columns, axis=1).astype(float)
        if not np.isfinite(self.rewards).all():
            raise ValueError("reward: expected finite numbers for every transition")

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


class GridWorld(gym.Env[np.ndarray, int]):
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
    - `size`: width and height, 4 by default; or `width` and `height`.
    - `walls`: cells (x, y) that cannot be entered.
    - `start`: (x, y, orientation); None draws it. `goal`: (x, y); None draws it.
    - `turn_right`: adds the third action.
    - `reward`: see above.
    - `max_steps`: time limit in actions, 64 by default.
    - `render_mode`: "ansi" or None.

    Raises `ValueError` if an argument does not fit or a goal cannot be reached.

    ## Version History
    - v0: first version.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}

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
        max_steps: int = 64,
        render_mode: str | None = None,
    ) -> None:
        self.tables = GridTables(size, width, height, walls, start, goal, turn_right, reward)
        self.observation_space, self.action_space = _spaces(self.tables)
        self.max_steps = max_steps
        self.render_mode = render_mode
        # Plain lists: a look-up of one element is several times faster than in an array.
        self._next_state = self.tables.next_state.tolist()
        self._rewards = self.tables.rewards.tolist()
        self._bumped = self.tables.bumped.tolist()
        self._terminal = self.tables.terminal.tolist()
        self._stream = stream(self.np_random_seed, 0)
        self._num_episodes = 0
        self.state = int(self.tables.start_states[0])
        self.num_steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode, in a drawn state or in `options["state"]`."""
        super().reset(seed=seed)
        options = options or {}
        if seed is not None or "copy" in options:
            self._stream = stream(self.np_random_seed, options.get("copy", 0))
            self._num_episodes = 0
        if "state" in options:
            self.state = self.tables.state_number(options["state"])
        else:
            starts = self.tables.start_states
            self.state = int(starts[draw(self._stream, self._num_episodes, len(starts))])
            self._num_episodes += 1
        self.num_steps = 0
        return self._observation(), self._info(bumped=False)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Plays one action."""
        before = self.state
        if not 0 <= action < len(self.tables.action_names):
            raise ValueError(f"action: expected one of {self.action_space}, got {action!r}")
        self.state = self._next_state[before][action]
        self.num_steps += 1
        terminated = self._terminal[self.state]
        truncated = self.num_steps >= self.max_steps and not terminated
        bumped = self._bumped[before % self.tables.num_poses][action]
        reward = self._rewards[before][action]
        return self._observation(), reward, terminated, truncated, self._info(bumped)

    def render(self) -> str:
        """The grid in characters: `^>v<` the agent, `G` the goal, `#` walls."""
        x, y, orientation, goal_x, goal_y = self._observation().tolist()
        rows = [["."] * self.tables.width for _ in range(self.tables.height)]
        for wall_x, wall_y in self.tables.walls:
            rows[wall_y][wall_x] = "#"
        rows[goal_y][goal_x] = "G"
        rows[y][x] = "^>v<"[orientation]
        return "\n".join(map("".join, rows))

    def _observation(self) -> np.ndarray:
        return self.tables.observations[self.state].copy()

    def _info(self, bumped: bool) -> dict[str, Any]:
        description = self.tables.descriptions[self.state // self.tables.num_poses]
        return {"bumped": bumped, "description": description}


class GridWorldVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Many copies of `GridWorld` stepped as one numpy batch, in the same process.

    Observations, actions, rewards and arguments are `GridWorld`'s. A copy that ends is reset in
    the same step (`AutoresetMode.SAME_STEP`), and each copy draws its starts from its own stream,
    a function of (seed, copy).

    ## Information
    - `bumped` (num_envs,): of the action just played; all False on reset.
    - `final_obs` (num_envs, 5), there when some copy ended: what the action led to, before any
      reset, and so the true successor of every copy; `_final_obs` (num_envs,) says which ended.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(
        self,
        num_envs: int = 1,
        size: int = 4,
        width: int | None = None,
        height: int | None = None,
        walls: Sequence[Sequence[int]] = (),
        start: Sequence[int] | None = None,
        goal: Sequence[int] | None = None,
        turn_right: bool = False,
        reward: str | Reward = "sparse",
        max_steps: int = 64,
    ) -> None:
        self.num_envs = num_envs
        self.tables = GridTables(size, width, height, walls, start, goal, turn_right, reward)
        self.single_observation_space, self.single_action_space = _spaces(self.tables)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.max_steps = max_steps
        # Flat tables over state * A + action: one `take` per quantity and step.
        self._num_actions = len(self.tables.action_names)
        self._next_state = self.tables.next_state.ravel()
        self._rewards = self.tables.rewards.ravel()
        self._bumped = np.tile(self.tables.bumped, (len(self.tables.goals), 1)).ravel()
        self._streams = self._copy_streams()
        self._num_episodes = np.zeros(num_envs, dtype=np.uint64)
        self.states = np.full(num_envs, self.tables.start_states[0])
        self.num_steps = np.zeros(num_envs, dtype=np.int64)

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode in every copy; `seed` is one for all, or one for each."""
        seeds = None if seed is None or isinstance(seed, int | np.integer) else list(seed)
        super().reset(seed=seeds[0] if seeds else seed)
        if seeds is not None:  # each copy is copy 0 of its own seed, as a single environment is
            self._streams = np.array([stream(s, 0) for s in seeds], dtype=np.uint64)
        elif seed is not None:
            self._streams = self._copy_streams()
        if seed is not None:
            self._num_episodes[:] = 0
        self._restart(np.arange(self.num_envs))
        infos = {"bumped": np.zeros(self.num_envs, dtype=bool)}
        return self.tables.observations.take(self.states, axis=0), infos

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Plays one action in every copy; resets the copies that end."""
        actions = np.asarray(actions, dtype=np.int64)
        if actions.shape != (self.num_envs,) or _largest(actions) >= self._num_actions:
            raise ValueError(f"actions: expected elements of {self.action_space}, got {actions}")
        moves = self.states * self._num_actions + actions
        self.states = self._next_state.take(moves)
        self.num_steps += 1
        terminated = self.tables.terminal.take(self.states)
        truncated = (self.num_steps >= self.max_steps) & ~terminated
        observations = self.tables.observations.take(self.states, axis=0)
        infos: dict[str, Any] = {"bumped": self._bumped.take(moves)}
        ended = terminated | truncated
        if ended.any():
            infos |= {"final_obs": observations.copy(), "_final_obs": ended}
            copies = np.flatnonzero(ended)
            self._restart(copies)
            observations[copies] = self.tables.observations.take(self.states[copies], axis=0)
        return observations, self._rewards.take(moves), terminated, truncated, infos

    def get_state(self) -> dict[str, Any]:
        """Everything that the next steps depend on."""
        return {
            "states": self.states.copy(),
            "num_steps": self.num_steps.copy(),
            "streams": self._streams.copy(),
            "num_episodes": self._num_episodes.copy(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on where `get_state` was called."""
        self.states, self.num_steps = state["states"].copy(), state["num_steps"].copy()
        self._streams, self._num_episodes = state["streams"].copy(), state["num_episodes"].copy()

    def _copy_streams(self) -> np.ndarray:
        return stream(self.np_random_seed, np.arange(self.num_envs, dtype=np.uint64))

    def _restart(self, copies: np.ndarray) -> None:
        starts = self.tables.start_states
        drawn = draw(self._streams[copies], self._num_episodes[copies], len(starts))
        self.states[copies] = starts[drawn.astype(np.int64)]
        self._num_episodes[copies] += np.uint64(1)
        self.num_steps[copies] = 0


def _at_goal(observations: np.ndarray) -> np.ndarray:
    """Whether the agent stands on the goal (B,), of observation rows (B, 5)."""
    return (observations[:, :2] == observations[:, 3:]).all(axis=1)


def _cell(name: str, value: Sequence[int], width: int, height: int) -> tuple[int, int]:
    """The cell (x, y), if it is on the map."""
    if len(value) != 2 or not (0 <= value[0] < width and 0 <= value[1] < height):
        raise ValueError(f"{name}: expected x, y in a {width}x{height} grid, got {value}")
    return int(value[0]), int(value[1])


def _spaces(tables: GridTables) -> tuple[spaces.MultiDiscrete, spaces.Discrete]:
    width, height = tables.width, tables.height
    return (
        spaces.MultiDiscrete([width, height, 4, width, height]),
        spaces.Discrete(len(tables.action_names)),
    )


def _largest(actions: np.ndarray) -> int:
    """The largest action, negative ones read as huge: one pass checks both ends of the range."""
    return int(actions.view(np.uint64).max())
