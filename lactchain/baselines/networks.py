"""Small networks for P members at once: every parameter carries a leading member axis.

A network is a shape; its parameters are one tensor (P, K), of which weights and biases are views.
So copying members, Polyak averaging, clipping and Adam are single operations however many layers
and members there are, and a layer is one `baddbmm` for all members. P = 1 is the ordinary case.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from lactchain.baselines.state_files import Stored
from lactchain.errors import ConfigError

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "elu": F.elu}


class Inputs:
    """How observations become numbers: a one-hot code of numbers of cells, all else flattened.

    Pictures, whose numbers are bytes, are brought to [0, 1].

    Args:
        space: of a single observation.
        rescale: bring numbers from the bounds of their space to [-1, 1].

    Attributes:
        num_features: of what a network sees of one observation.
        sizes: of the coded numbers; none where observations are taken as they are.

    Raises:
        ConfigError: networks cannot see this space, or what is to be rescaled has no bounds.
    """

    def __init__(self, space: spaces.Space, rescale: bool = False) -> None:
        self.sizes: tuple[int, ...] = ()
        if isinstance(space, spaces.Discrete) and space.start == 0:
            self.sizes = (int(space.n),)
        elif isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
            self.sizes = tuple(space.nvec.tolist())
        elif not isinstance(space, spaces.Box | spaces.MultiBinary):
            raise ConfigError(
                "observation space: expected Box, Discrete from 0, MultiDiscrete or MultiBinary, "
                f"got {space}; wrap the environment, by gymnasium.wrappers.FlattenObservation say"
            )
        self.num_features = sum(self.sizes) or math.prod(space.shape)
        is_image = len(space.shape) == 3 and space.dtype == np.uint8
        self._bounds = _bounds(space) if rescale else None
        self._scale = 1 / 255 if is_image else 1.0

    def encode(self, observations: np.ndarray) -> Tensor:
        """Observations (P, B, …) as a network sees them, (P, B, num_features) in float32."""
        batch = observations.shape[:2]
        if self.sizes:
            numbers = observations.reshape(*batch, len(self.sizes))
            places = (numbers + np.cumsum((0, *self.sizes[:-1]))).astype(np.int64)
            codes = torch.zeros(*batch, self.num_features)
            return codes.scatter_(-1, torch.from_numpy(places), 1.0)
        rows = torch.from_numpy(np.ascontiguousarray(observations))
        rows = rows.reshape(*batch, self.num_features).to(torch.float32)
        if self._bounds is None:
            return rows if self._scale == 1 else rows * self._scale
        low, high = self._bounds
        return (2.0 * rows - (high + low)) / (high - low)


def _bounds(space: spaces.Space) -> Tensor:
    """Least and largest values of a space's numbers, (2, num_features)."""
    if isinstance(space, spaces.Box):
        bounds = np.stack([space.low.ravel(), space.high.ravel()]).astype(np.float32)
        # Gymnasium's CartPole calls the largest number of float32 a bound of its speeds.
        if np.abs(bounds).max() < 1e6 and (bounds[0] < bounds[1]).all():
            return torch.from_numpy(bounds)
    raise ConfigError(f"rescale_observations: expected a Box with finite bounds, got {space}")


class Network:
    """An MLP for any number of members.

    Its last layer has no activation, and an initial weight of scale `output_gain`.

    Attributes:
        sizes: of a layer's inputs, of the first one on, and of the outputs.
    """

    def __init__(
        self,
        num_inputs: int,
        hidden: Sequence[int],
        num_outputs: int,
        activation: str = "relu",
        output_gain: float = 1.0,
    ) -> None:
        self.activation, self.output_gain = ACTIVATIONS[activation], output_gain
        self.sizes = num_inputs, *hidden, num_outputs

    def initial(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Weight (in, out) and bias (1, out) of each layer of one member, in turn.

        Weights are orthogonal (Saxe et al. 2014), biases 0.
        """
        gains = [math.sqrt(2.0)] * (len(self.sizes) - 2) + [self.output_gain]
        values = []
        for gain, (size_in, size_out) in zip(gains, pairwise(self.sizes), strict=True):
            values += [gain * _orthogonal(size_in, size_out, rng), np.zeros((1, size_out))]
        return [value.astype(np.float32) for value in values]

    def __call__(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """Outputs (P, B, num_outputs) of inputs (P, B, num_inputs).

        Parameters are each (P, *shape), in the order of `initial`.
        """
        layers = zip(parameters[::2], parameters[1::2], strict=True)
        *hidden, (last_weight, last_bias) = layers
        for weight, bias in hidden:
            x = self.activation(torch.baddbmm(bias, x, weight))
        return torch.baddbmm(last_bias, x, last_weight)


class Parameters(Stored):
    """The parameters of some networks, and of whatever else is learnt, as one tensor (P, K).

    Attributes:
        flat: (P, K); changing it in place changes the views.
        views: name → the parameters of that name, each (P, *shape), leaves that take gradients.
    """

    stored = ("flat",)

    def __init__(self, members: Sequence[dict[str, list[np.ndarray]]]) -> None:
        rows = [
            np.concatenate([value.ravel() for values in member.values() for value in values])
            for member in members
        ]
        self.shapes = {name: [v.shape for v in values] for name, values in members[0].items()}
        self._hold(torch.from_numpy(np.stack(rows).astype(np.float32)))

    def _hold(self, flat: Tensor, requires_grad: bool = True) -> None:
        self.flat = flat
        self.views: dict[str, list[Tensor]] = {
            name: [view.detach().requires_grad_(requires_grad) for view in views]
            for name, views in unflatten(flat, self.shapes).items()
        }

    def copy(self) -> Parameters:
        """The same values in memory of their own, for a target network."""
        twin = copy.copy(self)
        twin._hold(self.flat.clone(), requires_grad=False)
        return twin

    def gradient(self, loss: Tensor) -> Tensor:
        """Gradient of a loss summed over members, (P, K): each member's is its own."""
        leaves = [view for views in self.views.values() for view in views]
        gradients = torch.autograd.grad(loss, leaves)
        return torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)

    def move_towards(self, other: Parameters, tau: Tensor | float) -> None:
        """Polyak average θ ← (1 − τ)θ + τθ', τ a number or one for each member (P, 1)."""
        self.flat.lerp_(other.flat, tau)


def unflatten(flat: Any, layout: dict[str, list[tuple[int, ...]]]) -> dict[str, list[Any]]:
    """The arrays of each network, (P, *shape), as views of a tensor or an array (P, K).

    The layout is network → shapes of its arrays for one member, which lie one after the other.
    """
    networks, start = {}, 0
    for name, shapes in layout.items():
        networks[name] = []
        for shape in shapes:
            stop = start + math.prod(shape)
            networks[name].append(flat[:, start:stop].reshape(-1, *shape))
            start = stop
    return networks


def _orthogonal(rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """A weight with orthonormal rows or columns, whichever are fewer."""
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q = q * np.sign(np.diag(r))
    return q if rows >= columns else q.T
