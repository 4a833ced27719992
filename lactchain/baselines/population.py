"""P members of one algorithm and config, trained as one batched computation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lactchain.baselines.evaluation import Act
from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.networks import Inputs, Parameters
from lactchain.baselines.state_files import Stored
from lactchain.baselines.transitions import Minibatch, ReplayBuffer


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Lets denormal numbers be zero meanwhile.

    The moments of weights without gradients decay to them. They cost an Intel core some fifty times
    what others do, and in the end change no weight.
    """
    before = torch.tensor(1e-40).item() == 0.0  # torch can be told, and not asked
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


class Adam(Stored):
    """Adam (Kingma & Ba 2015) over parameters (P, K), each member on its own.

    Gradients are clipped per member by their norm. A member whose gradient is not finite keeps its
    parameters and is marked in `diverged`, so that it cannot spoil the others.

    Attributes:
        steps: (P,), updates that each member has made.
        diverged: (P,), members that have met a gradient that is not finite.
    """

    stored = "mean", "square", "steps", "diverged"

    def __init__(self, parameters: Parameters, eps: float = 1e-8) -> None:
        self.parameters, self.shapes, self.eps = parameters, parameters.shapes, eps
        self.mean = torch.zeros_like(parameters.flat)
        self.square = torch.zeros_like(parameters.flat)
        self.steps = np.zeros(len(parameters.flat))
        self.diverged = np.zeros(len(parameters.flat), dtype=bool)

    @flushed_denormals()
    def step(
        self, gradient: Tensor, learning_rate: float, max_grad_norm: float | None = None
    ) -> None:
        """One update by gradients (P, K), each member's clipped to a norm if one is given."""
        norms = torch.linalg.vector_norm(gradient, dim=1).numpy().astype(np.float64)
        moves = np.isfinite(norms)
        self.diverged |= ~moves
        if max_grad_norm is not None:
            shrink = np.minimum(max_grad_norm / (norms + 1e-6), 1.0)
            if (shrink < 1.0).any():
                gradient = gradient * _column(shrink)
        if not moves.all():
            gradient = torch.where(torch.from_numpy(moves)[:, None], gradient, 0.0)
        beta1, beta2 = 0.9, 0.999  # decay of the moments
        self.steps += moves
        steps = np.maximum(self.steps, 1)  # of a member that has not begun
        root = np.sqrt(1.0 - beta2**steps)
        self.mean.lerp_(gradient, 1.0 - beta1)
        self.square.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        # lr · (m / (1 − β1^t)) / (√(v / (1 − β2^t)) + ε), the corrections drawn out of the roots.
        scale = -learning_rate * moves * root / (1.0 - beta1**steps)
        update = self.square.sqrt().add_(_column(self.eps * root))
        torch.div(self.mean, update, out=update)
        self.parameters.flat.addcmul_(update, _column(scale))


class Population(Stored, ABC):
    """P members of one algorithm and config. A subclass says what they learn with, and how.

    Args:
        config: of every member.
        observation_space: of a single environment, as `action_space`.
        seed: of everything random in the population.
        num_members: P.

    Attributes:
        parts: name → networks, optimisers and stores, of which each member has its own rows.
        num_updates: optimiser steps made so far.

    Raises:
        ConfigError: a space does not fit.
    """

    stored = "rng", "num_updates", "parts"

    def __init__(
        self,
        config: Any,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        seed: int | Sequence[int] = 0,
        num_members: int = 1,
    ) -> None:
        self.config, self.num_members = config, num_members
        self.inputs = Inputs(observation_space, config.rescale_observations)
        self.observation_space, self.action_space = observation_space, action_space
        self.rng = np.random.default_rng(seed)
        self.num_updates = 0
        self._make_parts()
        self.parts = {name: part for name, part in vars(self).items() if isinstance(part, Stored)}

    @abstractmethod
    def _make_parts(self) -> None:
        """Makes networks, optimisers and stores; those that are attributes are saved."""

    @abstractmethod
    def act(self, observations: np.ndarray, greedy: bool = False) -> np.ndarray:
        """Actions (P, N, …) for observations (P, N, …); greedy: the best, without chance."""

    @abstractmethod
    def advance(self, source: Any, progress: float = 0.0) -> dict[str, np.ndarray]:
        """One iteration of learning; returns metrics, each (P,).

        Args:
            source: what the members play (`MemberEnvs`), or for CQL recorded `TransitionData`.
            progress: share of the run that is done, for annealing and exploration.
        """

    @property
    def diverged(self) -> np.ndarray:
        """Members whose gradients stopped being finite, (P,)."""
        flags = [part.diverged for part in self.parts.values() if isinstance(part, Adam)]
        return np.logical_or.reduce(flags)

    def _left(self, progress: float) -> float:
        """What annealing leaves of learning rates, a factor."""
        return 1.0 - progress if self.config.anneal else 1.0

    def _descend(self, losses: Tensor, left: float) -> None:
        """One step of `optimizer` down the members' losses (P,)."""
        gradient = self.parameters.gradient(losses.sum())
        learning_rate = self.config.learning_rate * left
        self.optimizer.step(gradient, learning_rate, self.config.max_grad_norm)
        self.num_updates += 1


class TransitionLearner(Population):
    """Members that learn from minibatches of transitions: DQN, DDPG and CQL."""

    @abstractmethod
    def update(self, batch: Minibatch, left: float = 1.0) -> dict[str, Tensor]:
        """One step of all members on (P, B, …), learning rates times `left`; metrics, each (P,)."""

    def _new_replay(self) -> ReplayBuffer:
        size = self.config.buffer_size
        return ReplayBuffer(self.num_members, size, self.observation_space, self.action_space)

    def _play_and_learn(
        self, envs: MemberEnvs, act_at_random: Act, act: Act, progress: float
    ) -> list[dict[str, np.ndarray]]:
        """Some steps of each member into the replay buffer, then a round of updates; their metrics.

        As long as there is too little to learn from, actions are random, and nothing is learnt.
        """
        config = self.config
        for _ in range(config.train_every_env_steps // config.num_envs):
            play = act if self.replay.total >= config.learning_starts else act_at_random
            self.replay.add(envs.step(play(envs.observations)))
        is_enough = self.replay.total >= config.learning_starts
        return self._round(self.replay.sample, progress) if is_enough else []

    def _round(
        self, sample: Callable[[int, np.random.Generator], Minibatch], progress: float
    ) -> list[dict[str, np.ndarray]]:
        """A round of `num_updates` updates; the metrics of each."""
        left, records = self._left(progress), []
        for _ in range(self.config.num_updates):
            metrics = self.update(sample(self.config.batch_size, self.rng), left)
            records.append({name: value.detach().numpy() for name, value in metrics.items()})
        return records


def mean_row(values: Tensor) -> Tensor:
    """The mean of rows (P, B), for each member (P,): the sum of what each contributes."""
    return (values * (1.0 / values.shape[1])).sum(1)


def mean_metrics(records: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The mean of each metric, (P,); none of no records."""
    names = records[0] if records else ()
    return {name: np.mean([record[name] for record in records], axis=0) for name in names}


def _column(values: np.ndarray) -> Tensor:
    """Numbers (P,) as a tensor (P, 1)."""
    return torch.from_numpy(np.asarray(values, dtype=np.float32))[:, None]
