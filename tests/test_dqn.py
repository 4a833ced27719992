"""DQN: targets by hand, exploration by copy, updates by schedule, and learning."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lactchain.baselines.dqn import DQN
from lactchain.baselines.evaluation import evaluate_members
from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.settings import DQNConfig
from lactchain.baselines.transitions import Minibatch

LINE, TWO = spaces.Box(-9, 9, (1,)), spaces.Discrete(2)
LINEAR = DQNConfig(hidden=(), gamma=0.5, batch_size=16)


def with_values(online, target, configs=(LINEAR,)):
    """Agents whose Q-values are the same in every state."""
    agent = DQN(configs, LINE, TWO)
    for parameters, values in ((agent.parameters, online), (agent.target, target)):
        parameters.flat.zero_()
        parameters.views["q"][1].data.copy_(torch.tensor(values))
    return agent


def one(terminated=False, action=0, members=1):
    shape = (members, 1)
    return Minibatch(
        np.zeros((*shape, 1), np.float32), np.full(shape, action), np.ones(shape, np.float32),
        np.full(shape, terminated), np.ones((*shape, 1), np.float32),
    )  # fmt: skip


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_the_online_network_chooses_and_the_target_network_values(scale):
    config = replace(LINEAR, reward_scale=scale)
    agent = with_values([0.0, 1.0], [7.0, 3.0], [config, replace(config, gamma=1.0)])
    assert agent.targets(one(members=2)).flatten().tolist() == [scale + 0.5 * 3.0, scale + 3.0]
    assert agent.targets(one(terminated=True, members=2)).flatten().tolist() == [scale, scale]
    single = with_values([0.0, 1.0], [7.0, 3.0], [replace(config, double=False)])
    assert single.targets(one()).item() == scale + 0.5 * 7.0


def test_every_copy_tosses_its_own_coin():
    agent = with_values([0.0, 1.0], [0.0, 0.0])
    actions = agent.act(np.zeros((1, 10_000, 1), np.float32), epsilon=0.2)
    assert actions.mean() == pytest.approx(0.9, abs=0.02)  # half of the random ones are 1 too
    assert agent.act(np.zeros((1, 100, 1), np.float32), greedy=True).all()


def test_exploration_falls_by_its_schedule_for_each_member():
    configs = [
        replace(LINEAR, exploration_fraction=0.5, final_exploration=0.1),
        replace(LINEAR, exploration_fraction=0.25, final_exploration=0.0),
    ]
    agent = DQN(configs, LINE, TWO)
    rates = [agent.exploration(progress)[:, 0].tolist() for progress in (0, 0.25, 0.5, 1)]
    np.testing.assert_allclose(rates, [[1, 1], [0.55, 0], [0.1, 0], [0.1, 0]])


def test_the_number_of_updates_does_not_grow_with_the_buffer():
    config = replace(LINEAR, num_envs=4, train_every_env_steps=8, num_updates=3, learning_starts=32)
    envs = MemberEnvs("CartPole-v1", 1, 4)
    agent = DQN([config], envs.observation_space, envs.action_space)
    updates = []
    for _ in range(12):
        agent.advance(envs)
        updates.append(agent.num_updates)
    assert updates == [0, 0, 0] + [3 * n for n in range(1, 10)]
    assert envs.num_env_steps == agent.replay.total == 12 * 8


def test_the_target_network_moves_when_it_should():
    config = replace(LINEAR, target_every_updates=3, tau=0.5, learning_rate=0.1)
    agent = DQN([config], LINE, TWO)
    start = agent.target.flat.clone()
    for update in (1, 2, 3):
        agent.update(one())
        if update < 3:
            assert torch.equal(agent.target.flat, start)
    torch.testing.assert_close(agent.target.flat, (start + agent.parameters.flat) / 2)


def test_only_greedy_play_uses_the_running_average_of_the_weights():
    fast = replace(LINEAR, learning_rate=0.1)
    configs = (replace(fast, average_weights=0.75), fast)
    agents = [DQN([config], LINE, TWO) for config in configs]
    passed = []
    for _ in range(5):
        for agent in agents:
            agent.update(one(terminated=True, action=1))
        passed.append(agents[0].parameters.flat.clone())
    assert torch.equal(agents[0].parameters.flat, agents[1].parameters.flat)
    mean = torch.stack(passed[:4]).mean(0)  # of the first four; then it is forgotten exponentially
    average = agents[0].parts["average"]
    torch.testing.assert_close(average.flat, 0.75 * mean + 0.25 * passed[4], atol=1e-6, rtol=1e-5)
    seen = np.zeros((1, 4, 1), np.float32)
    for parameters, values in ((agents[0].parameters, [0.0, 1.0]), (average, [1.0, 0.0])):
        parameters.flat.zero_()
        parameters.views["q"][1].data.copy_(torch.tensor(values))
    assert not agents[0].act(seen, greedy=True).any() and agents[0].act(seen).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [("train_every_env_steps", 6), ("tau", 0.0), ("average_weights", 1.0), ("reward_scale", 0.0)],
)
def test_senseless_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        DQNConfig(**{"num_envs": 4, name: value})


def test_it_finds_the_way_over_the_lake():
    config = DQNConfig(
        num_envs=8, hidden=(32,), train_every_env_steps=8, num_updates=2, learning_rate=3e-3,
        learning_starts=256, exploration_fraction=0.8, target_every_updates=20, gamma=0.9,
    )  # fmt: skip
    envs = MemberEnvs("FrozenLake-v1", 2, 8, seed=0, is_slippery=False)
    agent = DQN([config] * 2, envs.observation_space, envs.action_space, seed=1)
    while envs.num_env_steps < 2 * 4000:
        agent.advance(envs, envs.num_env_steps / 8_000)
    act = lambda x: agent.act(x, greedy=True)  # noqa: E731
    result = evaluate_members(act, "FrozenLake-v1", 2, 3, is_slippery=False)
    assert result.returns.all() and (result.lengths == 6).all()
