"""Returns and advantages as pure functions of tensors.

Time is the first axis: every argument is (T,) or (T, B). Subscripts say at which time step a number
lives: `_tm1` at the source of a transition, `_t` at its destination. A transition
(s_{t-1}, a_{t-1}, r_t, s_t) has reward `r_t`, value of its source `v_tm1`, value of its destination
`v_t` and `discount_t`, which is γ(1 − terminated) and multiplies `v_t`.

`v_t` is the value of the observation that the transition ended on, before any reset, so it differs
from `v_tm1` shifted by one wherever an episode ended. Truncation does not touch the discount (the
last state keeps its value); it cuts the recursion.
"""

import torch
from torch import Tensor


def discounts(gamma: float, terminated_t: Tensor, num_actions_t: Tensor | None = None) -> Tensor:
    """Discount of each destination: γ^k (1 − terminated), (T, …).

    A chain of k actions is an option that lasts k time steps, so the state after it counts γ^k
    (Sutton, Precup & Singh 1999, "Between MDPs and semi-MDPs", section 2). Without `num_actions_t`
    every transition lasts one step.
    """
    alive_t = 1.0 - terminated_t.to(torch.get_default_dtype())
    if num_actions_t is None:
        return gamma * alive_t
    _check_shapes(terminated_t=terminated_t, num_actions_t=num_actions_t)
    return gamma ** num_actions_t.to(alive_t.dtype) * alive_t


def chain_rewards(rewards_t: Tensor, num_actions_t: Tensor, gamma: float) -> Tensor:
    """Reward of each chain, r_t = Σ_j γ^j r_{t,j} over its first k actions, (T,).

    Source: Sutton, Precup & Singh 1999, section 2, the reward of an option.

    Args:
        rewards_t: (T, K) rewards of the primitive actions; what stands beyond `num_actions_t` is
            padding.
        num_actions_t: (T,) actions that each chain took, k_t.
        gamma: discount of one primitive action.
    """
    if rewards_t.ndim != 2 or num_actions_t.shape != rewards_t.shape[:1]:
        raise ValueError(
            f"rewards_t, num_actions_t: expected (T, K) and (T,), got {tuple(rewards_t.shape)} "
            f"and {tuple(num_actions_t.shape)}"
        )
    position = torch.arange(rewards_t.shape[1], device=rewards_t.device).to(rewards_t.dtype)
    taken = position < num_actions_t[:, None]
    return (rewards_t * gamma**position).masked_fill(~taken, 0.0).sum(dim=1)


def discounted_returns(
    r_t: Tensor, discount_t: Tensor, final_value: Tensor | float = 0.0
) -> Tensor:
    """Monte-Carlo returns of one episode, R_{t-1} = r_t + discount_t R_t, (T, …).

    Source: Sutton & Barto 2018, equation 3.9; with the discounts γ^k of chains this is the
    semi-Markov return (Sutton, Precup & Singh 1999).

    Args:
        r_t: (T, …) rewards.
        discount_t: (T, …) discounts; 0 at a terminal step, so `final_value` is unused after one.
        final_value: (…) value of the state the episode was cut at.
    """
    _check_shapes(r_t=r_t, discount_t=discount_t)
    running = torch.zeros_like(r_t[0]) + final_value
    returns_tm1 = torch.empty_like(r_t)
    for t in reversed(range(len(r_t))):
        running = r_t[t] + discount_t[t] * running
        returns_tm1[t] = running
    return returns_tm1


def chain_returns(
    rewards_t: Tensor,
    num_actions_t: Tensor,
    gamma: float,
    terminated: bool,
    final_value: Tensor | float = 0.0,
) -> Tensor:
    """Semi-Markov returns of one episode of chains, R_t = Σ_j γ^j r_{t,j} + γ^{k_t} R_{t+1}, (T,).

    Source: Sutton, Precup & Singh 1999, section 2. See `chain_rewards` for the arguments;
    `final_value` is what the last state is worth unless the episode `terminated`.
    """
    return discounted_returns(
        chain_rewards(rewards_t, num_actions_t, gamma),
        gamma ** num_actions_t.to(rewards_t.dtype),
        0.0 if terminated else final_value,
    )


def n_step_returns(
    r_t: Tensor, discount_t: Tensor, v_t: Tensor, n: int, truncated_t: Tensor | None = None
) -> Tensor:
    """Returns that look n steps ahead and bootstrap there, (T, …).

    G_{t-1} = r_t + discount_t (r_{t+1} + … discount_{t+n-1} v_{t+n-1}); a path that reaches a
    truncated step or the end of the data earlier bootstraps there.
    Source: Sutton & Barto 2018, equation 7.1.
    """
    if n < 1:
        raise ValueError(f"n: expected at least 1, got {n}")
    cut_t = torch.zeros_like(r_t, dtype=torch.bool) if truncated_t is None else truncated_t.bool()
    _check_shapes(r_t=r_t, discount_t=discount_t, v_t=v_t, truncated_t=cut_t)
    cut_t = cut_t.clone()
    cut_t[-1] = True
    returns_tm1 = r_t + discount_t * v_t
    for _ in range(n - 1):
        following = returns_tm1.roll(-1, dims=0)
        returns_tm1 = r_t + discount_t * torch.where(cut_t, v_t, following)
    return returns_tm1


def lambda_returns(
    r_t: Tensor,
    discount_t: Tensor,
    v_t: Tensor,
    lambda_: float,
    truncated_t: Tensor | None = None,
) -> Tensor:
    """λ-returns, G_{t-1} = r_t + discount_t ((1 − λ_t) v_t + λ_t G_t), (T, …).

    λ_t is λ, and 0 where the episode was truncated. The last step bootstraps from `v_t`.
    Source: Sutton & Barto 2018, section 12.8; RLax `multistep.lambda_returns`.
    """
    _check_lambda(lambda_)
    lambda_t = _lambda_t(r_t, lambda_, truncated_t)
    _check_shapes(r_t=r_t, discount_t=discount_t, v_t=v_t, truncated_t=lambda_t)
    running = v_t[-1]
    returns_tm1 = torch.empty_like(r_t)
    for t in reversed(range(len(r_t))):
        running = r_t[t] + discount_t[t] * torch.lerp(v_t[t], running, lambda_t[t])
        returns_tm1[t] = running
    return returns_tm1


def generalized_advantages(
    r_t: Tensor,
    discount_t: Tensor,
    v_tm1: Tensor,
    v_t: Tensor,
    lambda_: float | Tensor,
    truncated_t: Tensor | None = None,
) -> Tensor:
    """Generalised advantage estimates (GAE), (T, …).

    A_{t-1} = δ_t + γλ(1 − terminated)(1 − truncated) A_t, δ_t = r_t + discount_t v_t − v_{t-1}.
    Source: Schulman et al. 2016, "High-dimensional continuous control using generalized advantage
    estimation", equation 16. λ is a number, or a tensor that broadcasts against `r_t`.
    """
    _check_lambda(lambda_)
    lambda_t = _lambda_t(r_t, lambda_, truncated_t)
    _check_shapes(r_t=r_t, discount_t=discount_t, v_tm1=v_tm1, v_t=v_t, truncated_t=lambda_t)
    delta_t = r_t + discount_t * v_t - v_tm1
    running = torch.zeros_like(r_t[0])
    advantages_tm1 = torch.empty_like(r_t)
    for t in reversed(range(len(r_t))):
        running = delta_t[t] + discount_t[t] * lambda_t[t] * running
        advantages_tm1[t] = running
    return advantages_tm1


def _lambda_t(r_t: Tensor, lambda_: float | Tensor, truncated_t: Tensor | None) -> Tensor:
    if truncated_t is None:
        return torch.zeros_like(r_t) + lambda_
    return lambda_ * (1.0 - truncated_t.to(r_t.dtype))


def _check_lambda(lambda_: float | Tensor) -> None:
    values = torch.as_tensor(lambda_)
    if not ((values >= 0.0) & (values <= 1.0)).all():
        raise ValueError(f"lambda_: expected a number in [0, 1], got {lambda_}")


def _check_shapes(**tensors: Tensor) -> None:
    """Broadcasting a (T, 1) against a (T,) is the classic silent fault; all shapes must agree."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1 or 0 in next(iter(shapes.values())) or () in shapes.values():
        raise ValueError(f"expected equal shapes (T, ...) with T >= 1, got {shapes}")
