"""Checks that the arguments of several worlds share."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any


def at_least_one(name: str, value: object) -> int:
    """The value of an argument that counts something.

    Raises:
        ValueError: it is no whole number, or less than 1.
    """
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}")
    return int(value)


def start_state(options: Mapping[str, Any] | None) -> Any:
    """The state that the copies of a batch are told to begin in; None where they draw it.

    Raises:
        ValueError: another option is given, which a batch has no use for.
    """
    unknown = (options or {}).keys() - {"state"}
    if unknown:
        raise ValueError(f"options: expected state, or none, got {sorted(unknown)}")
    return (options or {}).get("state")
