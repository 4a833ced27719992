"""How sure a figure is: intervals that hold the truth with 95 %."""

import math
from collections.abc import Callable

import numpy as np

Interval = tuple[float, float]

Z = 1.959963984540054
"""Quantile .975 of the normal distribution."""
NUM_RESAMPLES = 1000
NUM_HALVES = 200


def share_interval(successes: float, trials: int) -> Interval:
    """Where a share lies of which `trials` > 0 independent trials were drawn.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    share, square = successes / trials, Z**2 / trials
    middle = (share + square / 2) / (1 + square)
    half = Z * np.sqrt((share * (1 - share) + square / 4) / trials) / (1 + square)
    return tuple(float(np.clip(limit, 0, 1).round(12)) for limit in (middle - half, middle + half))


def paired_interval(before: np.ndarray, after: np.ndarray) -> Interval:
    """Where the mean of `after` less that of `before` lies, of N > 1 things measured twice.

    By the normal approximation to the mean of the differences.
    """
    differences = np.subtract(after, before)
    half = Z * differences.std(ddof=1) / math.sqrt(len(differences))
    return float(differences.mean() - half), float(differences.mean() + half)


def resampled_interval(
    sums: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], seed: int = 0
) -> Interval:
    """Where a statistic of sums lies, by the bootstrap over what was drawn independently.

    Source: Efron 1979, "Bootstrap methods: another look at the jackknife"; percentiles.

    Args:
        sums: (N, K), K sums in each of N > 0 independent units, such as episodes.
        statistic: figures (B,) of the sums (K, B) over all units of B resamples; those that are
            not finite are left out.

    Returns:
        NaN where no figure is finite.
    """
    draws, units = np.random.default_rng(seed), len(sums)
    counts = draws.multinomial(units, np.full(units, 1 / units), size=NUM_RESAMPLES)
    with np.errstate(all="ignore"):  # a resample may lack what a ratio is over
        found = statistic((counts @ sums).T)
    found = found[np.isfinite(found)]
    if not len(found):
        return math.nan, math.nan
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def error_sums(predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
    """(N, 4) sums in single predictions, of which `r2` and `rmse` are made."""
    return np.stack([np.ones_like(true), true, true**2, (predicted - true) ** 2], axis=1)


def r2(sums: np.ndarray) -> np.ndarray:
    """Share of the variance that is explained, of sums (4, B) as `error_sums` has them."""
    count, total, squares, errors = sums
    return 1 - errors / (squares - total**2 / count)


def rmse(sums: np.ndarray) -> np.ndarray:
    """Root of the mean squared error, of sums (4, B) as `error_sums` has them."""
    count, _, _, errors = sums
    return np.sqrt(errors / count)


def explained_share(values: np.ndarray, groups: np.ndarray) -> float:
    """Share of the variance of N values that their groups explain: the ceiling of any R2 by these.

    One-way analysis of variance: what is left is the mean square within groups (Fisher 1925). NaN
    where no group has two values, or the values do not vary.

    Args:
        groups: (N,) numbers from 0.
    """
    sizes = np.bincount(groups)
    with np.errstate(all="ignore"):
        means = np.bincount(groups, values) / sizes
        within = np.square(values - means[groups]).sum() / (len(values) - np.count_nonzero(sizes))
        return float(1 - within / values.var())


def explained_share_interval(
    values: np.ndarray, groups: np.ndarray, units: np.ndarray, seed: int = 0
) -> Interval:
    """Where that share lies, by halves of the units (N,), such as episodes, that were drawn.

    Half a sample varies about the whole as the whole does about the truth, and holds no value
    twice, as a bootstrap's does, which would pass for values that agree. Source: Hartigan 1969,
    "Using subsample values as typical values".
    """
    draws, found = np.random.default_rng(seed), []
    for _ in range(NUM_HALVES):
        half = (draws.permutation(units.max() + 1) % 2 == 0)[units]
        found.append(explained_share(values[half], groups[half]))
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)
