"""Scripted policies by the names that configurations use, and mixtures of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import gymnasium as gym

from lactchain.environments.language import LanguageEnv
from lactchain.environments.maze import Maze
from lactchain.environments.scripted import (
    FittingWords,
    Mixture,
    OpenMoves,
    OptimalChains,
    RandomChains,
)
from lactchain.environments.wordle import Wordle
from lactchain.errors import ConfigError
from lactchain.types import Policy

POLICIES: dict[str, tuple[type[gym.Env], Callable[[LanguageEnv], Policy]]] = {
    "optimal": (gym.Env, OptimalChains),
    "random": (gym.Env, lambda env: RandomChains(env.grammar)),
    "legal": (Maze, lambda env: OpenMoves(env.grammar)),
    "consistent": (Wordle, FittingWords),
    "informed": (Wordle, lambda env: FittingWords(env, informed=True)),
}
"""Scripted policies by the names that configurations use, each with the world that it plays in."""


def behavior_policy(env: LanguageEnv, shares: Mapping[str, float]) -> Policy:
    """Scripted policies, each answering its share of the decisions, by one coin for each.

    Args:
        env: what the policies read; it is left reset.
        shares: names of `POLICIES` with probabilities.

    Raises:
        ConfigError: there is no such policy, or it does not play in this world.
    """
    parts = [(_policy(env, name), share) for name, share in shares.items()]
    policy, below = parts[-1][0], 1.0 - parts[-1][1]
    for part, share in reversed(parts[:-1]):
        # All mixtures toss the same coin for a decision, so the thresholds are cumulative.
        policy, below = Mixture(part, policy, min(below, 1.0)), below - share
    if len(parts) > 1:
        policy.name = ", ".join(f"{share:.3g} {part.name}" for part, share in parts)
    return policy


def _policy(env: LanguageEnv, name: str) -> Policy:
    if name not in POLICIES:
        raise ConfigError(f"behavior.policies: expected names of {sorted(POLICIES)}, got {name!r}")
    world, make = POLICIES[name]
    if not isinstance(env.env.unwrapped, world):
        raise ConfigError(
            f"behavior.policies: {name}: plays in {world.__name__}, not in {env.env.unwrapped}"
        )
    try:
        return make(env)
    except ValueError as error:
        raise ConfigError(f"behavior.policies: {name}: {error}") from error
