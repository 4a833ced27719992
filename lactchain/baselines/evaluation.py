"""Evaluation: whole episodes from given seeds, for any agent, ours or another library's.

Every copy of the environment plays exactly one episode. Counting the first so many episodes that
end would favour short ones; summing rewards over a number of steps gives every policy of CartPole
the same score.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.settings import WorldConfig
from lactchain.environments.faults import undone
from lactchain.environments.registry import find_env
from lactchain.errors import EnvironmentFault, Interrupted
from lactchain.functional.random_streams import env_seeds
from lactchain.runs.process import stop_requested

MOST_STEPS = 200_000
"""Of an episode in an evaluation, which would else never end in a world without a time limit."""

Act = Callable[[np.ndarray], np.ndarray]
"""Observations (P, N, …) to actions (P, N, …)."""
# Seeds of the episodes that summaries report on; nothing is chosen by these.
FINAL_SEED = 2_000_000


@dataclass(frozen=True)
class Evaluation:
    """Episodes of P members, E each, all from the same E seeds."""

    returns: np.ndarray  # (P, E), undiscounted
    lengths: np.ndarray  # (P, E), steps

    def summary(self, member: int = 0, success_return: float | None = None) -> dict[str, float]:
        """Mean, deviation and length of one member's episodes; how many return `success_return`."""
        returns = self.returns[member]
        figures = {
            "episode_return": float(returns.mean()),
            "episode_return_std": float(returns.std()),
            "episode_length": float(self.lengths[member].mean()),
        }
        if success_return is not None:
            figures["success_rate"] = float((returns >= success_return).mean())
        return figures


def evaluate_members(
    act: Act, id: str, num_members: int = 1, num_episodes: int = 50, seed: int = 0, **kwargs: Any
) -> Evaluation:
    """Plays the same episodes with every member.

    Args:
        act: observations (P, N, …) to actions (P, N, …), such as
            `lambda observations: agent.act(observations, greedy=True)`.
        id: a Gymnasium id, whose arguments are in `kwargs`.
        num_members: P.
        num_episodes: E.
        seed: from which that of each episode is derived.

    Raises:
        EnvironmentFault: an episode does not end.
        NonFiniteError: a reward or an observation is NaN or infinite.
        Interrupted: the process was asked to stop.
    """
    seeds = env_seeds(seed, "evaluation", num_episodes) * num_members
    envs = MemberEnvs(id, num_members, num_episodes, seeds, **kwargs)
    try:
        returns, lengths = np.zeros(envs.shape), np.zeros(envs.shape, dtype=np.int64)
        playing, observations = np.ones(envs.shape, dtype=bool), envs.observations
        play = undone(envs.envs.step)  # without what only learning needs, a third of the time
        while playing.any():
            if stop_requested():
                raise Interrupted(stop_requested(), "stopped in an evaluation")
            actions = np.asarray(act(observations))
            flat = actions.reshape(-1, *actions.shape[2:])
            after, rewards, terminated, truncated, _ = play(flat)
            envs.check_finite("reward", rewards, flat)
            envs.check_finite("observation", after, flat)
            observations = after.reshape(*envs.shape, *after.shape[1:])
            returns += np.where(playing, rewards.reshape(envs.shape), 0.0)
            lengths += playing
            playing &= ~(terminated | truncated).reshape(envs.shape)
            if lengths.max() >= MOST_STEPS and playing.any():
                raise EnvironmentFault(
                    f"{id}: an episode of an evaluation has not ended after {MOST_STEPS:,} steps;"
                    " give the world a time limit, such as --environment.kwargs"
                    " '{\"max_episode_steps\": 1000}'"
                )
        return Evaluation(returns, lengths)
    finally:
        envs.close()


def evaluate_agent(agent: Any, world: WorldConfig, num_episodes: int, seed: int) -> Evaluation:
    """Plays greedy episodes with every member of a `Population`; see `evaluate_members`."""
    act = partial(agent.act, greedy=True)
    return evaluate_members(act, world.id, agent.num_members, num_episodes, seed, **world.kwargs)


def success_return(world: WorldConfig) -> float | None:
    """Return from which an episode of this world is a success; None where none is known."""
    stated = world.success_return
    return find_env(world.id).reward_threshold if stated is None else stated
