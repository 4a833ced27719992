"""CQL: conservative Q-learning from recorded transitions, for discrete actions.

Source: Kumar et al. 2020, CQL(H): the loss of double DQN plus `cql_weight` times
log Σ_a exp Q(s, a) − Q(s, a_data). What is subtracted is the value of the action in the data, so
actions that the data lack are pushed below those that they hold. Observations that are numbers are
brought to mean 0 and deviation 1 by the data's own statistics (Fujimoto & Gu 2021).
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from lactchain.baselines.networks import Parameters
from lactchain.baselines.population import QLearner, mean_metrics, mean_row
from lactchain.baselines.transitions import Minibatch, TransitionData
from lactchain.functional.losses import cql_penalty, regression_loss


class CQL(QLearner):
    """P members with a `CQLConfig` each that learn from one data set."""

    def _make_parts(self) -> None:
        super()._make_parts()
        shape = (1, self.inputs.num_features)
        units = {"mean": [np.zeros(shape)], "deviation": [np.ones(shape)]}
        self.units = Parameters([units for _ in self.configs]).copy()

    def act(self, observations: np.ndarray, greedy: bool = True) -> np.ndarray:
        """The best actions (P, N) for observations (P, N, …); there is nothing to explore."""
        with torch.inference_mode():
            return self.values(self.encode(observations)).argmax(-1).numpy()

    def advance(self, data: TransitionData, progress: float = 0.0) -> dict[str, np.ndarray]:
        """One iteration: `num_updates` updates on random transitions, whose actions are legal."""
        if self.num_updates == 0:
            self._measure(data)
        return mean_metrics(self._round(partial(data.sample, self.num_members), progress))

    def update(self, batch: Minibatch, left: float = 1.0) -> dict[str, Tensor]:
        """One step of all members; see `TransitionLearner`."""
        actions = torch.from_numpy(batch.actions)
        q = self.values(self.encode(batch.observations))
        q_data = q.gather(-1, actions[..., None])[..., 0]
        td_loss = mean_row(regression_loss(q_data, self.targets(batch), "mse"))
        penalty = mean_row(cql_penalty(q, actions))
        self._descend(0.5 * td_loss + self.column("cql_weight")[:, 0] * penalty, left)
        self.target.move_towards(self.parameters, self.column("tau"))
        mean_q = mean_row(q_data.detach())
        return {"train/td_loss": td_loss, "train/cql_penalty": penalty, "train/q": mean_q}

    def encode(self, observations: np.ndarray) -> Tensor:
        """Observations (P, B, …) as the network sees them, in the data's units."""
        (mean,), (deviation,) = self.units.views["mean"], self.units.views["deviation"]
        return (super().encode(observations) - mean) / deviation

    def _measure(self, data: TransitionData) -> None:
        """Takes the data's mean and deviation as units, where observations are numbers."""
        if self.inputs.sizes:
            return
        rows = self.inputs.encode(data.observations[None])[0]
        deviation = rows.std(0, correction=0)
        self.units.views["mean"][0].copy_(rows.mean(0).expand(self.num_members, 1, -1))
        self.units.views["deviation"][0].copy_(
            torch.where(deviation > 1e-6, deviation, 1.0).expand(self.num_members, 1, -1)
        )
