"""Agents learn known values of tiny worlds; a wrong one names the fault."""

from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from lactchain.baselines.ddpg import DDPG
from lactchain.baselines.dqn import DQN
from lactchain.baselines.evaluation import evaluate_members, success_return
from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.ppo import PPO
from lactchain.baselines.settings import DDPGConfig, DQNConfig, PPOConfig, WorldConfig

GAMMA, NUM_COPIES = 0.5, 4


@dataclass(frozen=True)
class Probe:
    """A chain of states, in which actions change nothing.

    Attributes:
        next_state: the state after each state.
        rewards: of leaving each state.
        terminal: states that end the episode when they are left.
        cut: states where the time limit cuts when they are left.
        starts: the states that episodes begin in, each as often.
    """

    next_state: tuple[int, ...]
    rewards: tuple[float, ...]
    terminal: tuple[int, ...] = ()
    cut: tuple[int, ...] = ()
    starts: tuple[int, ...] = (0,)

    def values(self):
        """Of the states, by iterating Bellman's equation."""
        values, alive = np.zeros(len(self.rewards)), np.ones(len(self.rewards))
        alive[[*self.terminal]] = 0.0
        for _ in range(50):
            values = np.array(self.rewards) + GAMMA * alive * values[[*self.next_state]]
        return values


PROBES = {  # by the fault that a wrong value tells of
    "a terminal state is given a value": Probe((0,), (1.0,), terminal=(0,)),
    "a time limit is taken for an ending": Probe((1, 0), (1.0, 1.0), cut=(1,)),
    # What the episode ends on looks like state 1, and is terminal all the same.
    "the row on which a batch resets is learnt from": Probe((1, 1), (0.0, 1.0), terminal=(1,)),
    # Cut on entering state 3, which is worth 4: the next episode's start is worth something else.
    "the successor of a last step is another episode's start, or another row of the ring": Probe(
        (1, 2, 3, 3), (0.0, 0.0, 0.0, 4.0), terminal=(3,), cut=(2,), starts=(0, 3)
    ),
    "rewards or ends are a step early or late": Probe((1, 2, 2), (0.0, 0.0, 1.0), terminal=(2,)),
}


class ProbeEnv(gym.Env):
    """Observations are the state; actions, which are ignored, are of `Discrete(2)` or a box."""

    def __init__(self, fault, is_box):
        self.probe = PROBES[fault]
        self.observation_space = spaces.Discrete(len(self.probe.rewards))
        self.action_space = spaces.Box(-1, 1, (1,)) if is_box else spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = int(self.np_random.choice(self.probe.starts))
        return self.state, {}

    def step(self, action):
        probe, left = self.probe, self.state
        self.state = probe.next_state[left]
        return self.state, probe.rewards[left], left in probe.terminal, left in probe.cut, {}


# Linear networks on one-hot states are tables.
TABLE = {"num_envs": NUM_COPIES, "hidden": (), "learning_rate": 0.05, "batch_size": 64,
         "anneal": True, "gamma": GAMMA}  # fmt: skip
REPLAY = {"train_every_env_steps": 8, "num_updates": 2, "learning_starts": 64, "buffer_size": 200}
AGENTS = {
    DQN: (DQNConfig(**TABLE, **REPLAY, target_every_updates=10, loss="mse"), 1000),
    PPO: (PPOConfig(**TABLE, num_steps=32, num_epochs=5, max_grad_norm=10.0), 2000),
    DDPG: (DDPGConfig(**TABLE, **REPLAY, tau=0.1), 1000),
}


@pytest.mark.parametrize("fault", PROBES)
@pytest.mark.parametrize("kind", AGENTS)
def test_an_agent_values_states_as_they_are_worth(kind, fault, monkeypatch):
    spec = gym.envs.registration.EnvSpec("test/Probe-v0", ProbeEnv)
    monkeypatch.setitem(gym.registry, spec.id, spec)
    config, num_steps = AGENTS[kind]
    envs = MemberEnvs(spec.id, 1, NUM_COPIES, seed=0, fault=fault, is_box=kind is DDPG)
    agent = kind(config, envs.observation_space, envs.action_space, seed=0)
    while envs.num_env_steps < num_steps:
        agent.advance(envs, envs.num_env_steps / num_steps)
    expected = PROBES[fault].values()
    tolerance = 0.08 * max(1.0, expected.max())
    found = values_of(agent, len(expected))
    np.testing.assert_allclose(found, expected, 0, tolerance, err_msg=fault)


@torch.no_grad()
def values_of(agent, num_states):
    """V(s), or max_a Q(s, a)."""
    x = agent.inputs.encode(np.arange(num_states)[None])
    if isinstance(agent, PPO):
        return agent.parameters("critic", x)[0, :, 0]
    if isinstance(agent, DDPG):
        return agent.values(agent.critics, x, agent.policy(agent.actors, x))[0]
    return agent.values(x)[0].amax(-1)


def right(observations):
    return np.ones(observations.shape[:2], dtype=np.int64)


def test_whole_episodes_are_evaluated_from_the_same_seeds_for_all_members():
    result = evaluate_members(right, "CartPole-v1", num_members=2, num_episodes=6, seed=5)
    assert result.returns.shape == (2, 6) and (result.returns[0] == result.returns[1]).all()
    assert 8 <= result.returns.mean() <= 11
    assert (result.lengths == result.returns).all()  # nothing counts beyond the first end


def test_success_is_a_return_that_the_world_or_its_config_names():
    assert success_return(WorldConfig("CartPole-v1")) == 475
    assert success_return(WorldConfig("CartPole-v1", success_return=20)) == 20
    assert success_return(WorldConfig("Pendulum-v1")) is None
    result = evaluate_members(right, "CartPole-v1", 1, 20)
    share = (result.returns[0] >= 10).mean()
    assert 0 < share < 1 and result.summary(0, 10)["success_rate"] == share
    assert "success_rate" not in result.summary()
