"""P members of one algorithm, trained as one batched computation with settings of their own.

`Population` is what the agents share: configs, spaces, random numbers, parts that can be copied
from member to member and written down. `Adam` updates all members in a few operations, each with
its own learning rate, clipping and count of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lactchain.baselines.networks import Inputs, Parameters
from lactchain.errors import ConfigError
from lactchain.tunable import tunables


class Part(Protocol):
    """Something of which each member has its own: parameters, an optimiser, a replay buffer."""

    def copy_members(self, parents: Sequence[int]) -> None:
        """Member i becomes a copy of member parents[i]."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything, as tensors, arrays and what JSON can hold."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        ...


class Adam:
    """Adam (Kingma & Ba 2015) over parameters (P, K), each member on its own.

    Gradients are clipped per member by their norm. A member whose gradient is not finite keeps its
    parameters and is marked in `diverged`, so that it cannot spoil the others.

    Attributes:
        steps: (P,), updates that each member has made.
        diverged: (P,), members that have met a gradient that is not finite.
    """

    def __init__(
        self, parameters: Parameters, eps: float = 1e-8, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self.parameters, self.eps, self.betas = parameters, eps, betas
        self.mean = torch.zeros_like(parameters.flat)
        self.square = torch.zeros_like(parameters.flat)
        self.steps = np.zeros(len(parameters.flat))
        self.diverged = np.zeros(len(parameters.flat), dtype=bool)

    def step(
        self,
        gradient: Tensor,
        learning_rate: np.ndarray,
        max_grad_norm: np.ndarray | None = None,
        active: np.ndarray | None = None,
    ) -> np.ndarray:
        """One update; returns the gradients' norms before clipping (P,).

        Args:
            gradient: (P, K).
            learning_rate: (P,).
            max_grad_norm: (P,); None: no clipping.
            active: (P,), members that update; the others stay as they are. None: all.
        """
        norms = torch.linalg.vector_norm(gradient, dim=1).numpy().astype(np.float64)
        finite = np.isfinite(norms)
        self.diverged |= ~finite if active is None else ~finite & active
        moves = finite if active is None else finite & active
        if not moves.all():
            return self._step_some(gradient, learning_rate, max_grad_norm, moves, norms)
        if max_grad_norm is not None:
            shrink = np.minimum(max_grad_norm / (norms + 1e-6), 1.0)
            if (shrink < 1.0).any():
                gradient = gradient * _column(shrink)
        self._update(self.parameters.flat, self.mean, self.square, gradient, learning_rate, moves)
        return norms

    def _step_some(
        self,
        gradient: Tensor,
        learning_rate: np.ndarray,
        max_grad_norm: np.ndarray | None,
        moves: np.ndarray,
        norms: np.ndarray,
    ) -> np.ndarray:
        """The same for some members: the update of all, of which the others' is undone."""
        still = torch.from_numpy(~moves)
        tensors = (self.parameters.flat, self.mean, self.square)
        before = [tensor[still].clone() for tensor in tensors]
        steps, diverged = self.steps[~moves], self.diverged.copy()
        gradient = torch.where(still[:, None], 0.0, gradient)
        self.step(gradient, learning_rate, max_grad_norm)
        for tensor, values in zip(tensors, before, strict=True):
            tensor[still] = values
        self.steps[~moves], self.diverged = steps, diverged
        return norms

    def _update(
        self,
        flat: Tensor,
        mean: Tensor,
        square: Tensor,
        gradient: Tensor,
        learning_rate: np.ndarray,
        moves: np.ndarray,
    ) -> None:
        beta1, beta2 = self.betas
        self.steps += moves
        root = np.sqrt(1.0 - beta2**self.steps)
        mean.lerp_(gradient, 1.0 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        # lr · (m / (1 − β1^t)) / (√(v / (1 − β2^t)) + ε), the corrections drawn out of the roots.
        scale = -learning_rate * root / (1.0 - beta1**self.steps)
        update = square.sqrt().add_(_column(self.eps * root))
        torch.div(mean, update, out=update)
        flat.addcmul_(update, _column(scale))

    def copy_members(self, parents: Sequence[int]) -> None:
        """Member i becomes a copy of member parents[i], moments included."""
        order = list(parents)
        for tensor in (self.mean, self.square):
            tensor.copy_(tensor[order])
        self.steps, self.diverged = self.steps[order], self.diverged[order]

    def state_dict(self) -> dict[str, Any]:
        """Moments and counts."""
        return {
            "mean": self.mean,
            "square": self.square,
            "steps": self.steps,
            "diverged": self.diverged,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over moments and counts."""
        self.mean.copy_(torch.as_tensor(state["mean"]))
        self.square.copy_(torch.as_tensor(state["square"]))
        self.steps, self.diverged = np.array(state["steps"]), np.array(state["diverged"])


class Population:
    """P members of one algorithm. A subclass adds networks, what it stores, and how it learns.

    Args:
        configs: one config for each member. Fields that are tunables may differ from member to
            member; all others must agree, since they shape the one computation.
        observation_space: of a single environment.
        action_space: of a single environment.
        seed: of everything random in the population.

    Attributes:
        hyper: tunable → (P,), its value for each member, float64.
        num_updates: optimiser steps made so far, per member the same but for PPO's epochs.

    Raises:
        ConfigError: the members differ in a field that is no tunable, or a space does not fit.
    """

    parts: dict[str, Part]

    def __init__(
        self,
        configs: Sequence[Any],
        observation_space: spaces.Space,
        action_space: spaces.Space,
        seed: int = 0,
    ) -> None:
        if not configs:
            raise ConfigError("configs: expected at least one member, got none")
        self.inputs = Inputs.of(observation_space)
        self.observation_space, self.action_space = observation_space, action_space
        self.rng = np.random.default_rng(seed)
        self.parts = {}
        self.num_updates = 0
        self.set_configs(configs)

    @property
    def num_members(self) -> int:
        """P."""
        return len(self.configs)

    @property
    def config(self) -> Any:
        """A config whose fields that are no tunables hold for all members."""
        return self.configs[0]

    def set_configs(self, configs: Sequence[Any]) -> None:
        """Gives the members other hyper-parameters; what they have learnt stays.

        Raises:
            ConfigError: the members differ in a field that is no tunable.
        """
        names = tunables(type(configs[0]))
        for name in vars(configs[0]).keys() - names.keys():
            values = [getattr(config, name) for config in configs]
            if any(value != values[0] for value in values):
                raise ConfigError(f"{name}: expected one value for all members, got {values}")
        self.configs = tuple(configs)
        self.hyper = {
            name: np.array([getattr(config, name) for config in configs], dtype=np.float64)
            for name in names
        }
        self._columns: dict[str, Tensor] = {name: _column(v) for name, v in self.hyper.items()}

    def column(self, name: str) -> Tensor:
        """A tunable's values as a tensor (P, 1)."""
        return self._columns[name]

    @property
    def diverged(self) -> np.ndarray:
        """Members whose gradients stopped being finite, (P,)."""
        flags = [part.diverged for part in self.parts.values() if isinstance(part, Adam)]
        return np.logical_or.reduce([np.zeros(self.num_members, dtype=bool), *flags])

    def copy_members(self, parents: Sequence[int]) -> None:
        """Member i goes on as a copy of member parents[i]: all that it has learnt and stored.

        Hyper-parameters are copied too; `set_configs` then changes them.
        """
        for part in self.parts.values():
            part.copy_members(parents)
        self.set_configs([self.configs[parent] for parent in parents])

    def state_dict(self) -> dict[str, Any]:
        """Everything that training goes on from, but for the environments."""
        return {
            "rng": self.rng.bit_generator.state,
            "num_updates": self.num_updates,
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.rng.bit_generator.state = state["rng"]
        self.num_updates = state["num_updates"]
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])


def row_weights(batch_sizes: np.ndarray) -> Tensor:
    """Weights (P, B) of the rows of batches, B the largest size: 1/size on a member's own rows."""
    sizes = batch_sizes.astype(np.int64)
    present = np.arange(sizes.max()) < sizes[:, None]
    return torch.from_numpy((present / sizes[:, None]).astype(np.float32))


def _column(values: np.ndarray) -> Tensor:
    """Numbers (P,) as a tensor (P, 1)."""
    return torch.from_numpy(np.asarray(values, dtype=np.float32))[:, None]
