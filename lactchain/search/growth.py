"""Growing and shrinking MLPs, given as lists of weights and biases of one member.

Growth leaves the function as it is (after Chen, Goodfellow & Shlens 2016, "Net2Net"): new units
begin without outgoing weights, and a new layer is the identity where the activation lets one
through. So a mutation of the architecture is judged by what it can learn, not by what it forgot.
Shrinking does change it: the units that came last go, and a layer is merged into the next as if it
were linear.

A network's arrays are weight and bias of each layer in turn, weights (in, out), biases (1, out);
convolutions before the MLP stay as they are. Arrays of the same layout that belong to an optimiser
(`moments`) are changed alike, new entries being 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Arrays = list[np.ndarray]

DEEPENABLE = {"relu": 0.0, "elu": 1.0}
"""Activations f with f(h + shift) = h + shift for all h that they can give, and the shift."""


def add_units(
    arrays: Sequence[np.ndarray], layer: int, count: int, rng: np.random.Generator | None
) -> Arrays:
    """The network with more units in a hidden layer, counted from the last layer backwards.

    Args:
        arrays: weight and bias of each layer.
        layer: 1 for the last hidden layer, 2 for the one before it.
        count: new units.
        rng: draws their incoming weights, of the size of the others; None: zeros, for moments.
    """
    grown = list(arrays)
    w, b, following = _places(arrays, layer)
    weight, bias = arrays[w], arrays[b]
    incoming = np.zeros((weight.shape[0], count), dtype=weight.dtype)
    if rng is not None:
        scale = float(np.sqrt(np.square(weight).mean()))
        incoming += (scale * rng.standard_normal(incoming.shape)).astype(weight.dtype)
    grown[w] = np.concatenate([weight, incoming], axis=1)
    grown[b] = np.concatenate([bias, np.zeros((1, count), dtype=bias.dtype)], axis=1)
    outgoing = np.zeros((count, arrays[following].shape[1]), dtype=weight.dtype)
    grown[following] = np.concatenate([arrays[following], outgoing])
    return grown


def keep_units(arrays: Sequence[np.ndarray], layer: int, count: int) -> Arrays:
    """The network with the first units of a hidden layer only; `layer` as for `add_units`.

    Optimisers and targets must lose the units that their networks lose, so the choice does not
    depend on the numbers; the last units are those that came last.
    """
    smaller = list(arrays)
    w, b, following = _places(arrays, layer)
    smaller[w], smaller[b] = arrays[w][:, :count], arrays[b][:, :count]
    smaller[following] = arrays[following][:count]
    return smaller


def add_layer(arrays: Sequence[np.ndarray], shift: float | None) -> Arrays:
    """The network with one more hidden layer, of as many units, before the last layer.

    Args:
        arrays: weight and bias of each layer.
        shift: of the activation, see `DEEPENABLE`; it is added before and taken away behind. None:
            the new layer is of zeros, for moments.
    """
    *before, weight, bias = arrays
    width, kind = weight.shape[0], weight.dtype
    if shift is None:
        return [*before, np.zeros((width, width), kind), np.zeros((1, width), kind), weight, bias]
    shifts = np.full((1, width), shift, kind)
    return [*before, np.eye(width, dtype=kind), shifts, weight, bias - shifts @ weight]


def merge_layer(arrays: Sequence[np.ndarray], moments: bool = False) -> Arrays:
    """The network without its last hidden layer, which is multiplied into the last one.

    The moments of what is multiplied are zeros.
    """
    *before, w1, b1, w2, b2 = arrays
    if moments:
        return [*before, np.zeros((w1.shape[0], w2.shape[1]), w2.dtype), np.zeros_like(b2)]
    return [*before, w1 @ w2, b1 @ w2 + b2]


def _places(arrays: Sequence[np.ndarray], layer: int) -> tuple[int, int, int]:
    """Where the weight and the bias of a hidden layer are, and the next layer's weight."""
    following = len(arrays) - 2 * layer
    return following - 2, following - 1, following
