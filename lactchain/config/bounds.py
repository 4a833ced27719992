"""Numbers of config fields: their bounds, and the ranges of those that a search may change.

    @dataclass(frozen=True)
    class LoopConfig(Bounded):
        num_members: AtLeast1 = 1
        tau: Annotated[float, Bound(above=0, at_most=1)] = tunable(0.005, 0.001, 0.1, log=True)

Bounds stand beside the type: `--help` prints them, and `LoopConfig(tau=2)` raises `ValueError("tau:
expected a number in (0, 1], got 2")`. A tunable is an ordinary field that also knows its range and
its scale. Agents and language trainers declare theirs alike, so one search serves both.
"""

import math
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Annotated, Any, TypeVar

from lactchain.config.parsing import fields_of, flatten, with_values
from lactchain.errors import ConfigError

Config = TypeVar("Config")


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


@dataclass(frozen=True)
class Tunable:
    """The range of a number: [low, high], on a linear or logarithmic scale, whole or not."""

    low: float
    high: float
    log: bool = False
    integer: bool = False

    def at(self, share: float) -> float | int:
        """The value at a share in [0, 1] of the way from low to high."""
        if self.log:
            value = math.exp(math.log(self.low) + share * math.log(self.high / self.low))
        else:
            value = self.low + share * (self.high - self.low)
        return self.clip(value)

    def share(self, value: float) -> float:
        """Where a value lies on the way from low to high, in [0, 1]; the inverse of `at`."""
        value = min(max(value, self.low), self.high)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def step(self, value: float, by: float) -> float | int:
        """The value moved by a share of the range; whole numbers move by at least 1."""
        moved = self.at(min(max(self.share(value) + by, 0.0), 1.0))
        if self.integer and moved == value and by != 0:
            moved = self.clip(value + math.copysign(1, by))
        return moved

    def clip(self, value: float) -> float | int:
        """The nearest value in the range, a whole one where it must be."""
        value = min(max(value, self.low), self.high)
        return round(value) if self.integer else float(value)


def tunable(
    default: float, low: float, high: float, *, log: bool = False, integer: bool = False
) -> Any:
    """A config field that a search may set within [low, high]; its default may lie outside.

    With `log` factors matter rather than differences; with `integer` only whole numbers make sense.
    """
    return field(default=default, metadata={"tunable": Tunable(low, high, log, integer)})


def tunables(config_class: type) -> dict[str, Tunable]:
    """The tunables of a config class and of the config classes in it, by dotted name."""
    found = ((name, item.metadata) for name, item, _ in fields_of(config_class))
    return {name: metadata["tunable"] for name, metadata in found if "tunable" in metadata}


def tunable_values(config: Any) -> dict[str, float]:
    """The values of a config's tunables, by dotted name; those of absent parts are left out."""
    values = dict(flatten(asdict(config)))
    return {name: values[name] for name in tunables(type(config)) if values.get(name) is not None}


def with_tunables(config: Config, values: Mapping[str, float]) -> Config:
    """The config with some tunables set, to values within their ranges.

    Raises:
        ConfigError: a name is no tunable, a value is out of its range or not whole, or the config
            class refuses the combination.
    """
    known = tunables(type(config))
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"{name}: no such tunable; there are {', '.join(known)}")
        wanted = known[name]
        if not wanted.low <= value <= wanted.high or value != wanted.clip(value):
            kind = "a whole number" if wanted.integer else "a number"
            raise ConfigError(
                f"{name}: expected {kind} in [{wanted.low}, {wanted.high}], got {value!r}"
            )
    try:
        return with_values(config, values)
    except ValueError as error:
        raise ConfigError(str(error)) from error
