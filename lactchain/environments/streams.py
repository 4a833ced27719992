"""Random numbers of many copies at once, each from a stream of its own.

SplitMix64 (Steele, Lea, Flood 2014), a counter-based generator: draw k of a stream is a function of
(stream, k). So a batch draws without a loop, and the very same lines serve Python integers and
uint64 arrays.
"""

from __future__ import annotations

from typing import Any

_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def stream(seed: int, copy: Any) -> Any:
    """The stream of each copy under a seed."""
    return _mix(_mix(seed & _WORD) + copy * _GOLDEN & _WORD)


def draw(stream: Any, number: Any, count: Any) -> Any:
    """Draw of this number from a stream, uniform in [0, count)."""
    return _mix(stream + (number + 1) * _GOLDEN & _WORD) % count


def _mix(z: Any) -> Any:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _WORD
    return z ^ (z >> 31)
