"""Returns and advantages against numbers worked out by hand and a second implementation."""

import numpy as np
import pytest
import torch

from lactchain.functional import returns
from lactchain.types import Action, Trajectory


def tensor(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize("terminated", [True, False])
def test_returns_are_a_sum_over_all_actions_that_follow(terminated):
    """Σ_j γ^j r_j over the actions from each chain on, and what the last state is worth."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        lengths = rng.integers(1, 6, size=rng.integers(1, 7))
        chains = [rng.normal(size=length).tolist() for length in lengths]
        trajectory = Trajectory(
            env_id="test/Chains-v0",
            seed=0,
            observations=("s",) * (len(chains) + 1),
            actions=(Action("a"),) * len(chains),
            rewards=tuple(map(sum, chains)),
            infos=({}, *({"rewards": r, "executed": ["forward"] * len(r)} for r in chains)),
            terminated=terminated,
            truncated=not terminated,
        )
        for t, value in enumerate(trajectory.returns(0.9, final_value=3.0)):
            rewards = [*sum(chains[t:], []), 0.0 if terminated else 3.0]
            assert value == pytest.approx(sum(0.9**j * r for j, r in enumerate(rewards)))


def test_generalized_advantages_match_hand_computed_numbers():
    r, d = tensor(1, 2, 4), tensor(0.5, 0.5, 0)
    v_tm1, v_t = tensor(2, 8, 16), tensor(8, 16, 32)
    # deltas: 1 + 4 - 2 = 3; 2 + 8 - 8 = 2; 4 - 16 = -12
    # 2 + .25 * -12 = -1; 3 + .25 * -1 = 2.75
    actual = returns.generalized_advantages(r, d, v_tm1, v_t, 0.5)
    assert actual.tolist() == [2.75, -1.0, -12.0]
    # Cut in the middle, whose delta stays 2; nothing of the next episode leaks into it.
    cut = returns.generalized_advantages(r, d, v_tm1, v_t, 0.5, torch.tensor([0, 1, 0]))
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


def test_shapes_that_would_broadcast_and_a_senseless_lambda_are_refused():
    with pytest.raises(ValueError, match="discount_t"):
        advantages(torch.ones(3, 1), torch.ones(3), torch.ones(4, 1))
    with pytest.raises(ValueError, match="lambda_"):
        returns.generalized_advantages(*[tensor(1)] * 4, 1.5)
