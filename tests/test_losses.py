"""Losses and token functions against numbers worked out by hand."""

import math

import pytest
import torch
from torch.nn import functional as F

from lactchain.functional import policy_losses, tokens, value_losses


def test_mse_has_no_half_and_smooth_l1_has_one_and_targets_carry_no_gradient():
    values, targets = torch.tensor([1.0, 1.0]), torch.tensor([1.5, 4.0])
    assert value_losses.regression_loss(values, targets, "mse").tolist() == [0.25, 9.0]
    losses = value_losses.regression_loss(values.requires_grad_(), targets.requires_grad_())
    assert losses.tolist() == value_losses.regression_loss(values, targets, "smooth_l1").tolist()
    assert losses.tolist() == [0.125, 2.5]
    losses.sum().backward()
    assert targets.grad is None and values.grad is not None
    with pytest.raises(ValueError, match="targets"):
        value_losses.regression_loss(torch.ones(3, 1), torch.ones(3))


def test_cql_penalty_subtracts_the_action_of_the_data():
    penalty = value_losses.cql_penalty(torch.tensor([[0.0, math.log(3.0)]]), torch.tensor([0]))
    torch.testing.assert_close(penalty, torch.tensor([math.log(4.0)]))


def test_expectile_weighs_underestimates():
    values, targets = torch.tensor([0.0, 0.0]), torch.tensor([2.0, -2.0])
    actual = value_losses.expectile_loss(values, targets, 0.75)
    assert actual.tolist() == [3.0, 1.0]


def test_simpo_matches_hand_computed_numbers():
    losses, metrics = policy_losses.simpo_loss(
        torch.tensor([-0.5, -2.0]), torch.tensor([-1.5, -1.0]), beta=2.0, target_margin=1.0
    )
    # -log sigmoid(2 * 1 - 1) and -log sigmoid(2 * -1 - 1)
    expected = [math.log1p(math.exp(-1.0)), math.log1p(math.exp(3.0))]
    torch.testing.assert_close(losses, torch.tensor(expected))
    assert metrics["rewards/chosen"].tolist() == [-1.0, -4.0]
    assert metrics["rewards/rejected"].tolist() == [-3.0, -2.0]
    assert metrics["rewards/margins"].tolist() == [2.0, -2.0]
    assert metrics["rewards/accuracies"].tolist() == [1.0, 0.0]
    huge, _ = policy_losses.simpo_loss(torch.tensor([-1e4]), torch.tensor([0.0]), 2.5, 0.25)
    assert huge.isfinite().all()


def test_ppo_clips_only_where_that_is_pessimistic():
    logps = torch.log(torch.tensor([2.0, 2.0, 0.5, 0.5]))
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    actual = policy_losses.ppo_clip_loss(logps, torch.zeros(4), advantages, clip_range=0.2)
    torch.testing.assert_close(actual, torch.tensor([-1.2, 2.0, -0.5, 0.8]))


def test_pad_fills_the_named_side():
    assert tokens.pad([[1, 2], [3]], 0).tolist() == [[1, 2], [3, 0]]
    assert tokens.pad([[1, 2], [3]], 0, side="left").tolist() == [[1, 2], [0, 3]]


def test_masked_mean_ignores_what_is_masked_and_of_nothing_is_nan():
    x = torch.tensor([[1.0, 3.0, float("nan")], [5.0, float("inf"), 0.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert tokens.masked_mean(x, mask, dim=1).tolist() == [2.0, 5.0]
    assert tokens.masked_mean(x, mask).item() == 3.0
    assert tokens.masked_mean(torch.ones(1, 2), torch.zeros(1, 2), dim=1).isnan().all()


def test_token_logprobs_equal_log_softmax():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 11, generator=generator)
    ids = torch.randint(11, (3, 5), generator=generator)
    expected = F.log_softmax(logits, dim=-1).gather(-1, ids[..., None])[..., 0]
    torch.testing.assert_close(tokens.token_logprobs(logits, ids), expected)
    assert tokens.token_logprobs(logits.bfloat16(), ids).dtype == torch.float32
    by_hand = tokens.token_logprobs(torch.tensor([[[0.0, math.log(3.0)]]]), torch.tensor([[1]]))
    torch.testing.assert_close(by_hand, torch.tensor([[math.log(0.75)]]))
