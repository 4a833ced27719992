"""PPO: advantages to the number, distributions against torch's own, and learning."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lactchain.baselines.evaluation import evaluate_members
from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.ppo import PPO, Rollout, Rows
from lactchain.baselines.settings import PPOConfig
from lactchain.errors import ConfigError

LINE, TWO, BOX = spaces.Box(-9, 9, (1,)), spaces.Discrete(2), spaces.Box(-1, 1, (2,))
LINEAR = PPOConfig(num_envs=1, num_steps=3, batch_size=3, hidden=(), gamma=0.5, gae_lambda=0.5)
FAST = PPOConfig(
    num_envs=32, num_steps=64, batch_size=512, num_epochs=5, learning_rate=2.5e-3, gamma=0.98
)


def test_advantages_by_hand_with_one_episode_cut_and_one_ended():
    agent = PPO([LINEAR], LINE, TWO)
    for view, value in zip(agent.parameters.views["critic"], (1.0, 0.0), strict=True):
        view.data.fill_(value)  # V(x) = x

    def column(*values):
        return torch.tensor(values).view(3, 1, 1)

    rollout = Rollout(
        column(1.0, 2.0, 3.0)[..., None], column(0, 0, 0), column(1.0, 1.0, 1.0),
        terminated=column(False, False, True), truncated=column(False, True, False),
        last_inputs=torch.tensor([[[4.0]]]), final_inputs=torch.tensor([[10.0]]),
    )  # fmt: skip
    advantages, returns = agent.advantages(rollout)
    # δ_2 = 1 − 3; δ_1 = 1 + .5·10 − 2, cut; δ_0 = 1 + .5·2 − 1, and A_0 = δ_0 + .25·A_1
    assert advantages.flatten().tolist() == [2.0, 4.0, -2.0]
    assert returns.flatten().tolist() == [3.0, 6.0, 1.0]


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_each_member_has_its_own_discount_and_rewards_are_scaled(scale):
    config = replace(LINEAR, reward_scale=scale)
    agent = PPO([config, replace(config, gamma=1.0)], LINE, TWO)
    for view, value in zip(agent.parameters.views["critic"], (1.0, 0.0), strict=True):
        view.data.fill_(value)
    one, no = torch.ones(1, 2, 1), torch.zeros(1, 2, 1, dtype=torch.bool)
    last, finals = 4 * torch.ones(2, 1, 1), torch.zeros(0, 1)
    advantages, _ = agent.advantages(Rollout(one[..., None], one.long(), one, no, no, last, finals))
    assert advantages.flatten().tolist() == [scale + 0.5 * 4 - 1, scale + 4 - 1]


@pytest.mark.parametrize("space", [spaces.Discrete(3), BOX])
def test_probabilities_and_entropies_are_those_of_torch(space):
    agent = PPO([LINEAR] * 2, LINE, space)
    agent.parameters.flat.add_(0.1 * torch.randn_like(agent.parameters.flat))
    x = torch.randn(2, 5, 1)
    outputs = agent.actor(agent.parameters.views["actor"], x)
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
    agent = PPO([LINEAR], LINE, spaces.Discrete(3))
    agent.parameters.views["actor"][1].data.copy_(torch.tensor([0.0, 1.0, 2.0]))
    agent.parameters.views["actor"][0].data.zero_()
    actions = agent.act(np.zeros((1, 30_000, 1), dtype=np.float32))
    expected = torch.tensor([0.0, 1.0, 2.0]).softmax(0).numpy()
    np.testing.assert_allclose(np.bincount(actions[0]) / 30_000, expected, atol=0.01)


def test_all_continuous_actions_are_within_bounds_and_greedy_ones_repeat():
    agent = PPO([LINEAR], LINE, BOX)
    x = np.zeros((1, 500, 1), dtype=np.float32)
    actions = agent.act(x)
    assert actions.shape == (1, 500, 2) and actions.dtype == np.float32
    assert np.all((actions >= -1) & (actions <= 1)) and (np.abs(actions) == 1).any()
    assert np.array_equal(agent.act(x, greedy=True), agent.act(x, greedy=True))


def test_a_minibatch_is_a_share_of_all_rows_each_once_and_normalised():
    agent = PPO([replace(LINEAR, num_steps=10, batch_size=4)] * 2, LINE, TWO)
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
            PPO([LINEAR], LINE, space)
    with pytest.raises(ValueError, match=r"batch_size: expected at most .* = 32, got 64"):
        PPOConfig(num_envs=4, num_steps=8, batch_size=64)


def test_every_member_balances_the_pole():
    envs = MemberEnvs("CartPole-v1", 2, FAST.num_envs, seed=0)
    agent = PPO([FAST] * 2, envs.observation_space, envs.action_space, seed=0)
    for _ in range(35):
        agent.advance(envs)
    result = evaluate_members(lambda x: agent.act(x, greedy=True), "CartPole-v1", 2, 20, seed=1000)
    assert result.returns.mean(1).min() >= 475
    assert result.num_env_steps == result.lengths.sum() == result.returns.sum()
