"""Q-learning for discrete actions: DQN from a replay buffer, CQL from recorded transitions.

DQN: Mnih et al. 2015; van Hasselt, Guez & Silver 2016 (the online network chooses the next
action, the target network values it). The number of updates per environment step is fixed by the
config; each copy of the environment tosses its own coin when exploring.

The greedy policy of the last weights changes from update to update, and now and then is a bad one
(it forgets how the edges of the state space are met). `average_weights` lets greedy play use a
running average of the weights instead (Polyak & Juditsky 1992); learning does not see it.

CQL: Kumar et al. 2020, CQL(H): the loss of double DQN plus `cql_weight` times
log Σ_a exp Q(s, a) − Q(s, a_data). What is subtracted is the value of the action in the data, so
actions that the data lack are pushed below those that they hold. Observations that are numbers are
brought to mean 0 and deviation 1 by the data's own statistics (Fujimoto & Gu 2021).
"""

from functools import partial

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.networks import Parameters
from lactchain.baselines.population import Adam, TransitionLearner, mean_metrics, mean_row
from lactchain.baselines.transitions import Minibatch, TransitionData
from lactchain.errors import ConfigError
from lactchain.functional.losses import cql_penalty, double_q_targets, regression_loss


class QLearner(TransitionLearner):
    """Members that act by the best of their Q-values."""

    def _make_parts(self) -> None:
        name, space, config = type(self).__name__, self.action_space, self.config
        if not (isinstance(space, spaces.Discrete) and space.start == 0):
            raise ConfigError(f"{name}: expected Discrete actions from 0, got {space}")
        networks = {"q": (self.inputs.num_features, int(space.n), 1.0)}
        self.parameters = Parameters(config, networks, self.num_members, self.rng)
        self.target = self.parameters.copy()
        self.optimizer = Adam(self.parameters)
        if config.average_weights:
            self.average = self.parameters.copy()

    def encode(self, observations: np.ndarray) -> Tensor:
        """Observations (P, B, …) as the network sees them."""
        return self.inputs.encode(observations)

    def act(
        self, observations: np.ndarray, greedy: bool = False, epsilon: float = 0.0
    ) -> np.ndarray:
        """Actions (P, N) for observations (P, N, …), the best ones if greedy.

        Else a share `epsilon` of them is random.
        """
        with torch.inference_mode():
            acting = self.parts.get("average", self.parameters) if greedy else self.parameters
            best = acting("q", self.encode(observations)).argmax(-1).numpy()
        if greedy:
            return best
        explores = self.rng.random(best.shape) < epsilon
        return np.where(explores, self.rng.integers(self.action_space.n, size=best.shape), best)

    def values(self, x: Tensor) -> Tensor:
        """Q(s, ·) of the online network, (P, B, A)."""
        return self.parameters("q", x)

    def targets(self, batch: Minibatch) -> Tensor:
        """Targets r + γ(1 − terminated) Q'(s', a'), (P, B); a time limit ends no value."""
        with torch.no_grad():
            x = self.encode(batch.next_observations)
            q_target = self.target("q", x)
            q_online = self.values(x) if self.config.double else q_target
            alive = torch.from_numpy(~batch.terminated).float()
            rewards = self.config.reward_scale * torch.from_numpy(batch.rewards)
            return double_q_targets(rewards, self.config.gamma * alive, q_target, q_online)

    def update(self, batch: Minibatch, left: float = 1.0) -> dict[str, Tensor]:
        """One step of all members; see `TransitionLearner`."""
        targets, actions = self.targets(batch), torch.from_numpy(batch.actions)
        q = self.values(self.encode(batch.observations))
        q_data = q.gather(-1, actions[..., None])[..., 0]
        error = mean_row(regression_loss(q_data, targets, self.config.loss))
        loss, metrics = self._loss(error, q, actions)
        self._descend(loss, left)
        if self.num_updates % self.config.target_every_updates == 0:
            self.target.move_towards(self.parameters, self.config.tau)
        if self.config.average_weights:
            # At first the plain mean of all weights so far: the initial ones should not linger.
            share = max(1.0 - self.config.average_weights, 1.0 / self.num_updates)
            self.average.move_towards(self.parameters, share)
        return metrics | {"train/q": mean_row(q_data.detach())}

    def _loss(self, error: Tensor, q: Tensor, actions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """What is descended, (P,), and its parts; of the values (P, B, A) of some states."""
        return error, {"train/loss": error}


class DQN(QLearner):
    """Members with a `DQNConfig` that learn off-policy."""

    def _make_parts(self) -> None:
        super()._make_parts()
        self.replay = self._new_replay()

    def exploration(self, progress: float) -> float:
        """The exploration rate at a share of the run that is done."""
        fraction = max(self.config.exploration_fraction, 1e-9)
        return 1.0 + min(progress / fraction, 1.0) * (self.config.final_exploration - 1.0)

    def advance(self, envs: MemberEnvs, progress: float = 0.0) -> dict[str, np.ndarray]:
        """One iteration: some steps in every copy, then a round of updates; metrics of the last."""
        rate = self.exploration(progress)
        act_at_random = partial(self.act, epsilon=1.0)
        act = partial(self.act, epsilon=rate)
        records = self._play_and_learn(envs, act_at_random, act, progress)
        rates = np.full(self.num_members, rate)
        return {"train/exploration": rates} | (records[-1] if records else {})


class CQL(QLearner):
    """Members with a `CQLConfig` that learn from one data set."""

    def _make_parts(self) -> None:
        super()._make_parts()
        shape = (1, self.inputs.num_features)
        units = {"mean": np.zeros(shape), "deviation": np.ones(shape)}
        self.units = Parameters(self.config, {}, self.num_members, self.rng, units).copy()

    def advance(self, data: TransitionData, progress: float = 0.0) -> dict[str, np.ndarray]:
        """One iteration: `num_updates` updates on random transitions, whose actions are legal."""
        if self.num_updates == 0:
            self._measure(data)
        return mean_metrics(self._round(partial(data.sample, self.num_members), progress))

    def _loss(self, error: Tensor, q: Tensor, actions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        penalty = mean_row(cql_penalty(q, actions))
        loss = 0.5 * error + self.config.cql_weight * penalty
        return loss, {"train/td_loss": error, "train/cql_penalty": penalty}

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
        self.units.views["mean"][0].copy_(rows.mean(0))
        self.units.views["deviation"][0].copy_(torch.where(deviation > 1e-6, deviation, 1.0))
