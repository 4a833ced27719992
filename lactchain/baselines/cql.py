"""CQL: conservative Q-learning from recorded transitions, for discrete actions.

Source: Kumar et al. 2020, CQL(H): the loss of double DQN plus `cql_weight` times
log Σ_a exp Q(s, a) − Q(s, a_data). What is subtracted is the value of the action in the data, so
actions that the data lack are pushed below those that they hold. Observations that are numbers are
brought to mean 0 and deviation 1 by the data's own statistics (Fujimoto & Gu 2021).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lactchain.baselines.networks import Network, Parameters
from lactchain.baselines.population import Adam, Population, row_weights
from lactchain.baselines.replay import Batch
from lactchain.baselines.settings import CQLConfig
from lactchain.baselines.transitions import TransitionData
from lactchain.errors import ConfigError
from lactchain.functional.value_losses import cql_penalty, double_q_targets, regression_loss


class CQL(Population):
    """P members that learn from one data set; see `Population` for the arguments."""

    def __init__(
        self,
        configs: Sequence[CQLConfig],
        observation_space: spaces.Space,
        action_space: spaces.Space,
        seed: int = 0,
    ) -> None:
        super().__init__(configs, observation_space, action_space, seed)
        if not (isinstance(action_space, spaces.Discrete) and action_space.start == 0):
            raise ConfigError(f"CQL: expected Discrete actions from 0, got {action_space}")
        config = self.config
        self.network = Network(self.inputs, config.hidden, int(action_space.n), config.activation)
        self.parameters = Parameters([{"q": self.network.initial(self.rng)} for _ in configs])
        self.target = self.parameters.copy()
        self.optimizer = Adam(self.parameters)
        shape = (1, *self.inputs.shape)
        units = {"mean": [np.zeros(shape)], "deviation": [np.ones(shape)]}
        self.units = Parameters([units for _ in configs]).copy()
        self.parts = {
            "parameters": self.parameters,
            "target": self.target,
            "units": self.units,
            "optimizer": self.optimizer,
        }

    def act(self, observations: np.ndarray, greedy: bool = True) -> np.ndarray:
        """The best actions (P, N) for observations (P, N, …); there is nothing to explore."""
        with torch.inference_mode():
            return self.values(self.encode(observations)).argmax(-1).numpy()

    def advance(self, data: TransitionData, progress: float = 0.0) -> dict[str, np.ndarray]:
        """One iteration: `num_updates` updates on random transitions; returns metrics, each (P,).

        Args:
            data: what was recorded; its actions must be legal.
            progress: share of the run that is done, for annealing.
        """
        if self.num_updates == 0:
            self._measure(data)
        left = 1.0 - progress if self.config.anneal else 1.0
        weights = row_weights(self.hyper["batch_size"])
        records = []
        for _ in range(self.config.num_updates):
            batch = data.sample(self.num_members, weights.shape[1], self.rng)
            records.append(self.update(batch, weights, left))
        return {key: np.mean([record[key] for record in records], axis=0) for key in records[0]}

    def update(self, batch: Batch, weights: Tensor, left: float = 1.0) -> dict[str, np.ndarray]:
        """One optimiser step of all members; returns metrics, each (P,).

        Args:
            batch: transitions (P, B, …).
            weights: (P, B), what each counts.
            left: factor on the learning rate.
        """
        actions = torch.from_numpy(batch.actions)
        q = self.values(self.encode(batch.observations))
        q_data = q.gather(-1, actions[..., None])[..., 0]
        td_loss = (regression_loss(q_data, self.targets(batch), "mse") * weights).sum(1)
        penalty = (cql_penalty(q, actions) * weights).sum(1)
        loss = 0.5 * td_loss + self.column("cql_weight")[:, 0] * penalty
        gradient = self.parameters.gradient(loss.sum())
        learning_rate = self.hyper["learning_rate"] * left
        self.optimizer.step(gradient, learning_rate, self.hyper["max_grad_norm"])
        self.num_updates += 1
        self.target.move_towards(self.parameters, self.column("tau")[:, 0])
        return {
            "train/td_loss": td_loss.detach().numpy(),
            "train/cql_penalty": penalty.detach().numpy(),
            "train/q": (q_data.detach() * weights).sum(1).numpy(),
        }

    def targets(self, batch: Batch) -> Tensor:
        """Targets r + γ(1 − terminated) Q'(s', argmax_a Q(s', a)), (P, B)."""
        with torch.no_grad():
            x = self.encode(batch.next_observations)
            alive = torch.from_numpy(~batch.terminated).float()
            return double_q_targets(
                torch.from_numpy(batch.rewards),
                self.column("gamma") * alive,
                self.network(self.target.views["q"], x),
                self.values(x),
            )

    def encode(self, observations: np.ndarray) -> Tensor:
        """Observations (P, B, …) as the network sees them, in the data's units."""
        (mean,), (deviation,) = self.units.views["mean"], self.units.views["deviation"]
        return (self.inputs.encode(observations) - mean) / deviation

    def values(self, x: Tensor) -> Tensor:
        """Q(s, ·), (P, B, A)."""
        return self.network(self.parameters.views["q"], x)

    def _measure(self, data: TransitionData) -> None:
        """Takes the data's mean and deviation as units, where observations are numbers."""
        if self.inputs.kind != "vector":
            return
        rows = self.inputs.encode(data.observations[None])[0]
        deviation = rows.std(0, correction=0)
        self.units.views["mean"][0].copy_(rows.mean(0).expand(self.num_members, 1, -1))
        self.units.views["deviation"][0].copy_(
            torch.where(deviation > 1e-6, deviation, 1.0).expand(self.num_members, 1, -1)
        )
