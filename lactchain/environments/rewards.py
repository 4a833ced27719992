"""Rewards of one's own in numeric worlds: `lactchain.types.Reward`, checked and tabulated."""

from __future__ import annotations

import numpy as np

from lactchain.types import Reward


def rewards_of(
    scheme: Reward, state: np.ndarray, action: np.ndarray, next_state: np.ndarray
) -> np.ndarray:
    """Rewards (B,) of B transitions between observation rows (B, D) by actions (B,).

    Raises:
        ValueError: the scheme gives other than B finite numbers.
    """
    rewards = np.asarray(scheme.reward(state, action, next_state), dtype=float)
    if rewards.shape != action.shape or not np.isfinite(rewards).all():
        raise ValueError(
            f"reward: expected {len(action)} finite numbers for as many transitions, got"
            f" {str(rewards)[:80]} of shape {rewards.shape}"
        )
    return rewards


def tabulate(scheme: Reward, observations: np.ndarray, next_state: np.ndarray) -> np.ndarray:
    """Rewards (S, A) of every action in every state.

    Args:
        observations: (S, D), the row that each state is observed as.
        next_state: (S, A), the number of the state that follows.

    Raises:
        ValueError: the scheme gives other than finite numbers.
    """
    columns = [
        rewards_of(scheme, observations, np.full(len(after), action), observations[after])
        for action, after in enumerate(next_state.T)
    ]
    return np.stack(columns, axis=1)
