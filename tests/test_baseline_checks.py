"""The checks for agents: ours pass, and every planted fault is caught by the check named for it."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from lactchain.baselines import member_envs
from lactchain.baselines.ddpg import DDPG
from lactchain.baselines.dqn import DQN
from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.ppo import PPO
from lactchain.baselines.replay import Minibatch, ReplayBuffer
from lactchain.baselines.settings import DDPGConfig, DQNConfig, PPOConfig
from lactchain.functional.returns import generalized_advantages
from lactchain.functional.value_losses import cql_penalty, double_q_targets
from lactchain_extras.agent_checks import (
    GAMMA,
    PROBES,
    check_advantages,
    check_conservatism,
    check_double_q,
    check_replay,
    examine,
)

NUM_COPIES = 4


def states_of(states):
    return np.asarray(states)[None]


def learn_by(agent_class, config, num_steps):
    """How `examine` has our agents learn; linear networks on one-hot states are tables."""

    def learn(env_id, kwargs, gamma):
        envs = MemberEnvs(env_id, 1, NUM_COPIES, seed=0, **kwargs)
        members = [replace(config, gamma=gamma)]
        agent = agent_class(members, envs.observation_space, envs.action_space, seed=0)
        while envs.num_env_steps < num_steps:
            agent.advance(envs, envs.num_env_steps / num_steps)
        return lambda states: values_of(agent, states)

    return learn


@torch.no_grad()
def values_of(agent, states):
    x = agent.inputs.encode(states_of(states))
    if isinstance(agent, PPO):
        return agent._values(x)[0].numpy()
    if isinstance(agent, DDPG):
        return agent.critic(agent.critics.views["q0"], x, agent.policy(agent.actors, x))[0, :, 0]
    return agent.values(x)[0].amax(-1).numpy()


DQN_TABLE = DQNConfig(
    num_envs=NUM_COPIES, hidden=(), learning_rate=0.05, batch_size=64, train_every_env_steps=8,
    num_updates=2, learning_starts=64, target_every_updates=10, buffer_size=200, anneal=True,
    loss="mse",
)  # fmt: skip
PPO_TABLE = PPOConfig(
    num_envs=NUM_COPIES, num_steps=32, hidden=(), learning_rate=0.05, batch_size=64, num_epochs=5,
    max_grad_norm=10.0, anneal=True,
)  # fmt: skip
DDPG_TABLE = DDPGConfig(
    num_envs=NUM_COPIES, hidden=(), learning_rate=0.05, batch_size=64, train_every_env_steps=8,
    num_updates=2, learning_starts=64, tau=0.1, buffer_size=200, anneal=True,
)  # fmt: skip
LEARN = {
    "dqn": (learn_by(DQN, DQN_TABLE, 1000), {}),
    "ppo": (learn_by(PPO, PPO_TABLE, 2000), {}),
    "ddpg": (learn_by(DDPG, DDPG_TABLE, 1000), {"actions": "box"}),
}


def exact_values(probe):
    """Values of a probe's states by iterating Bellman's equation."""
    values = np.zeros(len(probe.rewards))
    following = list(probe.next_state)
    alive = ~np.isin(np.arange(len(following)), probe.terminal)
    for _ in range(200):
        values = np.array(probe.rewards) + GAMMA * alive * values[following]
    return values


@pytest.mark.parametrize("name", PROBES)
def test_the_known_values_are_right(name):
    probe = PROBES[name]
    np.testing.assert_allclose(probe.values, exact_values(probe), atol=1e-9)


@pytest.mark.parametrize("agent", LEARN)
def test_our_agents_pass(agent):
    learn, kwargs = LEARN[agent]
    assert examine(learn, **kwargs) == {}


# --- planted faults ------------------------------------------------------------------------------


class ReplayThatTakesCutsForEnds(ReplayBuffer):
    def add(self, step):
        super().add(replace(step, terminated=step.terminated | step.truncated))


class ReplayThatIgnoresEnds(ReplayBuffer):
    def add(self, step):
        super().add(replace(step, terminated=np.zeros_like(step.terminated)))


class ReplayThatReadsTheNextRow(ReplayBuffer):
    """The successor of row i is row i + 1."""

    def rows(self, places):
        batch = super().rows(places)
        return replace(batch, next_observations=super().rows((places + 1) % self.size).observations)


class LateReset(MemberEnvs):
    """Copies that reset one step late, whose dummy rows are learnt from."""

    def __init__(self, id, num_members, num_envs, seed=0, **kwargs):
        super().__init__(id, num_members, num_envs, seed, **kwargs)
        late = AutoresetMode.NEXT_STEP
        self.envs = SyncVectorEnv([lambda: gym.make(id, **kwargs)] * num_envs, autoreset_mode=late)
        self.observations = self._members(self.envs.reset(seed=seed)[0])

    def step(self, actions):
        before = self.observations
        *told, _ = self.envs.step(actions.ravel())
        self.observations, rewards, terminated, truncated = map(self._members, told)
        self._count(rewards, terminated | truncated)
        return member_envs.Transition(
            before, actions, rewards, terminated, self.observations, truncated
        )


@pytest.mark.parametrize("agent", ["dqn", "ppo"])
def test_rows_on_which_an_environment_resets_are_caught(agent, monkeypatch):
    monkeypatch.setitem(globals(), "MemberEnvs", LateReset)
    assert {*examine(LEARN[agent][0], ["autoreset"])} == {"autoreset"}


class PPOThatValuesTheNextStart(PPO):
    """Bootstraps a cut episode from the first state of the next one."""

    def advantages(self, rollout):
        return super().advantages(replace(rollout, final_inputs=rollout.final_inputs[:0]))


class PPOWithLateMask(PPO):
    """The end of an episode is looked up one step too late."""

    def advantages(self, rollout):
        return super().advantages(replace(rollout, terminated=rollout.terminated.roll(-1, 0)))


FAULTS = [
    (ReplayThatTakesCutsForEnds, ["truncation", "termination"], {"truncation"}),
    (ReplayThatIgnoresEnds, ["truncation", "termination"], {"termination"}),
    (ReplayThatReadsTheNextRow, ["successor"], {"successor"}),
    (PPOThatValuesTheNextStart, ["successor", "termination"], {"successor"}),
    (PPOWithLateMask, ["credit"], {"credit"}),
]


@pytest.mark.parametrize(
    ("fault", "checks", "caught"), FAULTS, ids=[f.__name__ for f, *_ in FAULTS]
)
def test_a_planted_fault_is_caught_by_the_check_named_for_it(fault, checks, caught, monkeypatch):
    if issubclass(fault, PPO):
        learn = learn_by(fault, PPO_TABLE, 2000)
    else:
        monkeypatch.setattr("lactchain.baselines.population.ReplayBuffer", fault)
        learn = LEARN["dqn"][0]
    assert {*examine(learn, checks)} == caught


# --- pieces --------------------------------------------------------------------------------------


def advantages(flags):
    """Ours, of what `flags` makes of the steps that are terminal and those that are cut."""

    def estimate(rewards, values, next_values, terminated, truncated, gamma, lambda_):
        terminated, truncated = flags(terminated, truncated)
        arrays = rewards, gamma * (1.0 - terminated), values, next_values
        cut = torch.from_numpy(truncated)
        return generalized_advantages(*map(torch.from_numpy, arrays), lambda_, cut)

    return estimate


def test_advantages_are_judged():
    check_advantages(advantages(lambda ended, cut: (ended, cut)))
    for fault in (
        lambda ended, cut: (np.append(ended[1:], False), np.append(cut[1:], False)),
        lambda ended, cut: (ended | cut, cut),
        lambda ended, cut: (ended, cut & False),
    ):
        assert "masked at the wrong step" in refused(check_advantages, advantages(fault))


def refused(check, *args):
    with pytest.raises(AssertionError) as error:
        check(*args)
    return str(error.value)


def test_double_q_is_judged():
    def right(rewards, discounts, q_online, q_target):
        r, d, online, target = map(torch.from_numpy, (rewards, discounts, q_online, q_target))
        return double_q_targets(r, d, target, online)

    check_double_q(right)
    refused(check_double_q, lambda r, d, online, target: right(r, d, target, online))
    refused(check_double_q, lambda r, d, online, target: r + d * target.max(1))


def test_conservatism_is_judged():
    def right(q, actions):
        return cql_penalty(torch.from_numpy(q), torch.from_numpy(actions))

    def less_the_mean(q, actions):
        return np.log(np.exp(q).sum(1)) - q.mean(1)

    check_conservatism(right)
    refused(check_conservatism, less_the_mean)
    refused(check_conservatism, lambda q, actions: -right(q, actions))
    refused(check_conservatism, lambda q, actions: q.sum(1))  # pushes all of them down
    refused(check_conservatism, lambda q, a: np.where(q[:, 3] != 1, np.nan, right(q, a)))


class Adapter:
    def __init__(self, buffer_class, capacity):
        space = spaces.Box(-1e9, 1e9, (1,))
        self.buffer = buffer_class(1, capacity, space, spaces.Discrete(2))

    def add(self, observation, reward, next_observation, end):
        row = [np.array([[value]], np.float32) for value in (observation, reward, next_observation)]
        action, end = np.zeros((1, 1), int), np.array([[end]])
        self.buffer.add(Minibatch(row[0][..., None], action, row[1], end, row[2][..., None]))

    def everything(self):
        held = self.buffer.rows(np.arange(self.buffer.size)[None])
        columns = (held.observations, held.rewards, held.next_observations, held.terminated)
        return zip(*(column[0].ravel() for column in columns), strict=True)


@pytest.mark.parametrize("capacity", [1, 2, 5, 8])
def test_replay_is_judged(capacity):
    ours = Adapter(ReplayBuffer, capacity)
    check_replay(ours.add, ours.everything, capacity)
    faulty = Adapter(ReplayThatReadsTheNextRow, capacity)
    refused(check_replay, faulty.add, faulty.everything, capacity)


def test_a_buffer_may_hold_arrays_of_one_element():
    held = []

    def add(observation, reward, next_observation, end):
        row = np.array([observation]), np.float32(reward), np.array([next_observation]), end
        held.append(row)

    check_replay(add, lambda: held[-4:], 4)
    assert "old ones are held" in refused(check_replay, add, lambda: held[-5:-1], 4)


def test_a_finding_says_what_is_wrong():
    assert examine(lambda *_: lambda states: [1.6], names=["termination"]) == {
        "termination": "a terminal state is given a value; expected [1.0], got [1.6]"
    }
    assert examine(lambda *_: lambda states: [1.01], names=["termination"]) == {}
    assert {*examine(lambda *_: lambda states: [1.0, 1.0], names=["termination"])}
