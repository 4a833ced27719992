"""Numbers within bounds, as types of config fields: `--help` names them, every class holds them.

    num_envs: PositiveInt = 256

Values stay plain numbers: the types are only asked whether they take them.
"""

import functools
import re
import typing
from dataclasses import dataclass, fields

from jsonargparse.typing import (
    ClosedUnitInterval,
    NonNegativeFloat,
    NonNegativeInt,
    OpenUnitInterval,
    PositiveFloat,
    PositiveInt,
    restricted_number_type,
)

AtLeastTwo = restricted_number_type("AtLeastTwo", int, (">=", 2))
AtLeastOne = restricted_number_type("AtLeastOne", float, (">=", 1))
NonPositiveFloat = restricted_number_type("NonPositiveFloat", float, ("<=", 0))
ShareBelowOne = restricted_number_type("ShareBelowOne", float, [(">=", 0), ("<", 1)])
ShareAboveZero = restricted_number_type("ShareAboveZero", float, [(">", 0), ("<=", 1)])

BOUNDS: dict[type, str] = {
    PositiveInt: "at least 1",
    NonNegativeInt: "at least 0",
    AtLeastTwo: "at least 2",
    PositiveFloat: "a positive number",
    NonNegativeFloat: "at least 0",
    NonPositiveFloat: "at most 0",
    AtLeastOne: "at least 1",
    ClosedUnitInterval: "a share in [0, 1]",
    OpenUnitInterval: "a number in (0, 1)",
    ShareBelowOne: "a share below 1",
    ShareAboveZero: "a number in (0, 1]",
}
"""What each type expects, in words."""


@dataclass(frozen=True)
class Bounded:
    """Base of config classes whose fields have such types.

    Raises:
        ValueError: naming the field whose value is out of its bounds.
    """

    def __post_init__(self) -> None:
        for name, kind in _bounded_fields(type(self)):
            value = getattr(self, name)
            try:
                kind(value)
            except (TypeError, ValueError):
                raise ValueError(f"{name}: expected {BOUNDS[kind]}, got {value!r}") from None


@functools.cache
def _bounded_fields(config_class: type) -> list[tuple[str, type]]:
    hints = typing.get_type_hints(config_class)
    kinds = ((item.name, hints[item.name]) for item in fields(config_class))
    return [(name, kind) for name, kind in kinds if kind in BOUNDS]


def expected_instead(kind: str, problem: str) -> str:
    """What a type expected and got, from what jsonargparse says of a value."""
    found = next(bound for bound in BOUNDS if bound.__name__ == kind)
    outside = re.match(r"(.+) does not conform", problem)
    if outside:
        return f"expected {BOUNDS[found]}, got {outside[1]}"
    given = re.search(r"'(.*)'$", problem) or re.match(r"(.+) not an? ", problem)
    base = "int" if issubclass(found, int) else "float"
    return f"expected {base}, got {given[1] if given else problem}"
