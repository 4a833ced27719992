"""PPO: proximal policy optimisation, for discrete and continuous actions.

Source: Schulman et al. 2017, with the choices of Huang et al. 2022 ("The 37 implementation details
of PPO"): orthogonal weights, advantages normalised per minibatch, no value clipping. Continuous
actions are Gaussian with a deviation that does not depend on the state; what leaves [−1, 1] is cut
by the environment's bounds, so log-probability and entropy are those of what was sampled.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.networks import Parameters
from lactchain.baselines.population import Adam, Population
from lactchain.errors import ConfigError
from lactchain.functional.losses import generalized_advantages, ppo_clip_loss

LOG_2PI = float(np.log(2 * np.pi))


class Rollout(NamedTuple):
    """T steps of P members with N copies each: columns (T, P, N, …), inputs as networks see them.

    `last_inputs` (P, N, …) are where the next rollout begins; `final_inputs` have a row for each
    truncated step, in the order of `truncated.nonzero()`.
    """

    inputs: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    last_inputs: Tensor
    final_inputs: Tensor


class Rows(NamedTuple):
    """What a minibatch is made of, each (P, B, …)."""

    inputs: Tensor
    actions: Tensor
    behaviour_logps: Tensor
    advantages: Tensor
    returns: Tensor


class PPO(Population):
    """Members with a `PPOConfig` that learn on-policy."""

    def _make_parts(self) -> None:
        space, config, features = self.action_space, self.config, self.inputs.num_features
        self.is_discrete = isinstance(space, spaces.Discrete) and space.start == 0
        if not self.is_discrete and not isinstance(space, spaces.Box):
            raise ConfigError(f"PPO: expected Discrete actions from 0 or Box actions, got {space}")
        num_outputs = int(space.n) if self.is_discrete else math.prod(space.shape)
        networks = {"actor": (features, num_outputs, 0.01), "critic": (features, 1, 1.0)}
        others = {} if self.is_discrete else {"log_std": np.zeros((1, num_outputs))}
        self.parameters = Parameters(config, networks, self.num_members, self.rng, others)
        self.optimizer = Adam(self.parameters, eps=1e-5)

    def act(self, observations: np.ndarray, greedy: bool = False) -> np.ndarray:
        """Actions (P, N, …) for observations (P, N, …); greedy: the most likely ones."""
        with torch.inference_mode():
            return self._legal(self._sample(self.inputs.encode(observations), greedy))

    def advance(self, envs: MemberEnvs, progress: float = 0.0) -> dict[str, np.ndarray]:
        """One iteration: a rollout, then epochs over it."""
        return self.update(self.collect(envs), progress)

    def collect(self, envs: MemberEnvs) -> Rollout:
        """Plays `num_steps` steps in every copy."""
        played = []
        with torch.inference_mode():
            for _ in range(self.config.num_steps):
                x = self.inputs.encode(envs.observations)
                sampled = self._sample(x)
                played.append((x, sampled, envs.step(self._legal(sampled))))
            inputs, actions, steps = zip(*played, strict=True)
            final = np.concatenate([step.next_observations[step.truncated] for step in steps])
            return Rollout(
                torch.stack(inputs),
                torch.stack(actions),
                torch.from_numpy(np.stack([step.rewards for step in steps])).float(),
                torch.from_numpy(np.stack([step.terminated for step in steps])),
                torch.from_numpy(np.stack([step.truncated for step in steps])),
                self.inputs.encode(envs.observations),
                self.inputs.encode(final[None])[0],
            )

    def advantages(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Generalised advantages and the returns to regress on, (T, P, N) each."""
        num_steps = len(rollout.inputs)
        with torch.inference_mode():
            everything = torch.cat([rollout.inputs, rollout.last_inputs[None]]).transpose(0, 1)
            values = self._values(everything.flatten(1, 2)).unflatten(1, (num_steps + 1, -1))
            v_tm1, v_t = values[:, :-1].transpose(0, 1), values[:, 1:].transpose(0, 1).clone()
            # After a cut the next row is another episode's start: the cut state's own value counts.
            if len(rollout.final_inputs):
                member = rollout.truncated.nonzero()[:, 1]
                # Each is valued by all members; these are few rows.
                rows = rollout.final_inputs.expand(self.num_members, *rollout.final_inputs.shape)
                v_t[rollout.truncated] = self._values(rows)[member, torch.arange(len(member))]
            discount_t = self.config.gamma * (1.0 - rollout.terminated.float())
            rewards = self.config.reward_scale * rollout.rewards
            advantages = generalized_advantages(
                rewards, discount_t, v_tm1, v_t, self.config.gae_lambda, rollout.truncated
            )
            return advantages, advantages + v_tm1

    def update(self, rollout: Rollout, progress: float = 0.0) -> dict[str, np.ndarray]:
        """Epochs of minibatches over a rollout; returns metrics, each (P,)."""
        advantages, returns = self.advantages(rollout)
        with torch.inference_mode():
            inputs, actions = _flat(rollout.inputs), _flat(rollout.actions)
            logps, _ = self._logps_and_entropy(inputs, actions)
        columns = (inputs, actions, logps, _flat(advantages), _flat(returns))
        rows = Rows(*(column.clone() for column in columns))  # no inference tensors into autograd
        records, left = [], self._left(progress)
        for _ in range(self.config.num_epochs):
            for minibatch, weights in self._minibatches(rows):
                records.append(self._step(minibatch, weights, left))
        metrics = {
            name: torch.stack([record[name] for record in records]).mean(0).numpy()
            for name in records[0]
        }
        residual, total = rows.advantages.var(1), rows.returns.var(1)
        metrics["train/explained_variance"] = (1.0 - residual / (total + 1e-8)).numpy()
        if not self.is_discrete:
            log_std = self.parameters.views["log_std"][0].detach()
            metrics["train/log_std"] = log_std.mean((1, 2)).numpy()
        return metrics

    def _step(self, rows: Rows, weights: Tensor, left: float) -> dict[str, Tensor]:
        """One optimiser step of all members on a minibatch of (P, B) rows of these weights (B,)."""
        logps, entropy = self._logps_and_entropy(rows.inputs, rows.actions)
        clip_range = self.config.clip_range * left
        surrogate = ppo_clip_loss(logps, rows.behaviour_logps, rows.advantages, clip_range)
        policy_loss = (surrogate * weights).sum(1)
        value_loss = ((self._values(rows.inputs) - rows.returns).square() * weights).sum(1)
        entropy = (entropy * weights).sum(1)
        losses = policy_loss + self.config.value_coef * value_loss
        self._descend(losses - self.config.entropy_coef * entropy, left)
        return {
            "train/policy_loss": policy_loss.detach(),
            "train/value_loss": value_loss.detach(),
            "train/entropy": entropy.detach(),
        }

    def _minibatches(self, rows: Rows) -> Iterator[tuple[Rows, Tensor]]:
        """Random minibatches of one epoch: rows (P, B, …) and their weights (B,), which sum to 1.

        What fills the last one up weighs 0. Advantages are normalised per minibatch.
        """
        (members, num_rows), size = rows.returns.shape, self.config.batch_size
        order = self.rng.random((members, num_rows)).argsort(axis=1)
        place = np.arange(-(-num_rows // size) * size).reshape(-1, size)
        present = place < num_rows
        index = order.take(np.where(present, place, 0), axis=1)
        member = np.arange(members)[:, None, None]
        shuffled = Rows(*(column[member, index] for column in rows))
        counts = present.sum(-1, keepdims=True)
        weights = torch.from_numpy(present / counts).float()
        advantages = _normalised(shuffled.advantages, weights, torch.from_numpy(counts).float())
        shuffled = shuffled._replace(advantages=advantages)
        for k in range(len(place)):
            yield Rows(*(column[:, k] for column in shuffled)), weights[k]

    def _logps_and_entropy(self, rows: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of actions and entropies of the policy, (P, B) each."""
        outputs = self.parameters("actor", rows)
        if self.is_discrete:
            logps = outputs.log_softmax(-1)
            entropy = -(logps.exp() * logps).sum(-1)
            return logps.gather(-1, actions[..., None])[..., 0], entropy
        (log_std,) = self.parameters.views["log_std"]
        standard = (actions - outputs) * (-log_std).exp()
        logps = (-0.5 * standard.square() - log_std - 0.5 * LOG_2PI).sum(-1)
        entropy = (log_std + 0.5 * LOG_2PI + 0.5).sum(-1).expand_as(logps)
        return logps, entropy

    def _values(self, rows: Tensor) -> Tensor:
        """V(s), (P, B)."""
        return self.parameters("critic", rows)[..., 0]

    def _sample(self, x: Tensor, greedy: bool = False) -> Tensor:
        """Actions (P, N, …), continuous ones not yet clipped."""
        outputs = self.parameters("actor", x)
        if self.is_discrete:
            if not greedy:
                outputs = outputs + torch.from_numpy(self.rng.gumbel(size=outputs.shape))
            return outputs.argmax(-1)
        if greedy:
            return outputs
        noise = torch.from_numpy(self.rng.standard_normal(outputs.shape, dtype=np.float32))
        return outputs + self.parameters.views["log_std"][0].exp() * noise

    def _legal(self, actions: Tensor) -> np.ndarray:
        """Sampled actions as the environment takes them."""
        if self.is_discrete:
            return actions.numpy()
        legal = actions.clamp(-1.0, 1.0).numpy()
        return legal.reshape(*legal.shape[:2], *self.action_space.shape)


def _flat(column: Tensor) -> Tensor:
    """Steps (T, P, N, …) as rows (P, T·N, …)."""
    return column.transpose(0, 1).flatten(1, 2)


def _normalised(advantages: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    """Advantages (P, K, B) with mean 0 and deviation 1 in each minibatch of more than one row.

    Weights are of rows, (K, B), and counts the rows of each minibatch, (K, 1).
    """
    mean = (advantages * weights).sum(-1, keepdim=True)
    centred = advantages - mean
    variance = (centred.square() * weights).sum(-1, keepdim=True)
    variance = variance * counts / (counts - 1).clamp(min=1)  # as torch's var, unbiased
    return torch.where(counts > 1, centred / (variance.sqrt() + 1e-8), advantages)
