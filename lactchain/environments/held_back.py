"""States that are held back from practice: which ones, the same in every stage and every run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from lactchain.environments.views import State
from lactchain.errors import ConfigError


@dataclass(frozen=True)
class HeldBack:
    """The states that are never practised; none by default.

    Attributes:
        by: the fields that tell them from the others; none: all fields.
        values: what these fields hold in them, as JSON.
    """

    by: tuple[str, ...] = ()
    values: frozenset[str] = frozenset()

    @classmethod
    def choose(cls, starts: Sequence[State], share: float, by: Sequence[str] = ()) -> HeldBack:
        """The first share of what the fields hold in the start states, by rank of a hash of it.

        So the choice depends on the states alone: neither on a seed nor on their order.

        Raises:
            ConfigError: the states have no such field, or none would be held back, or none left.
        """
        if unknown := set(by) - set(starts[0]):
            raise ConfigError(
                "environment.held_back.by: expected fields of a state, out of"
                f" {sorted(starts[0])}, got {sorted(unknown)}"
            )
        values = sorted({_value(state, by) for state in starts}, key=_rank)
        count = round(share * len(values))
        if not 0 < count < len(values):
            raise ConfigError(
                "environment.held_back.share: expected to hold back some starts and to leave some,"
                f" {share} of {len(values)} is {count}; change the share or held_back.by, or hold"
                " none back"
            )
        return cls(tuple(by), frozenset(values[:count]))

    def __contains__(self, state: State) -> bool:
        return bool(self.values) and _value(state, self.by) in self.values

    def __bool__(self) -> bool:
        return bool(self.values)


def _value(state: State, by: Sequence[str]) -> str:
    return json.dumps({name: state[name] for name in by or state}, sort_keys=True)


def _rank(value: str) -> bytes:
    return hashlib.blake2b(value.encode(), digest_size=8).digest()
