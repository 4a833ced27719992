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


class Kept:
    """Looks where a world may keep something; found once, since every episode asks."""

    def __init__(self, env: gym.Env) -> None:
        self._layers = [*_layers(env)]
        self._size = 0
        self._places: list[tuple[str, dict[str, Any], str | None, list[str]]] = []
        self._made = self.now()

    def now(self) -> dict[str, Any]:
        """Copies of it by layer and name."""
        if (size := sum(len(vars(layer)) for layer in self._layers)) != self._size:
            self._size, self._places = size, [*self._found()]
        return {
            f"{place}.{name}": _copy(attributes[name])
            for place, attributes, names in self._held()
            for name in names
            if name in attributes
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
        held = {place: attributes for place, attributes, _ in self._held()}
        for key, value in (self._made | changed).items():
            place, name = key.rsplit(".", 1)
            if place in held and not _alike(_copy(held[place].get(name)), value):
                held[place][name] = _copy(value)

    def _held(self) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
        for place, attributes, part, names in self._places:
            yield place, attributes if part is None else _inner(attributes.get(part)), names

    def _found(self) -> Iterator[tuple[str, dict[str, Any], str | None, list[str]]]:
        """Place, attributes of its layer, the object in them if any, and names in that."""
        for depth, layer in enumerate(self._layers):
            place, attributes = f"{depth} {type(layer).__name__}", vars(layer)
            yield place, attributes, None, [n for n, v in attributes.items() if _is_kept(v)]
            for name, part in attributes.items():
                inner = _inner(part)
                if inner and all(map(_is_kept, inner.values())):
                    yield f"{place}.{name}", attributes, name, [*inner]


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
