"""Figures over seeds: the interquartile mean and its interval."""

from collections.abc import Callable, Sequence

import numpy as np


def interquartile_mean(scores: Sequence[float]) -> float:
    """Mean of the middle half of the scores, robust as the median, efficient as the mean.

    Quarters that are no whole number of scores cut one in part. Source: Agarwal et al. 2021, "Deep
    reinforcement learning at the edge of the statistical precipice".
    """
    ordered = np.sort(np.asarray(scores, dtype=float))
    edges = np.clip(np.arange(len(ordered) + 1) / len(ordered), 0.25, 0.75)
    weights = np.diff(edges)
    return float(ordered @ weights / weights.sum())


def bootstrap_interval(
    scores: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = interquartile_mean,
    confidence: float = 0.95,
    num_samples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of a statistic over seeds, by the bootstrap (Efron 1979)."""
    values, rng = np.asarray(scores, dtype=float), np.random.default_rng(seed)
    draws = values[rng.integers(len(values), size=(num_samples, len(values)))]
    outcomes = [statistic(draw) for draw in draws]
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(outcomes, [tail, 100 - tail])
    return float(low), float(high)
