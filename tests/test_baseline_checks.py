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


def caught(learn, *names, **kwargs):
    """The checks among these that fail."""
    return {*examine(learn, names, **kwargs)}


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


def dqn_with(buffer_class, monkeypatch):
    monkeypatch.setattr("lactchain.baselines.population.ReplayBuffer", buffer_class)
    return LEARN["dqn"][0]


def test_a_time_limit_taken_for_an_ending_is_caught(monkeypatch):
    learn = dqn_with(ReplayThatTakesCutsForEnds, monkeypatch)
    assert caught(learn, "truncation", "termination") == {"truncation"}


def test_a_terminal_state_with_a_value_is_caught(monkeypatch):
    learn = dqn_with(ReplayThatIgnoresEnds, monkeypatch)
    assert caught(learn, "truncation", "termination") == {"termination"}


def test_a_successor_from_the_next_row_is_caught(monkeypatch):
    learn = dqn_with(ReplayThatReadsTheNextRow, monkeypatch)
    assert "successor" in caught(learn, "successor")


class LateReset(MemberEnvs):
    """Copies that reset one step late, whose dummy rows are learnt from."""

    def __init__(self, id, num_members, num_envs, seed=0, **kwargs):
        super().__init__(id, num_members, num_envs, seed, **kwargs)
        self.envs = SyncVectorEnv(
            [lambda: gym.make(id, **kwargs)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP
        )
        self.observations = self._members(self.envs.reset(seed=seed)[0])

    def step(self, actions):
        after, rewards, terminated, truncated, _ = self.envs.step(actions.ravel())
        step = member_envs.Transition(
            observations=self.observations,
            actions=actions,
            rewards=self._members(rewards),
            terminated=self._members(terminated),
            truncated=self._members(truncated),
            next_observations=self._members(after),
        )
        self.observations = self._members(after)
        self._count(step.rewards, step.terminated | step.truncated)
        return step


def test_rows_on_which_an_environment_resets_are_caught(monkeypatch):
    monkeypatch.setitem(globals(), "MemberEnvs", LateReset)
    for agent in ("dqn", "ppo"):
        assert caught(LEARN[agent][0], "autoreset") == {"autoreset"}


class PPOThatValuesTheNextStart(PPO):
    """Bootstraps a cut episode from the first state of the next one."""

    def advantages(self, rollout):
        return super().advantages(replace(rollout, final_inputs=rollout.final_inputs[:0]))


class PPOWithLateMask(PPO):
    """The end of an episode is looked up one step too late."""

    def advantages(self, rollout):
        return super().advantages(replace(rollout, terminated=rollout.terminated.roll(-1, 0)))


def test_ppo_that_values_the_next_start_is_caught():
    learn = learn_by(PPOThatValuesTheNextStart, PPO_TABLE, 2000)
    assert caught(learn, "successor", "termination") == {"successor"}


def test_ppo_with_the_mask_of_another_step_is_caught():
    assert caught(learn_by(PPOWithLateMask, PPO_TABLE, 2000), "credit") == {"credit"}


# --- pieces --------------------------------------------------------------------------------------


def ours(rewards, values, next_values, terminated, truncated, gamma, lambda_):
    tensors = [torch.from_numpy(a) for a in (rewards, gamma * (1.0 - terminated), values)]
    return generalized_advantages(
        *tensors, torch.from_numpy(next_values), lambda_, torch.from_numpy(truncated)
    )


def with_mask_of_next_step(rewards, values, next_values, terminated, truncated, gamma, lambda_):
    shifted = [np.append(flags[1:], False) for flags in (terminated, truncated)]
    return ours(rewards, values, next_values, *shifted, gamma, lambda_)


def with_cuts_for_ends(rewards, values, next_values, terminated, truncated, gamma, lambda_):
    ended = terminated | truncated
    return ours(rewards, values, next_values, ended, truncated, gamma, lambda_)


def without_cuts(rewards, values, next_values, terminated, truncated, gamma, lambda_):
    return ours(rewards, values, next_values, terminated, truncated & False, gamma, lambda_)


def refused(check, *args):
    with pytest.raises(AssertionError) as error:
        check(*args)
    return str(error.value)


def test_advantages_are_judged():
    check_advantages(ours)
    for fault in (with_mask_of_next_step, with_cuts_for_ends, without_cuts):
        assert "masked at the wrong step" in refused(check_advantages, fault)


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
    def __init__(self, buffer):
        self.buffer = buffer

    def add(self, observation, reward, next_observation, end):
        row = [np.array([[value]], np.float32) for value in (observation, reward, next_observation)]
        self.buffer.add(
            Minibatch(row[0][..., None], np.zeros((1, 1), int), row[1], np.array([[end]]),
                  row[2][..., None])
        )  # fmt: skip

    def everything(self):
        held = self.buffer.rows(np.arange(self.buffer.size)[None])
        columns = (held.observations, held.rewards, held.next_observations, held.terminated)
        return zip(*(column[0].ravel() for column in columns), strict=True)


@pytest.mark.parametrize("capacity", [1, 2, 5, 8])
def test_replay_is_judged(capacity):
    space = spaces.Box(-1e9, 1e9, (1,))
    for buffer_class in (ReplayBuffer, ReplayThatReadsTheNextRow):
        buffer = buffer_class(1, capacity, space, spaces.Discrete(2))
        adapter = Adapter(buffer)
        if buffer_class is ReplayBuffer:
            check_replay(adapter.add, adapter.everything, capacity)
        else:
            refused(check_replay, adapter.add, adapter.everything, capacity)


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
