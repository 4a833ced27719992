"""Newcomers and mutants: tunables, networks' shapes, weights and activations of members.

A mutation takes a config and what a member has learnt, and gives the mutant's, with a word on what
changed; where a kind has nothing to change it gives None. Nothing is changed in place: the parent
lives on beside its children.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lactchain.errors import ConfigError
from lactchain.search.growth import (
    DEEPENABLE,
    Arrays,
    add_layer,
    add_units,
    keep_units,
    merge_layer,
)
from lactchain.search.members import Learnt, change_networks
from lactchain.search.settings import EvolutionConfig, MutationConfig, SpaceConfig
from lactchain.tunable import Tunable, tunable_values, tunables, with_tunables

ATTEMPTS = 20
"""How often a draw is repeated that the config class refuses, such as a batch beyond a rollout."""

Change = dict[str, list[Any]]
"""What changed: name → [before, after]."""


class Mutant(NamedTuple):
    """A child before it has trained."""

    config: Any
    learnt: Learnt
    change: Change


def check_tunables(config: Any, names: Sequence[str]) -> None:
    """Refuses a config whose searched tunables lie outside of their ranges.

    Raises:
        ConfigError: naming tunable and range, or a name that is no tunable of the class.
    """
    present = tunable_values(config)
    with_tunables(config, {name: present[name] for name in searched_tunables(config, names)})


def searched_tunables(config: Any, names: Sequence[str]) -> dict[str, Tunable]:
    """The tunables of these names (none: all) of those parts that the config has.

    Raises:
        ConfigError: the class has no such tunable.
    """
    known, present = tunables(type(config)), tunable_values(config)
    for name in names:
        if name not in known:
            raise ConfigError(f"tunables: no tunable {name!r}; there are {', '.join(known)}")
    return {name: known[name] for name in names or known if name in present}


def draw_config(config: Any, space: SpaceConfig, rng: np.random.Generator) -> Any:
    """A config whose searched tunables, architecture and activation are drawn from their ranges.

    Raises:
        ConfigError: the config class refuses whatever is drawn.
    """
    if space.architectures:
        place = int(rng.integers(len(space.architectures)))
        config = replace(config, hidden=tuple(space.architectures[place]))
    if space.activations:
        place = int(rng.integers(len(space.activations)))
        config = replace(config, activation=space.activations[place])
    ranges = searched_tunables(config, space.tunables)

    def draw() -> Any:
        return with_tunables(
            config, {name: tunable.at(rng.random()) for name, tunable in ranges.items()}
        )

    return _first_accepted(draw)


def first_config(
    config: Any, space: SpaceConfig, settings: EvolutionConfig, place: int, rng: np.random.Generator
) -> tuple[Any, Change]:
    """The config of a member of the first generation; see `EvolutionConfig.start`."""
    if settings.start == "drawn":
        return draw_config(config, space, rng), {}
    return mutate_tunables(config, space, settings.mutation, rng) if place else (config, {})


def mutate_tunables(
    config: Any, space: SpaceConfig, settings: MutationConfig, rng: np.random.Generator
) -> tuple[Any, Change]:
    """The config with `settings.num_tunables` tunables moved by Gaussian steps on their scales."""
    ranges, before = searched_tunables(config, space.tunables), tunable_values(config)
    count = min(settings.num_tunables, len(ranges))

    def draw() -> tuple[Any, Change]:
        names = rng.choice(list(ranges), count, replace=False).tolist()
        steps = (settings.tunable_step * rng.standard_normal(count)).tolist()
        after = {
            name: ranges[name].step(before[name], step)
            for name, step in zip(names, steps, strict=True)
        }
        return with_tunables(config, after), {name: [before[name], after[name]] for name in names}

    return _first_accepted(draw)


def mutate_parameters(
    config: Any, learnt: Learnt, settings: MutationConfig, rng: np.random.Generator
) -> Mutant:
    """Gaussian noise on all weights of all networks; targets follow what they are targets of."""
    seed = int(rng.integers(2**63))

    def disturb(arrays: Arrays) -> Arrays:
        noise = np.random.default_rng(seed)
        return [a + _like(a, settings.noise * _size(a), noise) for a in arrays]

    changed = change_networks(learnt, disturb, list)
    return Mutant(config, changed, {"noise": [0.0, settings.noise]})


def mutate_activation(config: Any, learnt: Learnt, rng: np.random.Generator) -> Mutant:
    """Another activation behind the same weights."""
    hint = typing.get_type_hints(type(config))["activation"]
    others = [name for name in typing.get_args(hint) if name != config.activation]
    after = str(rng.choice(others))
    return Mutant(
        replace(config, activation=after), learnt, {"activation": [config.activation, after]}
    )


def mutate_architecture(
    config: Any, learnt: Learnt, settings: MutationConfig, rng: np.random.Generator
) -> Mutant | None:
    """More units or a layer, which leaves the function as it is; or fewer."""
    if not config.hidden:
        return None
    ways = _growths(config, settings) if rng.random() < settings.growth_share else _cuts(config)
    if not ways:
        return None
    hidden, parameters, moments = ways[rng.integers(len(ways))](rng)
    changed = change_networks(learnt, parameters, moments)
    change = {"hidden": [list(config.hidden), list(hidden)]}
    return Mutant(replace(config, hidden=hidden), changed, change)


Way = Callable[[np.random.Generator], tuple[tuple[int, ...], Callable, Callable]]


def _growths(config: Any, settings: MutationConfig) -> list[Way]:
    ways: list[Way] = []
    if min(config.hidden) < settings.max_units:
        ways.append(lambda rng: _more_units(config.hidden, settings.max_units, rng))
    if len(config.hidden) < settings.max_layers and config.activation in DEEPENABLE:
        shift = DEEPENABLE[config.activation]
        deeper = (*config.hidden, config.hidden[-1])
        ways.append(lambda _: (deeper, lambda a: add_layer(a, shift), lambda a: add_layer(a, None)))
    return ways


def _cuts(config: Any) -> list[Way]:
    ways: list[Way] = []
    if max(config.hidden) > 1:
        ways.append(lambda rng: _fewer_units(config.hidden, rng))
    if len(config.hidden) > 1:
        merged = config.hidden[:-1], merge_layer, partial(merge_layer, moments=True)
        ways.append(lambda _: merged)
    return ways


def _more_units(hidden: tuple[int, ...], most: int, rng: np.random.Generator):
    """Half as many units again in one layer, counted from the last backwards."""
    place = _pick([width < most for width in hidden], rng)
    count = min(max(hidden[place] // 2, 1), most - hidden[place])
    layer, seed = len(hidden) - place, int(rng.integers(2**63))
    wider = (*hidden[:place], hidden[place] + count, *hidden[place + 1 :])
    return (
        wider,
        lambda a: add_units(a, layer, count, np.random.default_rng(seed)),
        lambda a: add_units(a, layer, count, None),
    )


def _fewer_units(hidden: tuple[int, ...], rng: np.random.Generator):
    """A quarter of a layer's units less: those that came last, which other networks lose too."""
    place = _pick([width > 1 for width in hidden], rng)
    kept = hidden[place] - max(hidden[place] // 4, 1)
    layer = len(hidden) - place
    narrower = (*hidden[:place], kept, *hidden[place + 1 :])
    return narrower, lambda a: keep_units(a, layer, kept), lambda a: keep_units(a, layer, kept)


def _pick(allowed: list[bool], rng: np.random.Generator) -> int:
    return int(rng.choice(np.flatnonzero(allowed)))


def _first_accepted(draw: Callable[[], Any]) -> Any:
    for _ in range(ATTEMPTS - 1):
        with suppress(ConfigError):
            return draw()
    return draw()


def _size(array: np.ndarray) -> float:
    return float(np.sqrt(np.square(array).mean()))


def _like(array: np.ndarray, scale: float, rng: np.random.Generator) -> np.ndarray:
    return (scale * rng.standard_normal(array.shape)).astype(array.dtype)
