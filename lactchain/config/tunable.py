"""Tunables: the numbers of a config class that a search may change, declared where the field is.

A field made by `tunable(default, low, high)` is an ordinary field that also knows its range and its
scale. Agents and language trainers declare theirs alike, so one search serves both.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from lactchain.config.parsing import fields_of, flatten, with_values
from lactchain.errors import ConfigError

Config = TypeVar("Config")


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
