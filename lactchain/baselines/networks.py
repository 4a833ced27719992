"""Small networks for P members at once: every parameter carries a leading member axis.

All parameters are one tensor (P, K), of which weights and biases are views.
So copying members, Polyak averaging, clipping and Adam are single operations however many layers
and members there are, and a layer is one `baddbmm` for all members. P = 1 is the ordinary case.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from lactchain.baselines.settings import AgentConfig
from lactchain.baselines.state_files import Stored
from lactchain.errors import ConfigError

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "elu": F.elu}


class Inputs:
    """How observations become numbers: a one-hot code of numbers of cells, all else flattened.

    Pictures, whose numbers are bytes, are brought to [0, 1]. `ConfigError` where networks cannot
    see a space, or what is to be rescaled has no bounds.

    Args:
        space: of a single observation.
        rescale: bring numbers from the bounds of their space to [-1, 1].

    Attributes:
        num_features: of what a network sees of one observation.
        sizes: of the coded numbers; none where observations are taken as they are.
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


class Parameters(Stored):
    """MLPs of P members, and whatever else these learn, as one tensor (P, K).

    Last layers have no activation. Weights begin orthogonal (Saxe et al. 2014), and biases at 0.

    Args:
        config: an `AgentConfig`; all networks have its hidden layers and its activation.
        networks: name → inputs, outputs, and the scale of the last layer's weight.
        num_members: P.
        rng: of the weights, which are drawn for one member after the other.
        others: name → first value of an array that is no network.

    Attributes:
        flat: (P, K); changing it in place changes the views.
        views: name → the parameters of that name, each (P, *shape), leaves that take gradients; of
            a network weight (in, out) and bias (1, out) of each layer in turn.
    """

    stored = ("flat",)

    def __init__(
        self,
        config: AgentConfig,
        networks: Mapping[str, tuple[int, int, float]],
        num_members: int,
        rng: np.random.Generator,
        others: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.activation = ACTIVATIONS[config.activation]
        rows = []
        for _ in range(num_members):
            values = {
                name: _first_layers((inputs, *config.hidden, outputs), gain, rng)
                for name, (inputs, outputs, gain) in networks.items()
            } | {name: [value] for name, value in (others or {}).items()}
            rows.append(np.concatenate([v.ravel() for of_name in values.values() for v in of_name]))
        self.shapes = {name: [v.shape for v in of_name] for name, of_name in values.items()}
        self._hold(torch.from_numpy(np.stack(rows).astype(np.float32)))

    def __call__(self, name: str, x: Tensor) -> Tensor:
        """What a network makes (P, B, outputs) of inputs (P, B, inputs)."""
        views = self.views[name]
        *hidden, (last_weight, last_bias) = zip(views[::2], views[1::2], strict=True)
        for weight, bias in hidden:
            x = self.activation(torch.baddbmm(bias, x, weight))
        return torch.baddbmm(last_bias, x, last_weight)

    def _hold(self, flat: Tensor, requires_grad: bool = True) -> None:
        self.flat = flat
        self.views: dict[str, list[Tensor]] = {
            name: [view.detach().requires_grad_(requires_grad) for view in views]
            for name, views in unflatten(flat, self.shapes).items()
        }

    def copy(self) -> Self:
        """The same values in memory of their own, for a target network."""
        twin = copy.copy(self)
        twin._hold(self.flat.clone(), requires_grad=False)
        return twin

    def gradient(self, loss: Tensor) -> Tensor:
        """Gradient of a loss summed over members, (P, K): each member's is its own."""
        leaves = [view for views in self.views.values() for view in views]
        gradients = torch.autograd.grad(loss, leaves)
        return torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)

    def move_towards(self, other: Self, tau: float) -> None:
        """Polyak average θ ← (1 − τ)θ + τθ'."""
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


def _first_layers(
    sizes: Sequence[int], output_gain: float, rng: np.random.Generator
) -> list[np.ndarray]:
    """Weight and bias of each layer of one member's network in turn."""
    gains, values = [math.sqrt(2.0)] * (len(sizes) - 2) + [output_gain], []
    for gain, (rows, columns) in zip(gains, pairwise(sizes), strict=True):
        # A weight has orthonormal rows or columns, whichever are fewer.
        q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
        q = q * np.sign(np.diag(r))
        values += [gain * (q if rows >= columns else q.T), np.zeros((1, columns))]
    return [value.astype(np.float32) for value in values]
