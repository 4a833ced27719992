"""The oriented grid world of the founding document, and its batch: rules, words, pictures."""

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

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
_STATE = ("states", "num_steps", "streams", "num_episodes")  # of a batch


class GridTables(CellTables):
    """The dynamics of one grid world; the arguments are those of `GridWorld`.

    Attributes:
        walls: the cells (x, y) that cannot be entered.
        num_poses: number of free cells times four orientations.

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
        (where the goal is seen from the agent, in cells, negative to the left and upwards),
        goal_across and goal_along (the same in words: 2 right, 1 left, 0 down), size (such as 4x4),
        info (the description of the world).
        """
        tables = self.tables
        walls = tuple(Mark(x, y, "wall") for x, y in sorted(tables.walls))
        return cell_view(
            slice(3),
            action_names=tables.action_names,
            template="{info}\nYou are at ({x}, {y}), facing {orientation}.{feedback}",
            # As the agent sees it: a tiny model would spend its training on the subtraction.
            brief="{x} {y} {orientation} {goal_right} {goal_down}",
            relative="The goal is {goal_across} and {goal_along}."
            " You face {orientation}.{feedback}",
            describe=_describe,
            bump_feedback=" You bumped into the edge of the map or a wall.",
            picture=Picture(tables.width, tables.height, _scene, walls),
        )

    def _info(self, bumped: bool) -> dict[str, Any]:
        *_, goal_x, goal_y = self._observation().tolist()
        size = f"{self.tables.width}x{self.tables.height}"
        told = f"Grid world of size {size}, goal at ({goal_x}, {goal_y})."
        return {"bumped": bumped, "description": told}


def own_seeds(seeds: Sequence[int | None], num_envs: int) -> list[tuple[int, int]]:
    """The copies that are to have a seed, and which; `ValueError` as Gymnasium's."""
    own = [(copy, index(seed)) for copy, seed in enumerate(seeds) if seed is not None]
    if len(seeds) != num_envs or any(seed < 0 for _, seed in own):
        raise ValueError(f"seed: expected {num_envs} of at least 0, one for each copy, got {seeds}")
    return own


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

    def __init__(self, num_envs: int = 1, **kwargs: Any) -> None:
        single = GridWorld(**kwargs)
        self.num_envs, self.tables, self.max_steps = num_envs, single.tables, single.max_steps
        self.single_observation_space = single.observation_space
        self.single_action_space = single.action_space
        self.observation_space = batch_space(single.observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)
        self.streams = self._copy_streams()
        self.num_episodes = np.zeros(num_envs, dtype=np.uint64)
        self.states = np.full(num_envs, self.tables.start_states[0])
        self.num_steps = np.zeros(num_envs, dtype=np.int64)

    def reset(
        self, *, seed: int | Sequence | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode in every copy; `seed` is one for all, or one or None for each.

        `options={"state": {...}}` starts all of them in that state, as in `GridWorld`.
        """
        if seed is None or isinstance(seed, int | np.integer):
            super().reset(seed=seed)
            if seed is not None:
                self.streams, self.num_episodes[:] = self._copy_streams(), 0
        else:  # each copy is copy 0 of its own seed, as a single environment is
            for copy, own in own_seeds(seed, self.num_envs):
                self.streams[copy], self.num_episodes[copy] = stream(own, 0), 0
        if unknown := (options or {}).keys() - {"state"}:
            raise ValueError(f"options: expected state, or none, got {sorted(unknown)}")
        state = (options or {}).get("state")
        if state is None:
            self._restart(np.arange(self.num_envs))
        else:
            self.states[:], self.num_steps[:] = self.tables.open_state(state), 0
        infos = {"bumped": np.zeros(self.num_envs, dtype=bool)}
        return self.tables.observations[self.states], infos

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Plays one action in every copy; resets the copies that end."""
        actions = np.asarray(actions, dtype=np.int64)
        # Negative ones read as huge: one pass checks both ends of the range.
        num_actions = self.single_action_space.n
        if actions.shape != (self.num_envs,) or actions.view(np.uint64).max() >= num_actions:
            raise ValueError(f"actions: expected elements of {self.action_space}, got {actions}")
        before, tables = self.states, self.tables
        moves = before * num_actions + actions
        self.states = tables.next_state.take(moves)
        self.num_steps += 1
        terminated = tables.terminal.take(self.states)
        truncated = (self.num_steps >= self.max_steps) & ~terminated
        observations = tables.observations.take(self.states, axis=0)
        infos: dict[str, Any] = {"bumped": self.states == before}
        ended = terminated | truncated
        if ended.any():
            infos |= {"final_obs": observations.copy(), "_final_obs": ended}
            copies = np.flatnonzero(ended)
            self._restart(copies)
            observations[copies] = tables.observations[self.states[copies]]
        return observations, tables.rewards.take(moves), terminated, truncated, infos

    def get_state(self) -> dict[str, Any]:
        """Everything that the next steps depend on."""
        return {name: getattr(self, name).copy() for name in _STATE}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on where `get_state` was called."""
        for name in _STATE:
            setattr(self, name, state[name].copy())

    def _copy_streams(self) -> np.ndarray:
        return stream(self.np_random_seed, np.arange(self.num_envs, dtype=np.uint64))

    def _restart(self, copies: np.ndarray) -> None:
        starts = self.tables.start_states
        drawn = draw(self.streams[copies], self.num_episodes[copies], len(starts))
        self.states[copies] = starts[drawn.astype(np.int64)]
        self.num_episodes[copies] += np.uint64(1)
        self.num_steps[copies] = 0


def _describe(env: gym.Env, observation: np.ndarray, info: Mapping[str, Any]) -> dict[str, object]:
    tables = env.unwrapped.tables
    fields = tables.state_fields(env.unwrapped.state)
    fields["orientation"] = ORIENTATIONS[fields["orientation"]]
    right = fields["goal_right"] = fields["goal_x"] - fields["x"]
    down = fields["goal_down"] = fields["goal_y"] - fields["y"]
    fields["goal_across"] = f"{abs(right)} {'left' if right < 0 else 'right'}"
    fields["goal_along"] = f"{abs(down)} {'up' if down < 0 else 'down'}"
    return fields | {"size": f"{tables.width}x{tables.height}", "info": info["description"]}


def _scene(state: State) -> Scene:
    goal = state["goal_x"], state["goal_y"]
    agent = state["x"], state["y"], state["orientation"]
    return Scene(agent, (Mark(*goal, "goal"),), f"goal at {goal}")
