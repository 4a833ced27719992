"""DQN: deep Q-learning with replay, a target network and double estimates, for discrete actions.

Source: Mnih et al. 2015; van Hasselt, Guez & Silver 2016 (the online network chooses the next
action, the target network values it). The number of updates per environment step is fixed by the
config; each copy of the environment tosses its own coin when exploring.

The greedy policy of the last weights changes from update to update, and now and then is a bad one
(it forgets how the edges of the state space are met). `average_weights` lets greedy play use a
running average of the weights instead (Polyak & Juditsky 1992); learning does not see it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.networks import Network, Parameters
from lactchain.baselines.population import Adam, Population, row_weights
from lactchain.baselines.replay import Batch, ReplayBuffer
from lactchain.baselines.settings import DQNConfig
from lactchain.errors import ConfigError
from lactchain.functional.value_losses import double_q_targets, regression_loss


class DQN(Population):
    """P members that learn off-policy; see `Population` for the arguments."""

    def __init__(
        self,
        configs: Sequence[DQNConfig],
        observation_space: spaces.Space,
        action_space: spaces.Space,
        seed: int = 0,
    ) -> None:
        super().__init__(configs, observation_space, action_space, seed)
        if not (isinstance(action_space, spaces.Discrete) and action_space.start == 0):
            raise ConfigError(f"DQN: expected Discrete actions from 0, got {action_space}")
        self.num_actions = int(action_space.n)
        config = self.config
        self.network = Network(self.inputs, config.hidden, self.num_actions, config.activation)
        members = [{"q": self.network.initial(self.rng)} for _ in configs]
        self.parameters = Parameters(members)
        self.target = self.parameters.copy()
        self.optimizer = Adam(self.parameters)
        self.replay = ReplayBuffer(
            self.num_members, config.buffer_size, observation_space, action_space
        )
        self.parts = {
            "parameters": self.parameters,
            "target": self.target,
            "optimizer": self.optimizer,
            "replay": self.replay,
        }
        if config.average_weights:
            self.parts["average"] = self.parameters.copy()

    def act(
        self,
        observations: np.ndarray,
        greedy: bool = False,
        epsilon: float | np.ndarray = 0.0,
    ) -> np.ndarray:
        """Actions (P, N) for observations (P, N, …).

        Args:
            observations: what the members see.
            greedy: take the best actions; else explore at the rate `epsilon`.
            epsilon: probability of a random action, a number or one for each member (P, 1).
        """
        with torch.inference_mode():
            x = self.inputs.encode(observations)
            acting = self.parts.get("average", self.parameters) if greedy else self.parameters
            best = self.network(acting.views["q"], x).argmax(-1).numpy()
        if greedy:
            return best
        explores = self.rng.random(best.shape) < epsilon
        return np.where(explores, self.rng.integers(self.num_actions, size=best.shape), best)

    def exploration(self, progress: float) -> np.ndarray:
        """Exploration rates (P, 1) at a share of the run that is done."""
        final = self.hyper["final_exploration"]
        fraction = np.maximum(self.hyper["exploration_fraction"], 1e-9)
        return (1.0 + np.minimum(progress / fraction, 1.0) * (final - 1.0))[:, None]

    def advance(self, envs: MemberEnvs, progress: float = 0.0) -> dict[str, np.ndarray]:
        """One iteration: some steps in every copy, then a round of updates; returns metrics.

        They are those of the last update, each (P,).

        Args:
            envs: what the members play.
            progress: share of the run that is done, for the exploration schedule.
        """
        self.collect(envs, progress)
        metrics = {"train/exploration": self.exploration(progress)[:, 0]}
        if self.replay.total < self.config.learning_starts:
            return metrics
        left = 1.0 - progress if self.config.anneal else 1.0
        weights = row_weights(self.hyper["batch_size"])
        for _ in range(self.config.num_updates):
            batch = self.replay.sample(weights.shape[1], self.rng)
            losses, q_data = self.update(batch, weights, left)
        metrics["train/loss"] = losses.numpy()
        metrics["train/q"] = (q_data * weights).sum(1).numpy()
        return metrics

    def collect(self, envs: MemberEnvs, progress: float) -> None:
        """Plays `train_every_env_steps` steps of each member into the replay buffer."""
        for _ in range(self.config.train_every_env_steps // self.config.num_envs):
            starting = self.replay.total < self.config.learning_starts
            epsilon = 1.0 if starting else self.exploration(progress)
            self.replay.add(envs.step(self.act(envs.observations, epsilon=epsilon)))

    def update(self, batch: Batch, weights: Tensor, left: float = 1.0) -> tuple[Tensor, Tensor]:
        """One optimiser step of all members; returns losses (P,) and values of the data (P, B).

        Args:
            batch: transitions (P, B, …).
            weights: (P, B), what each counts; those of a member sum to 1.
            left: factor on the learning rate.
        """
        x = self.inputs.encode(batch.observations)
        actions = torch.from_numpy(batch.actions)[..., None]
        targets = self.targets(batch)
        q_data = self.values(x).gather(-1, actions)[..., 0]
        loss = (regression_loss(q_data, targets, self.config.loss) * weights).sum(1)
        self._descend(loss, left)
        return loss.detach(), q_data.detach()

    def targets(self, batch: Batch) -> Tensor:
        """Targets r + γ(1 − terminated) Q'(s', a'), (P, B); a time limit ends no value."""
        with torch.no_grad():
            x = self.inputs.encode(batch.next_observations)
            q_target = self.network(self.target.views["q"], x)
            q_online = self.values(x) if self.config.double else q_target
            alive = torch.from_numpy(~batch.terminated).float()
            rewards = self.config.reward_scale * torch.from_numpy(batch.rewards)
            return double_q_targets(rewards, self.column("gamma") * alive, q_target, q_online)

    def values(self, x: Tensor) -> Tensor:
        """Q(s, ·) of the online network, (P, B, A)."""
        return self.network(self.parameters.views["q"], x)

    def _descend(self, loss: Tensor, left: float) -> None:
        gradient = self.parameters.gradient(loss.sum())
        learning_rate = self.hyper["learning_rate"] * left
        self.optimizer.step(gradient, learning_rate, self.hyper["max_grad_norm"])
        self.num_updates += 1
        if self.num_updates % self.config.target_every_updates == 0:
            self.target.move_towards(self.parameters, self.column("tau")[:, 0])
        if self.config.average_weights:
            # At first the plain mean of all weights so far: the initial ones should not linger.
            share = max(1.0 - self.config.average_weights, 1.0 / self.num_updates)
            self.parts["average"].move_towards(self.parameters, share)
