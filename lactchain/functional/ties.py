"""Which scores are equal, and so who is the best, decided by rule where rounding would decide.

The order in which a processor adds, and the batch that a row is in, change the last bits of a
score. Scores that differ by no more than that are equal; who uses them says who wins among equals.
"""

import numpy as np

EQUAL = 1e-5
"""Scores of networks (float32) are equal within this share of the greatest, or of 1 if less."""


def is_greatest(scores: np.ndarray, axis: int = -1, tolerance: float = EQUAL) -> np.ndarray:
    """Which scores equal the greatest along an axis, of the shape of the scores."""
    greatest = scores.max(axis=axis, keepdims=True)
    return scores >= greatest - _margin(greatest, tolerance)


def levelled(scores: np.ndarray) -> np.ndarray:
    """Scores (C,) in which equal ones are the same number: the greatest of them."""
    levels, greatest = np.array(scores, dtype=np.float64), np.nan
    for place in np.argsort(-levels, kind="stable"):
        if greatest - levels[place] <= _margin(greatest):
            levels[place] = greatest
        greatest = levels[place]
    return levels


def _margin(greatest: np.ndarray, tolerance: float = EQUAL) -> np.ndarray:
    return tolerance * np.maximum(1.0, np.abs(greatest))
