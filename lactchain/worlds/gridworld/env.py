"""The oriented grid world of the founding document, alone and as a batch."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from lactchain.environments.checks import at_least_one, start_state
from lactchain.environments.views import TextView
from lactchain.functional.random_streams import draw, stream
from lactchain.worlds.cells import STEPS
from lactchain.worlds.gridworld.tables import GridTables

_STATE = ("states", "num_steps", "streams", "num_episodes")  # of a batch


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

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}

    def __init__(
        self, *, max_steps: int = 64, render_mode: str | None = None, **world: Any
    ) -> None:
        self.tables = GridTables(**world)
        extent = [self.tables.width, self.tables.height]
        self.observation_space = spaces.MultiDiscrete([*extent, 4, *extent])
        self.action_space = spaces.Discrete(len(self.tables.action_names))
        self.max_steps = at_least_one("max_steps", max_steps)
        self.render_mode = render_mode
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
            self.state = self.tables.open_state(options["state"])
        else:
            starts = self.tables.start_states
            self.state = int(starts[draw(self._stream, self._num_episodes, len(starts))])
            self._num_episodes += 1
        self.num_steps = 0
        return self._observation(), self._info(bumped=False)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Plays one action."""
        if not 0 <= action < len(self.tables.action_names):
            raise ValueError(f"action: expected one of {self.action_space}, got {action!r}")
        reward, bumped, self.state = self.tables.outcome(self.state, action)
        self.num_steps += 1
        terminated = self.tables.terminal.item(self.state)
        truncated = self.num_steps >= self.max_steps and not terminated
        return self._observation(), reward, terminated, truncated, self._info(bumped)

    def render(self) -> str | np.ndarray:
        """The grid in pixels, or in characters: `^>v<` the agent, `G` the goal, `#` walls."""
        if self.render_mode == "rgb_array":
            return self._pixels()
        x, y, orientation, goal_x, goal_y = self._observation().tolist()
        rows = [["."] * self.tables.width for _ in range(self.tables.height)]
        for wall_x, wall_y in self.tables.walls:
            rows[wall_y][wall_x] = "#"
        rows[goal_y][goal_x] = "G"
        rows[y][x] = "^>v<"[orientation]
        return "\n".join(map("".join, rows))

    def text_view(self) -> TextView:
        """The same world in words."""
        from lactchain.worlds.gridworld.view import gridworld_view

        return gridworld_view(self)

    def _pixels(self) -> np.ndarray:
        from lactchain.worlds.canvas import AGENT, floor

        x, y, orientation, *goal = self._observation().tolist()
        canvas = floor(self.tables.width, self.tables.height, self.tables.walls, goal)
        (ahead_x, ahead_y), middle_x, middle_y = STEPS[orientation], x + 0.5, y + 0.5
        corners = ((0.36, 0.0), (-0.28, 0.28), (-0.16, 0.0), (-0.28, -0.28))  # ahead, aside
        arrow = [
            (middle_x + a * ahead_x - b * ahead_y, middle_y + a * ahead_y + b * ahead_x)
            for a, b in corners
        ]
        canvas.polygon(arrow, AGENT)
        return canvas.pixels()

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

    def __init__(self, num_envs: int = 1, **kwargs: Any) -> None:
        single = GridWorld(**kwargs)
        self.num_envs, self.tables, self.max_steps = num_envs, single.tables, single.max_steps
        self.single_observation_space = single.observation_space
        self.single_action_space = single.action_space
        self.observation_space = batch_space(single.observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)
        # Flat tables over state * A + action: one `take` per quantity and step.
        self._num_actions = len(self.tables.action_names)
        self._next_state = self.tables.next_state.ravel()
        self._rewards = self.tables.rewards.ravel()
        self._bumped = self.tables.bumped.ravel()
        self.streams = self._copy_streams()
        self.num_episodes = np.zeros(num_envs, dtype=np.uint64)
        self.states = np.full(num_envs, self.tables.start_states[0])
        self.num_steps = np.zeros(num_envs, dtype=np.int64)

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode in every copy; `seed` is one for all, or one for each.

        `options={"state": {...}}` starts all of them in that state, as in `GridWorld`.
        """
        seeds = None if seed is None or isinstance(seed, int | np.integer) else list(seed)
        super().reset(seed=seeds[0] if seeds else seed)
        if seeds is not None:  # each copy is copy 0 of its own seed, as a single environment is
            self.streams = np.array([stream(s, 0) for s in seeds], dtype=np.uint64)
        elif seed is not None:
            self.streams = self._copy_streams()
        if seed is not None:
            self.num_episodes[:] = 0
        state = start_state(options)
        if state is None:
            self._restart(np.arange(self.num_envs))
        else:
            self.states[:], self.num_steps[:] = self.tables.open_state(state), 0
        infos = {"bumped": np.zeros(self.num_envs, dtype=bool)}
        return self.tables.observations.take(self.states, axis=0), infos

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Plays one action in every copy; resets the copies that end."""
        actions = np.asarray(actions, dtype=np.int64)
        # Negative ones read as huge: one pass checks both ends of the range.
        if actions.shape != (self.num_envs,) or actions.view(np.uint64).max() >= self._num_actions:
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
