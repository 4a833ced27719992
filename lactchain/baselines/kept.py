"""What a world and its wrappers keep from one episode to the next: counts, levels, statistics.

Gymnasium has no call for it. It is read where it lies: numbers, texts, and arrays and lists of
them, among the attributes of each layer, and of objects in them that hold nothing else, such as the
running means of `NormalizeObservation`.
"""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

MOST_KEPT = 30_000
"""Entries of an array or a list; longer ones are data, such as a table of prices."""

_SIMPLE = frozenset((bool, int, float, str, type(None)))
_Place = tuple[str, dict[str, Any], str]
"""Its key, the attributes among which it is, and its name there."""


class Kept:
    """Looks where a world may keep something; found once, since every episode asks."""

    def __init__(self, env: gym.Env) -> None:
        self._layers = {f"{n} {type(e).__name__}": vars(e) for n, e in enumerate(_layers(env))}
        self._size = 0
        self._places: list[_Place] = []
        self._parts: list[tuple[str, dict[str, Any], str]] = []
        self._made = self.now()

    def now(self) -> dict[str, Any]:
        """Copies of it by layer and name."""
        if (size := sum(map(len, self._layers.values()))) != self._size:
            self._size = size
            self._find()
        return {
            key: value if type(value := held[name]) in _SIMPLE else _copy(value)
            for key, held, name in self._held()
            if name in held
        }

    def changed(self, held: dict[str, Any]) -> dict[str, Any]:
        """What of it the world was not made with, as arrays and what JSON can hold."""
        made = self._made
        return {
            key: value
            for key, value in held.items()
            if _is_kept(value) and (key not in made or not _alike(value, made[key]))
        }

    def put_back(self, changed: dict[str, Any]) -> None:
        """Makes the world keep this, and else what it was made with."""
        self.now()
        held = self._layers | self._inside()
        for key, value in (self._made | changed).items():
            place, name = key.rsplit(".", 1)
            if place in held and not _alike(_copy(held[place].get(name)), value):
                held[place][name] = _copy(value)

    def _held(self) -> list[_Place]:
        inside = self._inside()
        return self._places + [
            (f"{p}.{name}", held, name) for p, held in inside.items() for name in held
        ]

    def _inside(self) -> dict[str, dict[str, Any]]:
        """Attributes of objects within layers, which may be other objects by now."""
        return {place: _inner(held.get(name)) for place, held, name in self._parts}

    def _find(self) -> None:
        self._places, self._parts = [], []
        for place, held in self._layers.items():
            for name, value in held.items():
                key, inner = f"{place}.{name}", _inner(value)
                if _is_kept(value):
                    self._places.append((key, held, name))
                elif inner and all(map(_is_kept, inner.values())):
                    self._parts.append((key, held, name))


def _layers(env: gym.Env) -> Iterator[gym.Env]:
    """Wrappers from the outermost to the world."""
    yield env
    if isinstance(env, gym.Wrapper):
        yield from _layers(env.env)


def _inner(part: Any) -> dict[str, Any]:
    """The attributes of an object; none of what is constant, or no object."""
    inner = getattr(part, "__dict__", None)
    return inner if type(inner) is dict and not isinstance(part, gym.Space) else {}


def _alike(value: Any, other: Any) -> bool:
    if not isinstance(value, np.ndarray):
        return type(value) is type(other) and value == other
    same = isinstance(other, np.ndarray) and value.dtype == other.dtype
    return same and np.array_equal(value, other)


def _is_kept(value: Any) -> bool:
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biuf" and value.size <= MOST_KEPT
    if type(value) is list:
        return len(value) <= MOST_KEPT and all(type(entry) in _SIMPLE for entry in value)
    return type(value) in _SIMPLE


def _copy(value: Any) -> Any:
    """Scalars of numpy become arrays, which keep their type on disk."""
    if type(value) in _SIMPLE:
        return value
    if isinstance(value, np.ndarray | np.generic):
        return np.array(value)
    return list(value) if type(value) is list else value
