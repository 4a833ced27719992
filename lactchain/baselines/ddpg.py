"""DDPG: a deterministic actor that climbs its critic, for continuous actions.

Source: Lillicrap et al. 2015. The actor is trained through the online critic; target networks serve
for targets alone. Exploration is Gaussian noise on the actions, drawn for each copy by itself.
"""

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.networks import Parameters
from lactchain.baselines.population import Adam, TransitionLearner, mean_metrics, mean_row
from lactchain.baselines.transitions import Minibatch
from lactchain.errors import ConfigError


class DDPG(TransitionLearner):
    """Members with a `DDPGConfig` that learn off-policy."""

    def _make_parts(self) -> None:
        if not isinstance(self.action_space, spaces.Box):
            raise ConfigError(f"DDPG: expected Box actions, got {self.action_space}")
        config, width, rng = self.config, int(np.prod(self.action_space.shape)), self.rng
        features, num_members = self.inputs.num_features, self.num_members
        self.actors = Parameters(config, {"pi": (features, width, 0.01)}, num_members, rng)
        self.critics = Parameters(config, {"q0": (features + width, 1, 1.0)}, num_members, rng)
        self.target_actors, self.target_critics = self.actors.copy(), self.critics.copy()
        self.actor_optimizer, self.critic_optimizer = Adam(self.actors), Adam(self.critics)
        self.replay = self._new_replay()

    def act(self, observations: np.ndarray, greedy: bool = False) -> np.ndarray:
        """Actions (P, N, …) in [−1, 1] for observations (P, N, …); greedy: without noise."""
        with torch.inference_mode():
            actions = self.policy(self.actors, self.inputs.encode(observations)).numpy()
        if not greedy:
            noise = self.rng.standard_normal(actions.shape, dtype=np.float32)
            actions = np.clip(actions + self.config.exploration_noise * noise, -1.0, 1.0)
        return actions.reshape(*actions.shape[:2], *self.action_space.shape)

    def advance(self, envs: MemberEnvs, progress: float = 0.0) -> dict[str, np.ndarray]:
        """One iteration: some steps in every copy, then a round of updates; their mean metrics."""
        return mean_metrics(self._play_and_learn(envs, self._at_random, self.act, progress))

    def _at_random(self, observations: np.ndarray) -> np.ndarray:
        shape = (*observations.shape[:2], *self.action_space.shape)
        return self.rng.uniform(-1.0, 1.0, shape).astype(np.float32)

    def update(self, batch: Minibatch, left: float = 1.0) -> dict[str, Tensor]:
        """One step of all members; see `TransitionLearner`."""
        x = self.inputs.encode(batch.observations)
        actions = torch.from_numpy(batch.actions).flatten(2).float()
        error = self.values(self.critics, x, actions) - self.targets(batch)
        critic_loss = mean_row(error.square())
        gradient = self.critics.gradient(critic_loss.sum())
        self.critic_optimizer.step(gradient, self.config.learning_rate * left)
        actor_loss = self.actor_loss(x)
        gradient = self.actors.gradient(actor_loss.sum())
        self.actor_optimizer.step(gradient, self.config.actor_learning_rate * left)
        self.num_updates += 1
        self.target_critics.move_towards(self.critics, self.config.tau)
        self.target_actors.move_towards(self.actors, self.config.tau)
        return {"train/critic_loss": critic_loss, "train/actor_loss": actor_loss}

    def actor_loss(self, x: Tensor) -> Tensor:
        """−Q(s, π(s)) under the online critic, (P,)."""
        return -mean_row(self.values(self.critics, x, self.policy(self.actors, x)))

    def targets(self, batch: Minibatch) -> Tensor:
        """Targets r + γ(1 − terminated) Q'(s', π'(s')), (P, B)."""
        with torch.no_grad():
            x = self.inputs.encode(batch.next_observations)
            worth = self.values(self.target_critics, x, self.policy(self.target_actors, x))
            alive = torch.from_numpy(~batch.terminated).float()
            rewards = self.config.reward_scale * torch.from_numpy(batch.rewards)
            return rewards + self.config.gamma * alive * worth

    def policy(self, actors: Parameters, x: Tensor) -> Tensor:
        """π(s), (P, B, D) in (−1, 1)."""
        return actors("pi", x).tanh()

    def values(self, critics: Parameters, x: Tensor, actions: Tensor) -> Tensor:
        """Q(s, a), (P, B)."""
        return critics("q0", torch.cat([x, actions], dim=-1))[..., 0]
