"""Whether servers compute what the weights here do: their log-probabilities beside ours."""

from collections.abc import Sequence

import numpy as np

from lactchain.errors import ServerError
from lactchain.serving.policy import ServedActor


def drift(
    actor: ServedActor, observations: Sequence[str], seeds: Sequence[int]
) -> dict[str, float]:
    """How far log-probabilities of the servers' tokens are from those that are computed here.

    `served/mean_drift` and `served/largest_drift` are of |log p here - log p there| of a token.
    `served/effective_samples` is the share of the completions that are left as a sample of the
    weights here, (Σw)² / (B Σw²) with w = p here / p there of each (Kong 1992, "A note on
    importance sampling using standardized weights").

    Args:
        actor: it answers freely, with tokens.
        observations, seeds: B of them.
    """
    actions = actor.act(observations, seeds)
    here = actor.local.token_log_probs(observations, actions)
    rows = [ours - action.logprobs for ours, action in zip(here, actions, strict=True)]
    distances = np.abs(np.concatenate(rows))
    sums = np.array([row.sum() for row in rows])
    weights = np.exp(sums - sums.max())  # whose scale is of no matter, and goes beyond all numbers
    return {
        "served/mean_drift": float(distances.mean()),
        "served/largest_drift": float(distances.max()),
        "served/effective_samples": float(weights.sum() ** 2 / (weights**2).sum() / len(rows)),
    }


def check_drift(figures: dict[str, float], most: float, version: str) -> None:
    """Raises `ServerError` where servers compute something else than the weights here."""
    if not (found := figures["served/mean_drift"]) <= most:
        raise ServerError(
            f"{version}: expected log-probabilities within {most:g} of those of the weights here, "
            f"got {found:.3g} a token on average; the servers have other weights or flags: see "
            "`lactchain doctor`, or raise actor.served.max_drift"
        )
