"""Mutations of networks, for the search over classic agents: weights, activations and shapes.

Growth leaves the function as it is (after Chen, Goodfellow & Shlens 2016, "Net2Net"): new units
begin without outgoing weights, and a new layer is the identity where the activation lets one
through. So a mutation of the architecture is judged by what it can learn, not by what it forgot.
Shrinking does change it: the units that came last go, and a layer is merged into the next as if it
were linear. What an optimiser knows about the weights (`moments`) is changed alike, new entries
being 0.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lactchain.baselines.networks import ACTIVATIONS, unflatten
from lactchain.search.mutations import Child
from lactchain.search.settings import MutationConfig

MOST_UNITS, MOST_LAYERS = 256, 3
"""Of the hidden layers that growth makes."""
DEEPENABLE = {"relu": 0.0, "elu": 1.0}
"""Activations f with f(h + shift) = h + shift for all h that they can give, and the shift."""

Arrays = list[np.ndarray]
"""Weight (in, out) and bias (1, out) of each layer in turn, of one network of one member."""
NetworkChange = Callable[[Arrays, bool], Arrays]
"""Arrays of a network, or what an optimiser knows about them (the second says so) → new ones."""
NewShape = tuple[tuple[int, ...], NetworkChange]
"""Units of the hidden layers, and what leads to them."""


def mutate_parameters(parent: Any, settings: MutationConfig, rng: np.random.Generator) -> Child:
    """Gaussian noise on all weights of all networks; target networks follow their originals."""
    seed = int(rng.integers(2**63))

    def disturb(arrays: Arrays, moments: bool) -> Arrays:
        if moments:
            return arrays
        noise = np.random.default_rng(seed)
        return [a + _noise(a.shape, settings.noise, a, noise) for a in arrays]

    learnt = change_networks(parent.state, disturb)
    return Child(parent.config, learnt, {"noise": [0.0, settings.noise]})


def mutate_activation(parent: Any, settings: MutationConfig, rng: np.random.Generator) -> Child:
    """Another activation behind the same weights."""
    before = parent.config.activation
    after = str(rng.choice([name for name in ACTIVATIONS if name != before]))
    config = replace(parent.config, activation=after)
    return Child(config, parent.state, {"activation": [before, after]})


def mutate_architecture(
    parent: Any, settings: MutationConfig, rng: np.random.Generator
) -> Child | None:
    """More units or a layer, which leaves the function as it is; or fewer."""
    config, hidden = parent.config, parent.config.hidden
    if not hidden:
        return None
    grows = rng.random() < settings.growth_share
    if grows:
        deepens = len(hidden) < MOST_LAYERS and config.activation in DEEPENABLE
        ways = [_resized] * (min(hidden) < MOST_UNITS) + [_deepened] * deepens
    else:
        ways = [_resized] * (max(hidden) > 1) + [_merged] * (len(hidden) > 1)
    if not ways:
        return None
    after, change = ways[rng.integers(len(ways))](config, grows, rng)
    learnt = change_networks(parent.state, change)
    return Child(replace(config, hidden=after), learnt, {"hidden": [list(hidden), list(after)]})


def _resized(config: Any, grows: bool, rng: np.random.Generator) -> NewShape:
    """Half as many units again in one layer, or a quarter less: those that came last.

    Incoming weights of new units are as large as the others. Optimisers and targets must lose the
    units that their networks lose, so the choice does not depend on the numbers.
    """
    hidden = list(config.hidden)
    least, most = (0, MOST_UNITS) if grows else (1, math.inf)
    place = int(rng.choice([p for p, width in enumerate(hidden) if least < width < most]))
    before, start = hidden[place], 2 * place
    larger, smaller = min(before + max(before // 2, 1), MOST_UNITS), before - max(before // 4, 1)
    hidden[place] = count = larger if grows else smaller
    seed = int(rng.integers(2**63)) if grows else 0

    def resize(arrays: Arrays, moments: bool) -> Arrays:
        incoming, bias, outgoing = arrays[start : start + 3]
        weight = _fitted(incoming, len(incoming), count)
        if grows and not moments:
            new = (len(weight), count - before)
            weight[:, before:] = _noise(new, 1.0, incoming, np.random.default_rng(seed))
        resized = [weight, _fitted(bias, 1, count), _fitted(outgoing, count, outgoing.shape[1])]
        return [*arrays[:start], *resized, *arrays[start + 3 :]]

    return tuple(hidden), resize


def _deepened(config: Any, grows: bool, rng: np.random.Generator) -> NewShape:
    """One more hidden layer, of as many units, before the last layer.

    The `shift` of the activation is added before and taken away behind.
    """

    def deepen(arrays: Arrays, moments: bool) -> Arrays:
        *before, weight, bias = arrays
        shift = np.full((1, len(weight)), DEEPENABLE[config.activation], weight.dtype)
        new = [np.eye(len(weight), dtype=weight.dtype), shift]
        if moments:
            return [*before, *map(np.zeros_like, new), weight, bias]
        return [*before, *new, weight, bias - shift @ weight]

    return (*config.hidden, config.hidden[-1]), deepen


def _merged(config: Any, grows: bool, rng: np.random.Generator) -> NewShape:
    """Without the last hidden layer, which is multiplied into the last one."""

    def merge(arrays: Arrays, moments: bool) -> Arrays:
        *before, w1, b1, w2, b2 = arrays
        new = [w1 @ w2, b1 @ w2 + b2]
        return [*before, *(map(np.zeros_like, new) if moments else new)]

    return config.hidden[:-1], merge


def _fitted(array: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """So much of an array as there is; zeros where there is none."""
    kept = array[:rows, :columns]
    return np.pad(kept, ((0, rows - len(kept)), (0, columns - kept.shape[1])))


def change_networks(learnt: dict[str, Any], change: NetworkChange) -> dict[str, Any]:
    """The member with other networks, targets too; `learnt` is left as it is.

    What a member has learnt: see `lactchain.search.agents`.
    """
    parts, shapes = dict(learnt["parts"]), {}
    for name, layout in learnt["shapes"].items():
        entries = parts[name] = dict(parts[name])
        for key in entries.keys() & {"flat", "mean", "square"}:
            networks = {}
            for network, views in unflatten(entries[key], layout).items():
                arrays = [view[0] for view in views]
                # A single array, such as a log-deviation, is no network.
                networks[network] = arrays if len(arrays) == 1 else change(arrays, key != "flat")
            rows = [array.ravel() for arrays in networks.values() for array in arrays]
            entries[key] = np.concatenate(rows)[None]
            shapes[name] = {n: [a.shape for a in arrays] for n, arrays in networks.items()}
    return learnt | {"parts": parts, "shapes": shapes}


def _noise(
    shape: tuple[int, ...], scale: float, like: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Noise whose deviation is `scale` root mean squares of an array."""
    size = float(np.sqrt(np.square(like).mean()))
    return (scale * size * rng.standard_normal(shape)).astype(like.dtype)


MUTATIONS = {
    "architecture": mutate_architecture,
    "parameters": mutate_parameters,
    "activation": mutate_activation,
}
