"""DQN: deep Q-learning with replay, a target network and double estimates, for discrete actions.

Source: Mnih et al. 2015; van Hasselt, Guez & Silver 2016 (the online network chooses the next
action, the target network values it). The number of updates per environment step is fixed by the
config; each copy of the environment tosses its own coin when exploring.

The greedy policy of the last weights changes from update to update, and now and then is a bad one
(it forgets how the edges of the state space are met). `average_weights` lets greedy play use a
running average of the weights instead (Polyak & Juditsky 1992); learning does not see it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.population import QLearner, mean_row
from lactchain.baselines.transitions import Minibatch
from lactchain.functional.losses import regression_loss


class DQN(QLearner):
    """P members with a `DQNConfig` each that learn off-policy."""

    def _make_parts(self) -> None:
        super()._make_parts()
        self.reward_scale, self.double = self.config.reward_scale, self.config.double
        self.replay = self._new_replay()
        if self.config.average_weights:
            self.average = self.parameters.copy()

    def act(
        self, observations: np.ndarray, greedy: bool = False, epsilon: float | np.ndarray = 0.0
    ) -> np.ndarray:
        """Actions (P, N) for observations (P, N, …), the best ones if greedy.

        Else a share `epsilon` of them is random: a number, or one for each member (P, 1).
        """
        with torch.inference_mode():
            acting = self.parts.get("average", self.parameters) if greedy else self.parameters
            values = self.network(acting.views["q"], self.encode(observations))
            best = values.argmax(-1).numpy()
        if greedy:
            return best
        explores = self.rng.random(best.shape) < epsilon
        return np.where(explores, self.rng.integers(self.action_space.n, size=best.shape), best)

    def exploration(self, progress: float) -> np.ndarray:
        """Exploration rates (P, 1) at a share of the run that is done."""
        final = self.hyper["final_exploration"]
        fraction = np.maximum(self.hyper["exploration_fraction"], 1e-9)
        return (1.0 + np.minimum(progress / fraction, 1.0) * (final - 1.0))[:, None]

    def advance(self, envs: MemberEnvs, progress: float = 0.0) -> dict[str, np.ndarray]:
        """One iteration: some steps in every copy, then a round of updates; metrics of the last."""
        rate = self.exploration(progress)

        def act(enough: bool) -> np.ndarray:
            return self.act(envs.observations, epsilon=rate if enough else 1.0)

        metrics = {"train/exploration": rate[:, 0]}
        if not self._collect(envs, act):
            return metrics
        return metrics | self._round(self.replay.sample, progress)[-1]

    def update(self, batch: Minibatch, left: float = 1.0) -> dict[str, Tensor]:
        """One step of all members; see `TransitionLearner`."""
        x = self.encode(batch.observations)
        actions = torch.from_numpy(batch.actions)[..., None]
        targets = self.targets(batch)
        q_data = self.values(x).gather(-1, actions)[..., 0]
        loss = mean_row(regression_loss(q_data, targets, self.config.loss))
        self._descend(loss, left)
        if self.num_updates % self.config.target_every_updates == 0:
            self.target.move_towards(self.parameters, self.column("tau"))
        if self.config.average_weights:
            # At first the plain mean of all weights so far: the initial ones should not linger.
            share = max(1.0 - self.config.average_weights, 1.0 / self.num_updates)
            self.average.move_towards(self.parameters, share)
        return {"train/loss": loss, "train/q": mean_row(q_data.detach())}
