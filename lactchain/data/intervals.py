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


def explained_share(
    values: np.ndarray, groups: np.ndarray, units: np.ndarray, seed: int = 0
) -> tuple[float, Interval]:
    """Share of the variance of N values that their groups explain: the ceiling of any R2 by these.

    What is left is half the mean squared difference of two values of a group, as in a one-way
    analysis of variance (Fisher 1925), but of two units: values of one unit share their luck. NaN
    where no group has values of two, or the values do not vary.

    The interval is by halves of the units. Half a sample varies about the whole as the whole does
    about the truth, and holds no value twice, as a bootstrap's does, which would pass for values
    that agree. Source: Hartigan 1969, "Using subsample values as typical values".

    Args:
        groups: (N,) numbers from 0.
        units: (N,) numbers from 0 of what was drawn independently, such as episodes.
    """
    num_units = units.max() + 1
    # A cell is what one unit has in one group; its sums are of 1, of the values less their overall
    # mean, and of the squares of these.
    cells, cell_of = np.unique(groups * num_units + units, return_inverse=True)
    cell_groups, cell_units = np.divmod(cells, num_units)
    centred = values - values.mean()
    sums = np.stack([np.bincount(cell_of, centred**power) for power in range(3)])
    draws, found = np.random.default_rng(seed), []
    for _ in range(NUM_HALVES):
        half = (draws.permutation(num_units) % 2 == 0)[cell_units]
        found.append(_explained(cell_groups[half], sums[:, half]))
    low, high = np.percentile(found, [2.5, 97.5])
    return _explained(cell_groups, sums), (float(low), float(high))


def _explained(groups: np.ndarray, sums: np.ndarray) -> float:
    """The share, of the groups (C,) of cells and their sums (3, C)."""
    count, total, square = of_groups = np.stack([np.bincount(groups, column) for column in sums])
    own = [np.bincount(groups, column) for column in _pairs(*sums)]
    pairs, squares = _pairs(*of_groups) - own
    weights = np.where(pairs > 0, count, 0)
    mean, mean_square = total.sum() / count.sum(), square.sum() / count.sum()
    variance = mean_square - mean**2
    if variance <= 1e-12 * mean_square:  # the values are one value, but for rounding
        return math.nan
    with np.errstate(all="ignore"):
        within = np.sum(weights * np.nan_to_num(squares / pairs)) / weights.sum()
    return float(1 - within / variance)


def _pairs(count: np.ndarray, total: np.ndarray, square: np.ndarray) -> np.ndarray:
    """(2, G): the number of ordered pairs of values, and half their squared differences."""
    return np.stack([count**2, count * square - total**2])
