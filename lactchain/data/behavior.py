"""Scripted policies by the names that configurations use, and mixtures of them."""

from __future__ import annotations

from collections.abc import Mapping

from lactchain.environments.language import LanguageEnv
from lactchain.environments.scripted import POLICIES, Mixture
from lactchain.errors import ConfigError
from lactchain.types import Policy


def behavior_policy(env: LanguageEnv, shares: Mapping[str, float]) -> Policy:
    """Scripted policies, each answering its share of the decisions, by one coin for each.

    Args:
        env: what the policies read; it is left reset.
        shares: names of policies, those of every world (`scripted.POLICIES`) or of this one
            (`TextView.policies`), with probabilities.

    Raises:
        ConfigError: no such policy plays in this world.
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
    known = POLICIES | env.view.policies
    if name not in known:
        raise ConfigError(
            f"behavior.policies: expected names of {sorted(known)}, which play in"
            f" {env.env.unwrapped}, got {name!r}"
        )
    try:
        return known[name](env)
    except ValueError as error:
        raise ConfigError(f"behavior.policies: {name}: {error}") from error
