"""Newcomers and mutants: tunables, networks' shapes, weights and activations of members.

A mutation takes a config and what a member has learnt, and gives the mutant's, with a word on what
changed; where a kind has nothing to change it gives None. Nothing is changed in place: the parent
lives on beside its children.

Growth leaves the function as it is (after Chen, Goodfellow & Shlens 2016, "Net2Net"): new units
begin without outgoing weights, and a new layer is the identity where the activation lets one
through. So a mutation of the architecture is judged by what it can learn, not by what it forgot.
Shrinking does change it: the units that came last go, and a layer is merged into the next as if it
were linear. What an optimiser knows about the weights (`moments`) is changed alike, new entries
being 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from lactchain.baselines.networks import ACTIVATIONS
from lactchain.config.tunable import Tunable, tunable_values, tunables, with_tunables
from lactchain.errors import ConfigError
from lactchain.search.evolution import Change, Child
from lactchain.search.members import Arrays, Learnt, NetworkChange, change_networks
from lactchain.search.settings import EvolutionConfig, MutationConfig, SpaceConfig

ATTEMPTS = 20
"""How often a draw is repeated that the config class refuses, such as a batch beyond a rollout."""

MOST_UNITS, MOST_LAYERS = 256, 3
"""Of the hidden layers that growth makes."""


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
        hidden = space.architectures[rng.integers(len(space.architectures))]
        config = replace(config, hidden=tuple(hidden))
    if space.activations:
        activation = space.activations[rng.integers(len(space.activations))]
        config = replace(config, activation=activation)
    ranges = searched_tunables(config, space.tunables)

    def draw() -> Any:
        drawn = {name: tunable.at(rng.random()) for name, tunable in ranges.items()}
        return with_tunables(config, drawn)

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
        moves = zip(names, steps, strict=True)
        after = {name: ranges[name].step(before[name], step) for name, step in moves}
        return with_tunables(config, after), {name: [before[name], after[name]] for name in names}

    return _first_accepted(draw)


def mutate_parameters(
    config: Any, learnt: Learnt, settings: MutationConfig, rng: np.random.Generator
) -> Child:
    """Gaussian noise on all weights of all networks; target networks follow their originals."""
    seed = int(rng.integers(2**63))

    def disturb(arrays: Arrays, moments: bool) -> Arrays:
        if moments:
            return arrays
        noise = np.random.default_rng(seed)
        return [a + _noise(a.shape, settings.noise, a, noise) for a in arrays]

    return Child(config, change_networks(learnt, disturb), {"noise": [0.0, settings.noise]})


def mutate_activation(config: Any, learnt: Learnt, rng: np.random.Generator) -> Child:
    """Another activation behind the same weights."""
    after = str(rng.choice([name for name in ACTIVATIONS if name != config.activation]))
    change = {"activation": [config.activation, after]}
    return Child(replace(config, activation=after), learnt, change)


def mutate_architecture(
    config: Any, learnt: Learnt, settings: MutationConfig, rng: np.random.Generator
) -> Child | None:
    """More units or a layer, which leaves the function as it is; or fewer."""
    if not config.hidden:
        return None
    ways = _growths(config) if rng.random() < settings.growth_share else _cuts(config)
    if not ways:
        return None
    hidden, change = ways[rng.integers(len(ways))](rng)
    changes = {"hidden": [list(config.hidden), list(hidden)]}
    return Child(replace(config, hidden=hidden), change_networks(learnt, change), changes)


Way = Callable[[np.random.Generator], tuple[tuple[int, ...], NetworkChange]]
"""Draws an architecture, and what leads to it."""


def _growths(config: Any) -> list[Way]:
    hidden, ways = config.hidden, []
    if min(hidden) < MOST_UNITS:
        ways.append(lambda rng: _more_units(hidden, rng))
    if len(hidden) < MOST_LAYERS and config.activation in DEEPENABLE:
        shift = DEEPENABLE[config.activation]
        deeper = (*hidden, hidden[-1])
        ways.append(lambda _: (deeper, lambda a, moments: add_hidden_layer(a, shift, moments)))
    return ways


def _cuts(config: Any) -> list[Way]:
    hidden, ways = config.hidden, []
    if max(hidden) > 1:
        ways.append(lambda rng: _fewer_units(hidden, rng))
    if len(hidden) > 1:
        ways.append(lambda _: (hidden[:-1], merge_layer))
    return ways


def _more_units(
    hidden: tuple[int, ...], rng: np.random.Generator
) -> tuple[tuple[int, ...], NetworkChange]:
    """Half as many units again in one layer."""
    place = int(rng.choice([p for p, width in enumerate(hidden) if width < MOST_UNITS]))
    count = min(max(hidden[place] // 2, 1), MOST_UNITS - hidden[place])
    layer, seed = len(hidden) - place, int(rng.integers(2**63))
    wider = (*hidden[:place], hidden[place] + count, *hidden[place + 1 :])
    return wider, lambda a, moments: add_units(a, layer, count, None if moments else seed)


def _fewer_units(
    hidden: tuple[int, ...], rng: np.random.Generator
) -> tuple[tuple[int, ...], NetworkChange]:
    """A quarter of a layer's units less."""
    place = int(rng.choice([p for p, width in enumerate(hidden) if width > 1]))
    kept = hidden[place] - max(hidden[place] // 4, 1)
    narrower = (*hidden[:place], kept, *hidden[place + 1 :])
    return narrower, lambda a, _: keep_units(a, len(hidden) - place, kept)


def _first_accepted(draw: Callable[[], Any]) -> Any:
    """What is drawn, again and again while the config class refuses it.

    Raises:
        ConfigError: it refuses whatever is drawn.
    """
    for _ in range(ATTEMPTS - 1):
        with suppress(ConfigError):
            return draw()
    return draw()


def _noise(
    shape: tuple[int, ...], scale: float, like: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Noise whose deviation is `scale` root mean squares of an array."""
    size = float(np.sqrt(np.square(like).mean()))
    return (scale * size * rng.standard_normal(shape)).astype(like.dtype)


# --- networks, given as weight (in, out) and bias (1, out) of each layer of one member ------------

DEEPENABLE = {"relu": 0.0, "elu": 1.0}
"""Activations f with f(h + shift) = h + shift for all h that they can give, and the shift."""


def add_units(arrays: Arrays, layer: int, count: int, seed: int | None) -> Arrays:
    """The network with more units in a hidden layer, counted from the last layer backwards.

    Args:
        layer: 1 for the last hidden layer, 2 for the one before it.
        count: new units.
        seed: of their incoming weights, of the size of the others; None: zeros, for moments.
    """
    grown = list(arrays)
    w, b, following = _places(arrays, layer)
    weight, bias = arrays[w], arrays[b]
    incoming = np.zeros((weight.shape[0], count), dtype=weight.dtype)
    if seed is not None:
        incoming = _noise(incoming.shape, 1.0, weight, np.random.default_rng(seed))
    outgoing = np.zeros((count, arrays[following].shape[1]), dtype=weight.dtype)
    grown[w] = np.concatenate([weight, incoming], axis=1)
    grown[b] = np.concatenate([bias, np.zeros((1, count), dtype=bias.dtype)], axis=1)
    grown[following] = np.concatenate([arrays[following], outgoing])
    return grown


def keep_units(arrays: Arrays, layer: int, count: int) -> Arrays:
    """The network with the first units of a hidden layer only; `layer` as for `add_units`.

    Optimisers and targets must lose the units that their networks lose, so the choice does not
    depend on the numbers; the last units are those that came last.
    """
    smaller = list(arrays)
    w, b, following = _places(arrays, layer)
    smaller[w], smaller[b] = arrays[w][:, :count], arrays[b][:, :count]
    smaller[following] = arrays[following][:count]
    return smaller


def add_hidden_layer(arrays: Arrays, shift: float, moments: bool) -> Arrays:
    """The network with one more hidden layer, of as many units, before the last layer.

    The `shift` of the activation (`DEEPENABLE`) is added before and taken away behind; `moments` of
    the new layer are zeros.
    """
    *before, weight, bias = arrays
    width, kind = weight.shape[0], weight.dtype
    if moments:
        return [*before, np.zeros((width, width), kind), np.zeros((1, width), kind), weight, bias]
    shifts = np.full((1, width), shift, kind)
    return [*before, np.eye(width, dtype=kind), shifts, weight, bias - shifts @ weight]


def merge_layer(arrays: Arrays, moments: bool) -> Arrays:
    """The network without its last hidden layer, which is multiplied into the last one."""
    *before, w1, b1, w2, b2 = arrays
    if moments:
        return [*before, np.zeros((w1.shape[0], w2.shape[1]), w2.dtype), np.zeros_like(b2)]
    return [*before, w1 @ w2, b1 @ w2 + b2]


def _places(arrays: Arrays, layer: int) -> tuple[int, int, int]:
    """Where the weight and the bias of a hidden layer are, and the next layer's weight."""
    following = len(arrays) - 2 * layer
    return following - 2, following - 1, following
