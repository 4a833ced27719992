"""Bounds of config fields, stated beside the type: `--help` prints them, construction keeps them.

    @dataclass(frozen=True)
    class LoopConfig(Bounded):
        num_members: AtLeast1 = 1
        tau: Annotated[float, Bound(above=0, at_most=1)] = 0.005

`LoopConfig(tau=2)` raises `ValueError("tau: expected a number in (0, 1], got 2")`.
"""

import math
import typing
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any


@dataclass(frozen=True)
class Bound:
    """Between what a number, or each number of a sequence, must lie."""

    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf

    def holds(self, value: float) -> bool:
        """Whether a number lies within; what is not finite does not."""
        return self.at_least <= value <= self.at_most and self.above < value < self.below

    def __repr__(self) -> str:
        low, high = max(self.at_least, self.above), min(self.at_most, self.below)
        excludes_low, excludes_high = self.above > -math.inf, self.below < math.inf
        if low == -math.inf:
            return f"a number below {high}" if excludes_high else f"at most {high}"
        if high == math.inf:
            return f"a number above {low}" if excludes_low else f"at least {low}"
        left, right = "(" if excludes_low else "[", ")" if excludes_high else "]"
        return f"a number in {left}{low}, {high}{right}"


AtLeast0 = Annotated[int, Bound(at_least=0)]
AtLeast1 = Annotated[int, Bound(at_least=1)]
Count = Annotated[int, Bound(at_least=1, at_most=10_000_000)]
"""Of what is held in memory, each by itself."""
Positive = Annotated[float, Bound(above=0)]
NonNegative = Annotated[float, Bound(at_least=0)]
NonPositive = Annotated[float, Bound(at_most=0)]
Share = Annotated[float, Bound(at_least=0, at_most=1)]
PositiveShare = Annotated[float, Bound(above=0, at_most=1)]


@dataclass(frozen=True)
class Bounded:
    """A config class that refuses numbers outside of their bounds; None is within all."""

    def __post_init__(self) -> None:
        for name, bound in _bounds(type(self)):
            value = getattr(self, name)
            numbers = value if isinstance(value, list | tuple) else (value,)
            if not all(number is None or bound.holds(number) for number in numbers):
                raise ValueError(f"{name}: expected {bound}, got {value!r}")


@cache
def _bounds(config_class: type) -> list[tuple[str, Bound]]:
    hints = typing.get_type_hints(config_class, include_extras=True)
    return [(name, bound) for name, hint in hints.items() for bound in _stated(hint)]


def _stated(hint: Any) -> list[Bound]:
    """The bounds in a type, such as `AtLeast1 | None` or `tuple[AtLeast1, ...]`."""
    bounds = [entry for entry in getattr(hint, "__metadata__", ()) if isinstance(entry, Bound)]
    return bounds + [bound for inner in typing.get_args(hint) for bound in _stated(inner)]
