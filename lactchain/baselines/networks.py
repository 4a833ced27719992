"""Small networks for P members at once: every parameter carries a leading member axis.

A network is a shape; its parameters are one tensor (P, K), of which weights and biases are views.
So copying members, Polyak averaging, clipping and Adam are single operations however many layers
and members there are, and a layer is one `baddbmm` for all members. P = 1 is the ordinary case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from lactchain.errors import ConfigError

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "elu": F.elu}
# Convolutions before an MLP on images: channels out, kernel, stride (after Mnih et al. 2015,
# scaled down).
CONVOLUTIONS = ((16, 4, 2), (32, 3, 2))

Shapes = dict[str, list[tuple[int, ...]]]
"""Network → shapes of the arrays of one member, which lie one after the other."""


@dataclass(frozen=True)
class Inputs:
    """How observations become numbers: an image, a one-hot code, or the numbers of a vector.

    Attributes:
        kind: image, one_hot or vector.
        shape: of what the network sees, one observation: (C, H, W) or (features,).
        channels_last: whether an image comes with its channels last.
        sizes: of the coded numbers, for one_hot.
        bounds: least and largest values that a vector's numbers are brought from to [-1, 1], one of
            each feature; None: they are seen as they are.
    """

    kind: str
    shape: tuple[int, ...]
    channels_last: bool = False
    sizes: tuple[int, ...] = ()
    bounds: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    @classmethod
    def of(cls, space: spaces.Space, rescale: bool = False) -> Inputs:
        """The code of a space's elements; `rescale`: bring a vector's numbers to [-1, 1].

        Raises:
            ConfigError: networks cannot see this space, or what is to be rescaled has no bounds.
        """
        found = cls._of(space)
        return replace(found, bounds=_bounds(space, found.kind)) if rescale else found

    @classmethod
    def _of(cls, space: spaces.Space) -> Inputs:
        if isinstance(space, spaces.Discrete) and space.start == 0:
            return cls("one_hot", (int(space.n),), sizes=(int(space.n),))
        if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
            sizes = tuple(space.nvec.tolist())
            return cls("one_hot", (sum(sizes),), sizes=sizes)
        if isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8:
            last = space.shape[2] < space.shape[0]
            shape = (space.shape[2], *space.shape[:2]) if last else space.shape
            return cls("image", shape, channels_last=last)
        if isinstance(space, spaces.Box | spaces.MultiBinary):
            return cls("vector", (math.prod(space.shape),))
        raise ConfigError(
            "observation space: expected Box, Discrete from 0, MultiDiscrete or MultiBinary, "
            f"got {space}; wrap the environment, by gymnasium.wrappers.FlattenObservation say"
        )

    @cached_property
    def _tensors(self) -> Tensor:
        return torch.tensor(self.bounds)

    def encode(self, observations: np.ndarray) -> Tensor:
        """Observations (P, B, …) as a network sees them, (P, B, *shape) in float32."""
        batch = observations.shape[:2]
        if self.kind == "one_hot":
            numbers = observations.reshape(*batch, len(self.sizes))
            places = (numbers + np.cumsum((0, *self.sizes[:-1]))).astype(np.int64)
            return torch.zeros(*batch, *self.shape).scatter_(-1, torch.from_numpy(places), 1.0)
        rows = torch.from_numpy(np.ascontiguousarray(observations))
        if self.kind == "vector":
            rows = rows.reshape(*batch, *self.shape).to(torch.float32)
            if self.bounds is None:
                return rows
            low, high = self._tensors
            return (2.0 * rows - (high + low)) / (high - low)
        return (rows.movedim(-1, -3) if self.channels_last else rows).to(torch.float32) / 255.0


def _bounds(space: spaces.Space, kind: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Least and largest values of a space of vectors, one of each feature."""
    if kind == "vector" and isinstance(space, spaces.Box):
        low, high = space.low.ravel().astype(np.float32), space.high.ravel().astype(np.float32)
        # Gymnasium's CartPole calls the largest number of float32 a bound of its speeds.
        if np.abs([low, high]).max() < 1e6 and (low < high).all():
            return tuple(low.tolist()), tuple(high.tolist())
    raise ConfigError(
        f"rescale_observations: expected a Box of vectors with finite bounds, got {space}"
    )


class Network:
    """An MLP, behind convolutions if it sees images, for any number of members.

    Its last layer has no activation, and an initial weight of scale `output_gain`; `num_extra`
    further numbers, such as actions, reach the first fully connected layer.

    Attributes:
        shapes: of the parameters of one member: weight and bias of each layer in turn; weights are
            (in, out), those of convolutions (out, in, kernel, kernel).
    """

    def __init__(
        self,
        inputs: Inputs,
        hidden: Sequence[int],
        num_outputs: int,
        activation: str = "relu",
        output_gain: float = 1.0,
        num_extra: int = 0,
    ) -> None:
        self.activation, self.output_gain = ACTIVATIONS[activation], output_gain
        self.convolutions = CONVOLUTIONS if inputs.kind == "image" else ()
        self.shapes: list[tuple[int, ...]] = []
        channels = inputs.shape[0]
        for out, kernel, _ in self.convolutions:
            self.shapes += [(out, channels, kernel, kernel), (out,)]
            channels = out
        sizes = _num_features(inputs) + num_extra, *hidden, num_outputs
        for size_in, size_out in pairwise(sizes):
            self.shapes += [(size_in, size_out), (1, size_out)]

    def initial(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Parameters of one member: orthogonal weights (Saxe et al. 2014), biases 0."""
        values = []
        for weight, bias in _layers(self.shapes):
            is_last = len(values) == len(self.shapes) - 2
            gain = self.output_gain if is_last else math.sqrt(2.0)
            values += [gain * _orthogonal(weight, rng), np.zeros(bias)]
        return [value.astype(np.float32) for value in values]

    def __call__(
        self, parameters: Sequence[Tensor], x: Tensor, extra: Tensor | None = None
    ) -> Tensor:
        """Outputs (P, B, num_outputs) of inputs (P, B, *inputs.shape) and extra (P, B, num_extra).

        Parameters are each (P, *shape), in the order of `shapes`.
        """
        layers, members, batch = _layers(parameters), *x.shape[:2]
        for (weight, bias), (_, _, stride) in zip(layers, self.convolutions, strict=False):
            x = self._convolve(weight, bias, x, stride)
        x = x.reshape(members, batch, -1)
        if extra is not None:
            x = torch.cat([x, extra], dim=-1)
        *hidden, (last_weight, last_bias) = layers[len(self.convolutions) :]
        for weight, bias in hidden:
            x = self.activation(torch.baddbmm(bias, x, weight))
        return torch.baddbmm(last_bias, x, last_weight)

    def _convolve(self, weight: Tensor, bias: Tensor, x: Tensor, stride: int) -> Tensor:
        """One convolution for all members: groups of channels, one group a member."""
        members, batch = x.shape[:2]
        channels = x.transpose(0, 1).reshape(batch, -1, *x.shape[3:])
        kernels = weight.reshape(-1, *weight.shape[2:])
        out = F.conv2d(channels, kernels, bias.reshape(-1), stride, groups=members)
        return self.activation(out.view(batch, members, -1, *out.shape[2:]).transpose(0, 1))


class Parameters:
    """The parameters of some networks, and of whatever else is learnt, as one tensor (P, K).

    Attributes:
        flat: (P, K); changing it in place changes the views.
        views: name → the parameters of that name, each (P, *shape), leaves that take gradients.
    """

    def __init__(self, members: Sequence[dict[str, list[np.ndarray]]]) -> None:
        rows = [
            np.concatenate([value.ravel() for values in member.values() for value in values])
            for member in members
        ]
        self.shapes = {name: [v.shape for v in values] for name, values in members[0].items()}
        self.flat = torch.from_numpy(np.stack(rows).astype(np.float32))
        self._make_views()

    def copy(self) -> Parameters:
        """The same values in memory of their own, for a target network."""
        twin = Parameters.__new__(Parameters)
        twin.shapes, twin.flat = self.shapes, self.flat.clone()
        twin._make_views(requires_grad=False)
        return twin

    def gradient(self, loss: Tensor) -> Tensor:
        """Gradient of a loss summed over members, (P, K): each member's is its own."""
        leaves = [view for views in self.views.values() for view in views]
        gradients = torch.autograd.grad(loss, leaves)
        return torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)

    def move_towards(self, other: Parameters, tau: Tensor | float) -> None:
        """Polyak average θ ← (1 − τ)θ + τθ', τ a number or one for each member (P, 1)."""
        self.flat.lerp_(other.flat, tau)

    def state_dict(self) -> dict[str, Any]:
        """The values."""
        return {"flat": self.flat}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over values."""
        self.flat.copy_(torch.as_tensor(state["flat"]))

    def _make_views(self, requires_grad: bool = True) -> None:
        self.views: dict[str, list[Tensor]] = {
            name: [view.detach().requires_grad_(requires_grad) for view in views]
            for name, views in unflatten(self.flat, self.shapes).items()
        }


def unflatten(flat: Any, layout: Shapes) -> dict[str, list[Any]]:
    """The arrays of each network, (P, *shape), as views of a tensor or an array (P, K)."""
    networks, start = {}, 0
    for name, shapes in layout.items():
        networks[name] = []
        for shape in shapes:
            stop = start + math.prod(shape)
            networks[name].append(flat[:, start:stop].reshape(-1, *shape))
            start = stop
    return networks


def _layers(parameters: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Weight and bias of each layer, or what stands for them."""
    return list(zip(parameters[::2], parameters[1::2], strict=True))


def _num_features(inputs: Inputs) -> int:
    """Numbers that reach the first fully connected layer."""
    if inputs.kind != "image":
        return math.prod(inputs.shape)
    _, height, width = inputs.shape
    for _, kernel, stride in CONVOLUTIONS:
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    if min(height, width) < 1:
        raise ConfigError(f"observation space: images of {inputs.shape} are too small")
    return CONVOLUTIONS[-1][0] * height * width


def _orthogonal(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """A weight with orthonormal rows or columns, whichever are fewer; a kernel counts as a row."""
    rows, columns = shape[0], math.prod(shape[1:])
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q = q * np.sign(np.diag(r))
    return (q if rows >= columns else q.T).reshape(shape)
