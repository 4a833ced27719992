"""Returns and advantages against numbers worked out by hand and a second implementation."""

import numpy as np
import pytest
import torch

from lactchain.functional import returns
from lactchain.types import Action, Trajectory


def tensor(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def chains_trajectory(chain_rewards, beside=(), terminated=True):
    """An episode whose chains earned these rewards per action (and `beside` per chain)."""
    beside = beside or [0.0] * len(chain_rewards)
    infos = [{}] + [{"rewards": r, "executed": ["forward"] * len(r)} for r in chain_rewards]
    return Trajectory(
        env_id="test/Chains-v0",
        seed=0,
        observations=("s",) * (len(chain_rewards) + 1),
        actions=(Action("a"),) * len(chain_rewards),
        rewards=tuple(sum(r) + b for r, b in zip(chain_rewards, beside, strict=True)),
        infos=tuple(infos),
        terminated=terminated,
        truncated=not terminated,
    )


def test_discounted_returns_match_hand_computed_numbers():
    # 4; 2 + .5 * 4; 1 + .5 * 4
    actual = returns.discounted_returns(tensor(1, 2, 4), tensor(0.5, 0.5, 0))
    assert actual.tolist() == [3.0, 4.0, 4.0]


def test_discounted_returns_bootstrap_where_the_episode_was_cut():
    # 4 + .5 * 8; 2 + .5 * 8; 1 + .5 * 6
    actual = returns.discounted_returns(tensor(1, 2, 4), tensor(0.5, 0.5, 0.5), final_value=8.0)
    assert actual.tolist() == [4.0, 6.0, 8.0]


def test_final_value_of_a_terminal_state_does_not_count():
    cut = returns.discounted_returns(tensor(1, 2), tensor(0.5, 0), final_value=100.0)
    assert cut.tolist() == [2.0, 2.0]


def test_one_step_episode_returns_its_reward():
    assert returns.discounted_returns(tensor(7), tensor(0)).tolist() == [7.0]


def test_discounts_are_zero_after_terminal_states_and_powers_of_gamma_elsewhere():
    terminated = torch.tensor([False, False, True])
    assert returns.discounts(0.5, terminated).tolist() == [0.5, 0.5, 0.0]
    assert returns.discounts(0.5, terminated, torch.tensor([1, 3, 2])).tolist() == [0.5, 0.125, 0]


def test_chain_rewards_ignore_padding():
    rewards = torch.tensor([[1.0, 2.0, 4.0], [8.0, float("nan"), 9.0]])
    actual = returns.chain_rewards(rewards, torch.tensor([3, 1]), gamma=0.5)
    assert actual.tolist() == [3.0, 8.0]


def test_chain_returns_match_hand_computed_numbers():
    # last: 4 + .5^1 * 16 = 12; first: 1 + .5 * 2 + .5^2 * 12 = 5
    rewards = torch.tensor([[1.0, 2.0], [4.0, 0.0]])
    actual = returns.chain_returns(rewards, torch.tensor([2, 1]), 0.5, False, final_value=16.0)
    assert actual.tolist() == [5.0, 12.0]


@pytest.mark.parametrize("terminated", [True, False])
def test_chain_returns_agree_with_trajectories(terminated):
    rng = np.random.default_rng(0)
    for _ in range(20):
        lengths = rng.integers(1, 6, size=rng.integers(1, 7))
        chains = [rng.normal(size=length).tolist() for length in lengths]
        trajectory = chains_trajectory(chains, terminated=terminated)
        padded = torch.zeros(len(chains), 6, dtype=torch.float64)
        for row, chain in zip(padded, chains, strict=True):
            row[: len(chain)] = torch.tensor(chain, dtype=torch.float64)
        actual = returns.chain_returns(padded, torch.tensor(lengths), 0.9, terminated, 3.0)
        expected = trajectory.returns(0.9, final_value=3.0)
        np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12)


def test_trajectory_discounts_actions_but_not_what_a_chain_earned_beside_them():
    # second chain: -1 cost beside, unparsable, one step; first: 1 + .5 * 2 + .25 * (-1)
    trajectory = chains_trajectory([[1.0, 2.0], []], beside=[0.0, -1.0])
    np.testing.assert_allclose(trajectory.returns(0.5), [1.75, -1.0])


def test_discount_per_chain_is_the_founding_return():
    # (1 + 2) + .5 * 4
    trajectory = chains_trajectory([[1.0, 2.0], [4.0]])
    np.testing.assert_allclose(trajectory.returns(0.5, discount_per="chain"), [5.0, 4.0])


def test_n_step_returns_match_hand_computed_numbers():
    r, d, v = tensor(1, 2, 4), tensor(0.5, 0.5, 0.5), tensor(8, 16, 32)
    assert returns.n_step_returns(r, d, v, n=1).tolist() == [5.0, 10.0, 20.0]
    # 1 + .5 * (2 + .5 * 16); 2 + .5 * (4 + .5 * 32); 4 + .5 * 32
    assert returns.n_step_returns(r, d, v, n=2).tolist() == [6.0, 12.0, 20.0]


def test_n_step_returns_bootstrap_at_truncation():
    r, d, v = tensor(1, 2, 4), tensor(0.5, 0.5, 0.5), tensor(8, 16, 32)
    cut = returns.n_step_returns(r, d, v, n=3, truncated_t=torch.tensor([False, True, False]))
    # 1 + .5 * (2 + .5 * 16); 2 + .5 * 16; 4 + .5 * 32
    assert cut.tolist() == [6.0, 10.0, 20.0]


def test_n_step_returns_of_a_long_horizon_are_monte_carlo():
    r, d, v = tensor(1, 2, 4), tensor(0.5, 0.5, 0.5), tensor(8, 16, 32)
    long = returns.n_step_returns(r, d, v, n=10)
    torch.testing.assert_close(long, returns.discounted_returns(r, d, final_value=32.0))


def test_lambda_returns_match_hand_computed_numbers():
    r, d, v = tensor(1, 2, 4), tensor(0.5, 0.5, 0), tensor(8, 16, 32)
    # 4; 2 + .5 * (.75 * 16 + .25 * 4) = 8.5; 1 + .5 * (.75 * 8 + .25 * 8.5) = 5.0625
    assert returns.lambda_returns(r, d, v, 0.25).tolist() == [5.0625, 8.5, 4.0]


def test_lambda_returns_bootstrap_at_truncation():
    r, d, v = tensor(1, 2, 4), tensor(0.5, 0.5, 0), tensor(8, 16, 32)
    cut = returns.lambda_returns(r, d, v, 0.25, truncated_t=torch.tensor([0, 1, 0]))
    # 2 + .5 * 16 = 10; 1 + .5 * (.75 * 8 + .25 * 10) = 5.25
    assert cut.tolist() == [5.25, 10.0, 4.0]


def test_lambda_one_is_monte_carlo_and_lambda_zero_is_one_step():
    r, d, v = tensor(1, 2, 4), tensor(0.5, 0.5, 0.5), tensor(8, 16, 32)
    torch.testing.assert_close(
        returns.lambda_returns(r, d, v, 1.0), returns.discounted_returns(r, d, final_value=32.0)
    )
    torch.testing.assert_close(returns.lambda_returns(r, d, v, 0.0), r + d * v)


def test_generalized_advantages_match_hand_computed_numbers():
    r, d = tensor(1, 2, 4), tensor(0.5, 0.5, 0)
    v_tm1, v_t = tensor(2, 8, 16), tensor(8, 16, 32)
    # deltas: 1 + 4 - 2 = 3; 2 + 8 - 8 = 2; 4 - 16 = -12
    # 2 + .25 * -12 = -1; 3 + .25 * -1 = 2.75
    actual = returns.generalized_advantages(r, d, v_tm1, v_t, 0.5)
    assert actual.tolist() == [2.75, -1.0, -12.0]


def test_generalized_advantages_are_cut_at_truncation_but_keep_its_bootstrap():
    r, d = tensor(1, 2, 4), tensor(0.5, 0.5, 0)
    v_tm1, v_t = tensor(2, 8, 16), tensor(8, 16, 32)
    cut = returns.generalized_advantages(r, d, v_tm1, v_t, 0.5, torch.tensor([0, 1, 0]))
    # the middle delta stays 2, and nothing of the next episode leaks into it
    assert cut.tolist() == [3.5, 2.0, -12.0]


def test_generalized_advantages_are_lambda_returns_minus_values_within_an_episode():
    generator = torch.Generator().manual_seed(0)
    r, values = torch.randn(9, 4, generator=generator), torch.randn(10, 4, generator=generator)
    d = torch.full_like(r, 0.9)
    actual = returns.generalized_advantages(r, d, values[:-1], values[1:], 0.7)
    expected = returns.lambda_returns(r, d, values[1:], 0.7) - values[:-1]
    torch.testing.assert_close(actual, expected)


def test_batched_returns_equal_their_columns():
    generator = torch.Generator().manual_seed(1)
    r, d = torch.randn(6, 3, generator=generator), torch.rand(6, 3, generator=generator)
    batched = returns.discounted_returns(r, d, final_value=torch.tensor([1.0, 2.0, 3.0]))
    for column in range(3):
        alone = returns.discounted_returns(r[:, column], d[:, column], final_value=column + 1.0)
        torch.testing.assert_close(batched[:, column], alone)


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match="discount_t"):
        returns.discounted_returns(torch.ones(3, 1), torch.ones(3))


def test_senseless_horizons_are_refused():
    with pytest.raises(ValueError, match="lambda_"):
        returns.lambda_returns(tensor(1), tensor(1), tensor(1), 1.5)
    with pytest.raises(ValueError, match="n: expected"):
        returns.n_step_returns(tensor(1), tensor(1), tensor(1), 0)
