"""Losses, advantages and token functions against numbers worked out by hand."""

import math

import pytest
import torch
from torch.nn import functional as F

from lactchain.functional import losses, tokens


def test_mse_has_no_half_and_smooth_l1_has_one_and_targets_carry_no_gradient():
    values, targets = torch.tensor([1.0, 1.0]), torch.tensor([1.5, 4.0])
    assert losses.regression_loss(values, targets, "mse").tolist() == [0.25, 9.0]
    found = losses.regression_loss(values.requires_grad_(), targets.requires_grad_())
    assert found.tolist() == losses.regression_loss(values, targets, "smooth_l1").tolist()
    assert found.tolist() == [0.125, 2.5]
    found.sum().backward()
    assert targets.grad is None and values.grad is not None
    with pytest.raises(ValueError, match="targets"):
        losses.regression_loss(torch.ones(3, 1), torch.ones(3))


def test_ppo_clips_only_where_that_is_pessimistic():
    logps = torch.log(torch.tensor([2.0, 2.0, 0.5, 0.5]))
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    actual = losses.ppo_clip_loss(logps, torch.zeros(4), advantages, clip_range=0.2)
    torch.testing.assert_close(actual, torch.tensor([-1.2, 2.0, -0.5, 0.8]))


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


def advantages(r, d, values):
    return losses.generalized_advantages(r, d, values[:-1], values[1:], 0.7)


def test_generalized_advantages_are_lambda_returns_minus_values_within_an_episode():
    generator = torch.Generator().manual_seed(0)
    r, values = torch.randn(9, 4, generator=generator), torch.randn(10, 4, generator=generator)
    d = torch.full_like(r, 0.9)
    running, expected = values[-1], []
    for t in reversed(range(9)):
        running = r[t] + d[t] * (0.3 * values[t + 1] + 0.7 * running)
        expected.insert(0, running - values[t])
    torch.testing.assert_close(advantages(r, d, values), torch.stack(expected))


def test_shapes_that_would_broadcast_and_a_senseless_lambda_are_refused():
    with pytest.raises(ValueError, match="discount_t"):
        advantages(torch.ones(3, 1), torch.ones(3), torch.ones(4, 1))
    with pytest.raises(ValueError, match="lambda_"):
        losses.generalized_advantages(*[torch.ones(1)] * 4, 1.5)
