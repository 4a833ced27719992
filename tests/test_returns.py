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


def test_returns_match_hand_computed_numbers():
    # last: 4; first: 1 + .5 * 2 + .5^2 * 4
    trajectory = chains_trajectory([[1.0, 2.0], [4.0]])
    np.testing.assert_allclose(trajectory.returns(0.5), [3.0, 4.0])


def test_returns_bootstrap_where_the_episode_was_cut_and_nowhere_else():
    # last: 4 + .5 * 16; first: 1 + .5 * 2 + .5^2 * 12
    cut, ended = (chains_trajectory([[1.0, 2.0], [4.0]], terminated=t) for t in (False, True))
    np.testing.assert_allclose(cut.returns(0.5, final_value=16.0), [5.0, 12.0])
    np.testing.assert_allclose(ended.returns(0.5, final_value=16.0), [3.0, 4.0])


@pytest.mark.parametrize("terminated", [True, False])
def test_returns_are_a_sum_over_all_actions_that_follow(terminated):
    """Σ_j γ^j r_j over the actions from each chain on, and what the last state is worth."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        lengths = rng.integers(1, 6, size=rng.integers(1, 7))
        chains = [rng.normal(size=length).tolist() for length in lengths]
        found = chains_trajectory(chains, terminated=terminated).returns(0.9, final_value=3.0)
        for t, value in enumerate(found):
            rewards = [*sum(chains[t:], []), 0.0 if terminated else 3.0]
            assert value == pytest.approx(sum(0.9**j * r for j, r in enumerate(rewards)))


def test_trajectory_discounts_actions_but_not_what_a_chain_earned_beside_them():
    # second chain: -1 cost beside, unparsable, one step; first: 1 + .5 * 2 + .25 * (-1)
    trajectory = chains_trajectory([[1.0, 2.0], []], beside=[0.0, -1.0])
    np.testing.assert_allclose(trajectory.returns(0.5), [1.75, -1.0])


def test_discount_per_chain_is_the_founding_return():
    # (1 + 2) + .5 * 4
    trajectory = chains_trajectory([[1.0, 2.0], [4.0]])
    np.testing.assert_allclose(trajectory.returns(0.5, discount_per="chain"), [5.0, 4.0])


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


def advantages(r, d, values):
    return returns.generalized_advantages(r, d, values[:-1], values[1:], 0.7)


def test_generalized_advantages_are_lambda_returns_minus_values_within_an_episode():
    generator = torch.Generator().manual_seed(0)
    r, values = torch.randn(9, 4, generator=generator), torch.randn(10, 4, generator=generator)
    d = torch.full_like(r, 0.9)
    running, expected = values[-1], []
    for t in reversed(range(9)):
        running = r[t] + d[t] * (0.3 * values[t + 1] + 0.7 * running)
        expected.insert(0, running - values[t])
    torch.testing.assert_close(advantages(r, d, values), torch.stack(expected))


def test_batched_advantages_equal_their_columns():
    generator = torch.Generator().manual_seed(1)
    r, d, v = (torch.randn(n, 3, generator=generator) for n in (6, 6, 7))
    batched = advantages(r, d, v)
    for column in range(3):
        alone = advantages(r[:, column], d[:, column], v[:, column])
        torch.testing.assert_close(batched[:, column], alone)


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match="discount_t"):
        advantages(torch.ones(3, 1), torch.ones(3), torch.ones(4, 1))


def test_a_senseless_lambda_is_refused():
    with pytest.raises(ValueError, match="lambda_"):
        returns.generalized_advantages(tensor(1), tensor(1), tensor(1), tensor(1), 1.5)
