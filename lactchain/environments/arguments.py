"""Checks of what worlds are given, which several of them share."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np

from lactchain.types import Reward


def at_least_one(name: str, value: object) -> int:
    """The value of an argument that counts something.

    Raises:
        ValueError: it is no whole number, or less than 1.
    """
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}")
    return int(value)


def start_state(options: Mapping[str, Any] | None) -> Any:
    """The state that the copies of a batch are told to begin in; None where they draw it.

    Raises:
        ValueError: another option is given, which a batch has no use for.
    """
    unknown = (options or {}).keys() - {"state"}
    if unknown:
        raise ValueError(f"options: expected state, or none, got {sorted(unknown)}")
    return (options or {}).get("state")


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
