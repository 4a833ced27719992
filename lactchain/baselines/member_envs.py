"""The copies of an environment that the members of a population play.

P members with N copies each are P·N copies of one vector environment. What every agent has to get
right is done here once: `terminated` and `truncated` stay apart, the true successor of an episode's
last step is handed out instead of the start of the next one, every step of every copy is counted,
and episodes are summed from their first step to their last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.wrappers.vector import RescaleAction

from lactchain.baselines.settings import WorldConfig
from lactchain.baselines.state_files import Stored
from lactchain.baselines.transitions import Minibatch
from lactchain.baselines.vector import make_vector_env
from lactchain.environments.faults import undone
from lactchain.environments.registry import find_env, not_taken
from lactchain.errors import ConfigError, LactChainError, NonFiniteError
from lactchain.functional.random_streams import env_seeds


@dataclass(frozen=True)
class Transition(Minibatch):
    """One step of all copies, (P, N, …); successors are those before any reset.

    The successor of an episode that was cut (`truncated`) keeps its value.
    """

    truncated: np.ndarray


class FinishedEpisode(NamedTuple):
    """One finished episode: who played it, its undiscounted sum of rewards, and its steps."""

    member: int
    episode_return: float
    length: int


class MemberEnvs(Stored):
    """P·N copies of an environment, seen as (P, N).

    Args:
        id: a Gymnasium id, whose arguments are in `kwargs`.
        num_members: P.
        num_envs: N, copies of each member.
        seed: from which that of each copy's first reset is derived; or those seeds themselves.

    Attributes:
        observations: (P, N, …), where the next step begins.
        num_env_steps: steps of all copies of all members so far.
        episodes: those that ended since they were last taken by `pop_episodes`.
    """

    stored = "observations", "num_env_steps", "_returns", "_lengths", "envs"

    def __init__(
        self,
        id: str,
        num_members: int,
        num_envs: int,
        seed: int | Sequence[int] = 0,
        **kwargs: Any,
    ) -> None:
        self.shape = (num_members, num_envs)
        self.envs = make_numeric_env(id, num_members * num_envs, **kwargs)
        self.observation_space = self.envs.single_observation_space
        self.action_space = self.envs.single_action_space
        if isinstance(seed, int):
            seed = env_seeds(seed, "copy", num_members * num_envs)
        self._seeds = seed
        start, _ = self.envs.reset(seed=self._seeds)
        self.check_finite("observation", start)
        self.observations = self._members(np.array(start))
        self.num_env_steps = 0
        self.episodes: list[FinishedEpisode] = []
        self._returns = np.zeros(self.shape)
        self._lengths = np.zeros(self.shape, dtype=np.int64)

    @undone
    def step(self, actions: np.ndarray) -> Transition:
        """Plays one action (P, N, …) in every copy.

        Raises:
            NonFiniteError: a reward or an observation is NaN or infinite.
        """
        flat = actions.reshape(-1, *actions.shape[2:])
        *step, infos = self.envs.step(flat.copy())
        # Copies: a batch may write each step over the last one.
        after, rewards, terminated, truncated = map(np.array, step)
        self.check_finite("reward", rewards, flat)
        successors, ended = after, terminated | truncated
        if ended.any():
            successors = after.copy()
            successors[ended] = np.stack(infos["final_obs"][ended])
        self.check_finite("observation", successors, flat)
        columns = rewards, terminated, successors, truncated
        step = Transition(self.observations, actions, *map(self._members, columns))
        self.observations = self._members(after)
        self.num_env_steps += rewards.size
        self._returns += step.rewards
        self._lengths += 1
        if successors is not after:
            self.check_finite("observation", after)
            self._note_episodes(ended.reshape(self.shape))
        return step

    def pop_episodes(self) -> list[FinishedEpisode]:
        """The episodes that ended since this was last called."""
        episodes, self.episodes = self.episodes, []
        return episodes

    def close(self) -> None:
        """Closes the environment."""
        self.envs.close()

    def check_finite(self, name: str, rows: np.ndarray, actions: np.ndarray | None = None) -> None:
        """Refuses rewards or observations (P·N, …) that are not finite, which actions led to."""
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            copy = int(np.argwhere(~np.isfinite(rows))[0][0])
            action = None if actions is None else actions[copy]
            raise NonFiniteError(
                f"environment copy {copy}: {name} {rows[copy]}"
                f" (first seed {self._seeds[copy]}, last action {action})"
            )

    def _members(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(*self.shape, *rows.shape[1:])

    def _note_episodes(self, ended: np.ndarray) -> None:
        for member, place in zip(*np.nonzero(ended), strict=True):
            total, length = self._returns[member, place], self._lengths[member, place]
            self.episodes.append(FinishedEpisode(int(member), float(total), int(length)))
        self._returns[ended] = 0.0
        self._lengths[ended] = 0


def make_numeric_env(id: str, num_envs: int, /, **kwargs: Any) -> VectorEnv:
    """Copies of an environment for agents: resumable, continuous actions within [-1, 1].

    Raises:
        ConfigError: there is no such environment, it is one of texts, it does not take these
            arguments, or the actions have no bounds.
    """
    if find_env(id).id not in gym.registry:
        raise ConfigError(f"environment.id: {id} is played in words; expected a Gymnasium id")
    try:
        envs = make_vector_env(id, num_envs, **kwargs)
    except (LactChainError, MemoryError):
        raise
    except Exception as error:
        raise not_taken(id, kwargs, error) from error
    space = envs.single_action_space
    if not isinstance(space, spaces.Box):
        return envs
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        envs.close()
        raise ConfigError(f"{id}: expected actions with finite bounds, got {space}")
    ones = np.ones(space.shape, dtype=space.dtype)
    return RescaleAction(envs, -ones, ones)


def spaces_of(world: WorldConfig) -> tuple[spaces.Space, spaces.Space]:
    """Of observations and of actions, of a single environment."""
    envs = make_numeric_env(world.id, 1, **world.kwargs)
    envs.close()
    return envs.single_observation_space, envs.single_action_space
