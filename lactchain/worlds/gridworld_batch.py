"""The grid world as a batch: many copies that are stepped as one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from lactchain.environments.checks import start_state
from lactchain.functional.random_streams import draw, stream
from lactchain.worlds.gridworld import GridWorld

_STATE = ("states", "num_steps", "streams", "num_episodes")  # of a batch


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
