"""Many games of Wordle stepped as one numpy batch, in the same process."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from lactchain.environments.checks import rewards_of, start_state
from lactchain.streams import draw, stream
from lactchain.worlds.wordle.env import Wordle
from lactchain.worlds.wordle.words import NUM_LETTERS, SOLVED


class WordleVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Many copies of `Wordle` stepped as one numpy batch.

    Observations, actions, rewards and arguments are `Wordle`'s. A copy that ends is reset in the
    same step (`AutoresetMode.SAME_STEP`), and each copy draws its hidden words from its own stream,
    a function of (seed, copy).

    Attributes:
        fits: (num_envs, W), the words that fit all marks of each game.

    ## Information
    - `num_fitting` (num_envs,): words that fit all marks, after a reset if there was one.
    - `final_obs` (num_envs, 131), there when some copy ended: what the action led to, before any
      reset; `_final_obs` (num_envs,) says which ended.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int = 1, **kwargs: Any) -> None:
        single = self._single = Wordle(**kwargs)
        self.num_envs, self.num_tries, self.tables = num_envs, single.num_tries, single.tables
        self._reward = single.reward
        self.single_observation_space = single.observation_space
        self.single_action_space = single.action_space
        self.observation_space = batch_space(single.observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)
        self.fits = np.ones((num_envs, len(self.tables.words)), dtype=bool)
        self._observations = np.ones((num_envs, *single.observation_space.shape), dtype=np.int64)
        self._begin(np.arange(num_envs))
        self._seed(self.np_random_seed)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts a game in every copy; `options["state"]` is one to go on with, as in `Wordle`."""
        super().reset(seed=seed)
        if seed is not None:
            self._seed(seed)
        state = start_state(options)
        self._begin(np.arange(self.num_envs))
        if state is not None:
            self._observations[:] = self._single.reset(options={"state": state})[0]
            self.fits[:] = self._single.fits
        return self._observations.copy(), self._infos()

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Guesses a word in every copy; resets the copies that end."""
        actions = np.asarray(actions, dtype=np.int64)
        if actions not in self.action_space:
            raise ValueError(f"actions: expected elements of {self.action_space}, got {actions}")
        before = None if self._reward is None else self._observations.copy()
        rows = self.tables.patterns[actions]
        patterns = np.take_along_axis(rows, self._hidden()[:, None], axis=1)
        self.fits &= rows == patterns
        self._learn(actions, patterns[:, 0])
        solved = patterns[:, 0] == SOLVED
        terminated = solved | (self._observations[:, -1] >= self.num_tries)
        rewards = np.where(solved, 0.0, -1.0)
        if self._reward is not None:
            rewards = rewards_of(self._reward, before, actions, self._observations.copy())
        infos: dict[str, Any] = {}
        if terminated.any():
            infos = {"final_obs": self._observations.copy(), "_final_obs": terminated}
            self._begin(np.flatnonzero(terminated))
        truncated = np.zeros(self.num_envs, dtype=bool)
        return self._observations.copy(), rewards, terminated, truncated, infos | self._infos()

    def _hidden(self) -> np.ndarray:
        """Numbers (num_envs,) of words that fit, drawn for this turn."""
        drawn = draw(self._streams, self._num_draws, self.fits.sum(axis=1).astype(np.uint64))
        self._num_draws += np.uint64(1)
        return (self.fits.cumsum(axis=1) > drawn.astype(np.int64)[:, None]).argmax(axis=1)

    def _learn(self, actions: np.ndarray, patterns: np.ndarray) -> None:
        """Notes what the marks say of each letter, place by place, as `Wordle` does."""
        copies, letters = np.arange(self.num_envs), self.tables.letters[actions]
        knowledge = self._observations[:, :-1].reshape(self.num_envs, -1, NUM_LETTERS)
        for place in range(NUM_LETTERS):
            letter, mark = letters[:, place], patterns // 3**place % 3
            knowledge[copies, letter, place] = np.where(mark == 2, 2, 0)
            knowledge[copies[mark == 0], letter[mark == 0]] = 0
        self._observations[:, :-1] = knowledge.reshape(self.num_envs, -1)
        self._observations[:, -1] += 1

    def _begin(self, copies: np.ndarray) -> None:
        self.fits[copies] = True
        self._observations[copies, :-1], self._observations[copies, -1] = 1, 0

    def _seed(self, seed: int) -> None:
        self._streams = stream(seed, np.arange(self.num_envs, dtype=np.uint64))
        self._num_draws = np.zeros(self.num_envs, dtype=np.uint64)

    def _infos(self) -> dict[str, Any]:
        return {"num_fitting": self.fits.sum(axis=1)}
