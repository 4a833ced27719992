"""DDPG: targets by hand, the actor through the online critic, every setting heard, learning."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from lactchain.baselines.ddpg import DDPG
from lactchain.baselines.evaluation import evaluate_members
from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.settings import DDPGConfig
from lactchain.baselines.transitions import Minibatch
from lactchain.errors import ConfigError

LINE, BOX = spaces.Box(-9, 9, (1,)), spaces.Box(-1, 1, (1,))
LINEAR = DDPGConfig(hidden=(), gamma=0.5, batch_size=4)


def constant_critic(agent, value):
    """A target critic that gives every pair the same value."""
    agent.target_critics.flat.zero_()
    agent.target_critics.views["q0"][1].data.fill_(value)


def one(terminated=False):
    """A batch of one row: a step from 2 by 0.5 to 3, for a reward of 1."""
    row = np.ones((1, 1, 1), np.float32)
    reward, end = np.ones((1, 1), np.float32), np.full((1, 1), terminated)
    return Minibatch(2 * row, 0.5 * row, reward, end, 3 * row)


def test_targets_by_hand():
    for scale in (1.0, 0.25):
        agent = DDPG([replace(LINEAR, reward_scale=scale)], LINE, BOX)
        constant_critic(agent, 8.0)
        assert agent.targets(one()).item() == scale * 1 + 0.5 * 8
        assert agent.targets(one(terminated=True)).item() == scale * 1


def test_the_actor_climbs_the_online_critic_and_not_the_target():
    agent = DDPG([LINEAR], LINE, BOX)
    agent.actors.flat.zero_()
    online, target = agent.critics.views["q0"][0], agent.target_critics.views["q0"][0]
    online.data.copy_(torch.tensor([[[0.0], [1.0]]]))  # Q = a
    target.data.copy_(torch.tensor([[[0.0], [-1.0]]]))  # Q' = −a
    x = torch.ones(1, 1, 1)
    gradient = agent.actors.gradient(agent.actor_loss(x).sum())
    assert (gradient < 0).all()  # descending raises π(s) = tanh(w x + b)
    assert gradient.flatten().tolist() == [-1.0, -1.0]


def test_targets_move_by_tau_after_each_update():
    agent = DDPG([replace(LINEAR, tau=0.25)], LINE, BOX)
    before = agent.target_critics.flat.clone(), agent.target_actors.flat.clone()
    agent.update(one())
    for target, start, online in zip(
        (agent.target_critics, agent.target_actors), before, (agent.critics, agent.actors),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(target.flat, start + 0.25 * (online.flat - start))


def test_noise_is_each_copys_own_and_all_actions_are_within_bounds():
    agent = DDPG([replace(LINEAR, exploration_noise=0.2)], LINE, BOX)
    x = np.zeros((1, 5000, 1), np.float32)
    actions = agent.act(x)
    assert actions.std() == pytest.approx(0.2, rel=0.1) and np.all(np.abs(actions) <= 1)
    assert np.unique(agent.act(x, greedy=True)).size == 1


class Unbounded(gym.Env):
    observation_space, action_space = LINE, spaces.Box(-np.inf, np.inf, (1,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}


def test_unbounded_actions_are_refused(monkeypatch):
    spec = gym.envs.registration.EnvSpec("test/Unbounded-v0", Unbounded)
    monkeypatch.setitem(gym.registry, "test/Unbounded-v0", spec)
    with pytest.raises(ConfigError, match="expected actions with finite bounds"):
        MemberEnvs("test/Unbounded-v0", 1, 1)


@pytest.mark.slow
def test_it_swings_the_pendulum_up():
    config = DDPGConfig(
        num_envs=4, hidden=(64, 64), train_every_env_steps=4, num_updates=4, gamma=0.98,
        batch_size=128, learning_starts=500, anneal=True,
    )  # fmt: skip
    envs = MemberEnvs("Pendulum-v1", 1, 4, seed=0)
    agent = DDPG([config], envs.observation_space, envs.action_space, seed=0)
    while envs.num_env_steps < 12_000:
        agent.advance(envs, envs.num_env_steps / 12_000)
    act = lambda x: agent.act(x, greedy=True)  # noqa: E731
    assert evaluate_members(act, "Pendulum-v1", 1, 20, seed=100).returns.mean() > -250
