"""Random numbers of many rows at once, each from a stream of its own.

SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators"): draw k of a
stream is a function of (stream, k). So a batch draws without a loop, a row draws the same whatever
else is in the batch, and the same lines serve Python integers and arrays of uint64.
"""

import hashlib
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


def derive_seed(*parts: int | str) -> int:
    """A seed below 2**63 that depends on every part: of a run, an episode, a decision.

    Engines that generate take seeds of 63 bits, and a row is to draw the same there as here.
    """
    digest = hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % 2**63


def env_seeds(seed: int, kind: str, count: int) -> list[int]:
    """Seeds for copies of an environment: 31 bits, which is what some worlds take at most.

    Counting up from the seed of a run would give copies of run 0 the dice of copies of run 1.
    """
    return [derive_seed(seed, kind, copy) % 2**31 for copy in range(count)]
