"""DQN, DDPG and PPO: targets and advantages by hand, exploration by copy, schedules, learning."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from lactchain.baselines.ddpg import DDPG
from lactchain.baselines.dqn import DQN
from lactchain.baselines.evaluation import evaluate_members
from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.ppo import PPO, Rollout, Rows
from lactchain.baselines.settings import DDPGConfig, DQNConfig, PPOConfig
from lactchain.baselines.transitions import Minibatch
from lactchain.errors import ConfigError

LINE, TWO, BOX = spaces.Box(-9, 9, (1,)), spaces.Discrete(2), spaces.Box(-1, 1, (2,))
PUSH, PUSHED = spaces.Box(-1, 1, (1,)), np.array([0.5], np.float32)
Q_LINE = DQNConfig(hidden=(), gamma=0.5, batch_size=16)
ACTOR_LINE = DDPGConfig(hidden=(), gamma=0.5, batch_size=4)
LINEAR = PPOConfig(num_envs=1, num_steps=3, batch_size=3, hidden=(), gamma=0.5, gae_lambda=0.5)


def give_values(parameters, values, name="q"):
    """Has a network say the same in every state."""
    parameters.flat.zero_()
    parameters.views[name][1].data.copy_(torch.tensor(values))


def with_values(online, target, config=Q_LINE):
    """An agent whose Q-values are the same in every state."""
    agent = DQN(config, LINE, TWO)
    give_values(agent.parameters, online)
    give_values(agent.target, target)
    return agent


def one(terminated=False, action=0):
    """A batch of one row: a step from 2 to 3, for a reward of 1."""
    row = np.ones((1, 1, 1), np.float32)
    return Minibatch(2 * row, np.array([[action]]), row[0], np.array([[terminated]]), 3 * row)


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_the_online_network_chooses_and_the_target_network_values(scale):
    config = replace(Q_LINE, reward_scale=scale)
    agent = with_values([0.0, 1.0], [7.0, 3.0], config)
    assert agent.targets(one()).item() == scale + 0.5 * 3.0
    assert agent.targets(one(terminated=True)).item() == scale
    single = with_values([0.0, 1.0], [7.0, 3.0], replace(config, double=False))
    assert single.targets(one()).item() == scale + 0.5 * 7.0


def test_every_copy_tosses_its_own_coin():
    agent = with_values([0.0, 1.0], [0.0, 0.0])
    actions = agent.act(np.zeros((1, 10_000, 1), np.float32), epsilon=0.2)
    assert actions.mean() == pytest.approx(0.9, abs=0.02)  # half of the random ones are 1 too
    assert agent.act(np.zeros((1, 100, 1), np.float32), greedy=True).all()


@pytest.mark.parametrize(("fraction", "final", "expected"), [
    (0.5, 0.1, [1, 0.55, 0.1, 0.1]), (0.25, 0.0, [1, 0, 0, 0]), (0.0, 0.1, [1, 0.1, 0.1, 0.1]),
])  # fmt: skip
def test_exploration_falls_by_its_schedule(fraction, final, expected):
    config = replace(Q_LINE, exploration_fraction=fraction, final_exploration=final)
    agent = DQN(config, LINE, TWO)
    rates = [agent.exploration(progress) for progress in (0, 0.25, 0.5, 1)]
    np.testing.assert_allclose(rates, expected)


def test_the_number_of_updates_does_not_grow_with_the_buffer():
    config = replace(Q_LINE, num_envs=4, train_every_env_steps=8, num_updates=3, learning_starts=32)
    envs = MemberEnvs("CartPole-v1", 1, 4)
    agent = DQN(config, envs.observation_space, envs.action_space)
    updates = []
    for _ in range(12):
        agent.advance(envs)
        updates.append(agent.num_updates)
    assert updates == [0, 0, 0] + [3 * n for n in range(1, 10)]
    assert envs.num_env_steps == agent.replay.total == 12 * 8


def test_the_target_network_moves_when_it_should():
    config = replace(Q_LINE, target_every_updates=3, tau=0.5, learning_rate=0.1)
    agent = DQN(config, LINE, TWO)
    start = agent.target.flat.clone()
    for update in (1, 2, 3):
        agent.update(one())
        if update < 3:
            assert torch.equal(agent.target.flat, start)
    torch.testing.assert_close(agent.target.flat, (start + agent.parameters.flat) / 2)


def test_only_greedy_play_uses_the_running_average_of_the_weights():
    fast = replace(Q_LINE, learning_rate=0.1)
    configs = (replace(fast, average_weights=0.75), fast)
    agents = [DQN(config, LINE, TWO) for config in configs]
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
    give_values(agents[0].parameters, [0.0, 1.0])
    give_values(average, [1.0, 0.0])
    assert not agents[0].act(seen, greedy=True).any() and agents[0].act(seen).all()


SENSELESS = {"train_every_env_steps": 6, "tau": 0.0, "average_weights": 1.0, "reward_scale": 0.0}


@pytest.mark.parametrize(("name", "value"), SENSELESS.items())
def test_senseless_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        DQNConfig(**{"num_envs": 4, name: value})


def test_targets_of_an_actor_and_its_critic_by_hand():
    for scale in (1.0, 0.25):
        agent = DDPG(replace(ACTOR_LINE, reward_scale=scale), LINE, PUSH)
        give_values(agent.target_critics, [8.0], "q0")
        assert agent.targets(one(action=PUSHED)).item() == scale * 1 + 0.5 * 8
        assert agent.targets(one(terminated=True, action=PUSHED)).item() == scale * 1


def test_the_actor_climbs_the_online_critic_and_not_the_target():
    agent = DDPG(ACTOR_LINE, LINE, PUSH)
    agent.actors.flat.zero_()
    online, target = agent.critics.views["q0"][0], agent.target_critics.views["q0"][0]
    online.data.copy_(torch.tensor([[[0.0], [1.0]]]))  # Q = a
    target.data.copy_(torch.tensor([[[0.0], [-1.0]]]))  # Q' = −a
    x = torch.ones(1, 1, 1)
    gradient = agent.actors.gradient(agent.actor_loss(x).sum())
    assert (gradient < 0).all()  # descending raises π(s) = tanh(w x + b)
    assert gradient.flatten().tolist() == [-1.0, -1.0]


def test_targets_move_by_tau_after_each_update():
    agent = DDPG(replace(ACTOR_LINE, tau=0.25), LINE, PUSH)
    before = agent.target_critics.flat.clone(), agent.target_actors.flat.clone()
    agent.update(one(action=PUSHED))
    targets, after = (agent.target_critics, agent.target_actors), (agent.critics, agent.actors)
    for target, start, online in zip(targets, before, after, strict=True):
        torch.testing.assert_close(target.flat, start + 0.25 * (online.flat - start))


def test_noise_is_each_copys_own_and_all_actions_are_within_bounds():
    agent = DDPG(replace(ACTOR_LINE, exploration_noise=0.2), LINE, PUSH)
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


@pytest.mark.parametrize("end", [True, False], ids=["ended", "going on"])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_advantages_by_hand_with_rewards_scaled_and_one_episode_cut(scale, end):
    agent = PPO(replace(LINEAR, reward_scale=scale), LINE, TWO, num_members=2)
    for view, value in zip(agent.parameters.views["critic"], (1.0, 0.0), strict=True):
        view.data.fill_(value)  # V(x) = x

    def column(*values):
        return torch.tensor(values).view(3, 1, 1).expand(3, 2, 1)

    rollout = Rollout(
        column(1.0, 2.0, 3.0)[..., None], column(0, 0, 0), column(1.0, 1.0, 1.0),
        terminated=column(False, False, end), truncated=column(False, True, False),
        last_inputs=torch.full((2, 1, 1), 4.0), final_inputs=torch.full((2, 1), 10.0),
    )  # fmt: skip
    # δ_2 = r − 3, or r + .5·4 − 3; δ_1 = r + .5·10 − 2, cut; δ_0 = r + .5·2 − 1
    expected = [scale + 0.25 * (scale + 3), scale + 3, scale - (3 if end else 1)]
    advantages, returns = agent.advantages(rollout)
    assert advantages[..., 0].T.tolist() == [expected] * 2
    assert (returns - advantages)[..., 0].T.tolist() == [[1.0, 2.0, 3.0]] * 2
    one, no = torch.ones(1, 2, 1), torch.zeros(1, 2, 1, dtype=torch.bool)  # nothing is cut
    last, finals = 4 * torch.ones(2, 1, 1), torch.zeros(0, 1)
    advantages, _ = agent.advantages(Rollout(one[..., None], one.long(), one, no, no, last, finals))
    assert advantages.flatten().tolist() == [scale + 0.5 * 4 - 1] * 2


@pytest.mark.parametrize("space", [spaces.Discrete(3), BOX])
def test_probabilities_and_entropies_are_those_of_torch(space):
    agent = PPO(LINEAR, LINE, space, num_members=2)
    agent.parameters.flat.add_(0.1 * torch.randn_like(agent.parameters.flat))
    x = torch.randn(2, 5, 1)
    outputs = agent.parameters("actor", x)
    if isinstance(space, spaces.Discrete):
        known = torch.distributions.Categorical(logits=outputs)
        actions = torch.randint(3, (2, 5))
        expected = known.log_prob(actions), known.entropy()
    else:
        (log_std,) = agent.parameters.views["log_std"]
        known = torch.distributions.Normal(outputs, log_std.exp())
        actions = torch.randn(2, 5, 2)
        expected = known.log_prob(actions).sum(-1), known.entropy().sum(-1)
    for found, wanted in zip(agent._logps_and_entropy(x, actions), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_sampled_actions_follow_the_probabilities():
    agent = PPO(LINEAR, LINE, spaces.Discrete(3))
    give_values(agent.parameters, [0.0, 1.0, 2.0], "actor")
    actions = agent.act(np.zeros((1, 30_000, 1), dtype=np.float32))
    expected = torch.tensor([0.0, 1.0, 2.0]).softmax(0).numpy()
    np.testing.assert_allclose(np.bincount(actions[0]) / 30_000, expected, atol=0.01)


def test_all_continuous_actions_are_within_bounds_and_greedy_ones_repeat():
    agent = PPO(LINEAR, LINE, BOX)
    x = np.zeros((1, 500, 1), dtype=np.float32)
    actions = agent.act(x)
    assert actions.shape == (1, 500, 2) and actions.dtype == np.float32
    assert np.all((actions >= -1) & (actions <= 1)) and (np.abs(actions) == 1).any()
    assert np.array_equal(agent.act(x, greedy=True), agent.act(x, greedy=True))


def test_a_minibatch_is_a_share_of_all_rows_each_once_and_normalised():
    agent = PPO(replace(LINEAR, num_steps=10, batch_size=4), LINE, TWO, num_members=2)
    numbers = torch.arange(10.0).expand(2, 10)
    batches = list(agent._minibatches(Rows(*[numbers] * 5)))
    seen = torch.cat([rows[0][weights > 0] for (rows, *_), weights in batches])
    assert sorted(seen.tolist()) == list(range(10)) and len(batches) == 3
    for (rows, *_, advantages, _), weights in batches:
        assert weights.sum().item() == pytest.approx(1)
        kept = advantages[0][weights > 0]
        if len(kept) > 1:
            expected = rows[0][weights > 0]
            expected = (expected - expected.mean()) / (expected.std() + 1e-8)
            torch.testing.assert_close(kept, expected)


def test_other_actions_and_a_batch_larger_than_a_rollout_are_refused():
    for space in (spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(3)):
        with pytest.raises(ConfigError, match="PPO: expected Discrete actions from 0 or Box"):
            PPO(LINEAR, LINE, space)
    with pytest.raises(ValueError, match=r"batch_size: expected at most .* = 32, got 64"):
        PPOConfig(num_envs=4, num_steps=8, batch_size=64)


LEARNERS = [
    (DQN, "FrozenLake-v1", {"is_slippery": False}, DQNConfig(
        num_envs=8, hidden=(32,), train_every_env_steps=8, num_updates=2, learning_rate=3e-3,
        learning_starts=256, exploration_fraction=0.8, target_every_updates=20, gamma=0.9,
    ), 2, 4000, 1.0, 6),
    (PPO, "CartPole-v1", {}, PPOConfig(
        num_envs=32, num_steps=64, batch_size=512, num_epochs=5, learning_rate=2.5e-3, gamma=0.98,
    ), 2, 71_680, 475, 500),
    pytest.param(DDPG, "Pendulum-v1", {}, DDPGConfig(
        num_envs=4, hidden=(64, 64), train_every_env_steps=4, num_updates=4, gamma=0.98,
        batch_size=128, learning_starts=500, anneal=True,
    ), 1, 12_000, -250, 200, marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize("kind, world, kwargs, config, members, steps, least, most", LEARNERS)
def test_every_member_learns(kind, world, kwargs, config, members, steps, least, most):
    envs = MemberEnvs(world, members, config.num_envs, seed=0, **kwargs)
    agent = kind(config, envs.observation_space, envs.action_space, 1, members)
    while envs.num_env_steps < members * steps:
        agent.advance(envs, envs.num_env_steps / (members * steps))
    act = lambda x: agent.act(x, greedy=True)  # noqa: E731
    result = evaluate_members(act, world, members, 20, seed=1000, **kwargs)
    assert result.returns.mean(1).min() >= least and result.lengths.max() <= most
