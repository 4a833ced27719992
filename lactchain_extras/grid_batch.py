"""The grid world as a numpy batch, for classic agents: many copies behind one `step`."""

from collections.abc import Sequence
from operator import index
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from lactchain.functional.random_streams import draw, stream
from lactchain.worlds.gridworld import GridWorld

_STATE = ("states", "num_steps", "streams", "num_episodes")
Stepped = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]
"""What `step` of a batch returns."""


def register() -> None:
    """Gives the grid world's id its batch."""
    place = "lactchain_extras.grid_batch:GridWorldVectorEnv"
    gym.spec("lactchain/GridWorld-v0").vector_entry_point = place


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

    def step(self, actions: np.ndarray) -> Stepped:
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
