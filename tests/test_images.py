"""Agents see images: every agent that can learns from pictures, channels first or last."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from lactchain.baselines.dqn import DQN
from lactchain.baselines.evaluation import evaluate_members
from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.ppo import PPO
from lactchain.baselines.settings import DQNConfig, PPOConfig


class BrightHalf(gym.Env):
    """Which half of the picture is bright? One step, +1 for the right answer."""

    def __init__(self, channels_last=True):
        self.channels_last = channels_last
        shape = (12, 12, 3) if channels_last else (3, 12, 12)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bright = int(self.np_random.integers(2))
        picture = self.np_random.integers(0, 60, (12, 12, 3)).astype(np.uint8)
        picture[:, 6 * self.bright : 6 * self.bright + 6] += 180
        self.picture = picture if self.channels_last else picture.transpose(2, 0, 1)
        return self.picture, {}

    def step(self, action):
        return self.picture, float(action == self.bright), True, False, {}


@pytest.fixture
def env_id():
    gym.register("test/BrightHalf-v0", BrightHalf, disable_env_checker=True)
    yield "test/BrightHalf-v0"
    del gym.registry["test/BrightHalf-v0"]


PPO_CONFIG = PPOConfig(
    num_envs=8, num_steps=16, batch_size=64, num_epochs=4, hidden=(16,), learning_rate=3e-3
)
DQN_CONFIG = DQNConfig(
    num_envs=8, train_every_env_steps=8, num_updates=2, hidden=(16,), learning_rate=3e-3,
    learning_starts=64, buffer_size=1000, exploration_fraction=0.5,
)  # fmt: skip


@pytest.mark.parametrize(
    ("agent_class", "config", "channels_last"), [(PPO, PPO_CONFIG, True), (DQN, DQN_CONFIG, False)]
)
def test_every_member_tells_bright_from_dark(agent_class, config, channels_last, env_id):
    envs = MemberEnvs(env_id, 2, config.num_envs, seed=0, channels_last=channels_last)
    agent = agent_class([config] * 2, envs.observation_space, envs.action_space, seed=0)
    while envs.num_env_steps < 2 * 1500:
        agent.advance(envs, envs.num_env_steps / 3000)
    options = {"seed": 9, "channels_last": channels_last}
    result = evaluate_members(lambda x: agent.act(x, greedy=True), env_id, 2, 20, **options)
    assert result.returns.min() == 1
