"""Random numbers of many rows at once, each from a stream of its own.

SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators"), a
counter-based generator: draw k of a stream is a function of (stream, k). So a batch draws without
a loop, a row draws the same whatever else is in the batch, and the very same lines serve Python
integers and arrays of uint64.
"""

from typing import Any

import numpy as np

_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def stream(seed: int, copy: Any) -> Any:
    """The stream of each copy of an environment under a seed."""
    return _mix(_mix(seed & _WORD) + copy * _GOLDEN & _WORD)


def draw(stream: Any, number: Any, count: Any) -> Any:
    """Draw number `number` of a stream, uniform in [0, count)."""
    return _word(stream, number) % count


def uniform(stream: np.ndarray, number: int) -> np.ndarray:
    """Draw number `number` of each of B streams (B,), uniform in [0, 1): its first 53 bits."""
    word = _word(stream.astype(np.uint64), np.array([number], dtype=np.uint64))
    return (word >> 11).astype(np.float64) * 2.0**-53


def _word(stream: Any, number: Any) -> Any:
    return _mix(stream + (number + 1) * _GOLDEN & _WORD)


def _mix(z: Any) -> Any:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _WORD
    return z ^ (z >> 31)
