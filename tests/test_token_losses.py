"""ILQL and Monte-Carlo losses against numbers worked out by hand; target networks."""

import pytest
import torch

from lactchain.functional.token_losses import ilql_losses, monte_carlo_losses, weighted_mean

# Two tokens; two heads; the second token ends the episode.
Q = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
LOGSUMEXP = torch.tensor([[1.5, 2.25], [3.0, 4.0]])


def test_ilql_losses_match_hand_computed_numbers():
    losses = ilql_losses(
        q_tm1=Q,
        logsumexp_tm1=LOGSUMEXP,
        v_tm1=torch.tensor([0.0, 2.0]),
        target_q_tm1=torch.tensor([2.0, 1.0]),
        r_t=torch.tensor([0.0, -1.0]),
        discount_t=torch.tensor([0.5, 0.0]),
        v_t=torch.tensor([4.0, 100.0]),
        expectile=0.75,
    )
    # Targets 0 + .5 * 4 = 2 and -1 + 0 = -1.
    assert losses["q"].tolist() == [1.0 + 1.0, 9.0 + 1.0]
    assert losses["v"].tolist() == [0.75 * 4.0, 0.25 * 1.0]
    assert losses["cql"].tolist() == [0.5 + 0.0, 0.25 + 4.0]


def test_monte_carlo_losses_match_hand_computed_numbers():
    losses = monte_carlo_losses(
        Q[:1], LOGSUMEXP[:1], torch.tensor([0.0, 2.0]), torch.tensor([-1.0, 3.0])
    )
    assert losses["q"].tolist() == [4.0, 1.0]
    assert losses["v"].tolist() == [1.0, 1.0]
    assert losses["cql"].tolist() == [0.5, 0.25]


def test_targets_and_target_networks_carry_no_gradient():
    names = ("q_tm1", "logsumexp_tm1", "v_tm1", "target_q_tm1", "r_t", "discount_t", "v_t")
    shapes = {"q_tm1": (2, 3), "logsumexp_tm1": (2, 3)}
    tensors = {name: torch.rand(shapes.get(name, (3,)), requires_grad=True) for name in names}
    sum(loss.sum() for loss in ilql_losses(**tensors, expectile=0.7).values()).backward()
    trained = {name for name, tensor in tensors.items() if tensor.grad is not None}
    assert trained == {"q_tm1", "logsumexp_tm1", "v_tm1"}


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="expected"):
        monte_carlo_losses(Q[0], LOGSUMEXP[0], torch.zeros(2), torch.zeros(2))


def test_the_weighted_mean_of_merged_tokens_is_the_mean_of_all():
    losses = torch.tensor([1.0, 4.0])
    everything = torch.tensor([1.0, 1.0, 1.0, 4.0])
    weights = torch.tensor([3.0, 1.0]) / 2.0  # numbers of tokens, mean 1
    torch.testing.assert_close(weighted_mean(losses, weights), everything.mean())
