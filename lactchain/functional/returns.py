"""Advantages as pure functions of tensors.

Time is the first axis: every argument is (T,) or (T, B). Subscripts say at which time step a number
lives: `_tm1` at the source of a transition, `_t` at its destination. A transition
(s_{t-1}, a_{t-1}, r_t, s_t) has reward `r_t`, value of its source `v_tm1`, value of its destination
`v_t` and `discount_t`, which is γ(1 − terminated) and multiplies `v_t`; of a chain of k actions,
γ^k (1 − terminated).

`v_t` is the value of the observation that the transition ended on, before any reset, so it differs
from `v_tm1` shifted by one wherever an episode ended. Truncation does not touch the discount (the
last state keeps its value); it cuts the recursion. Monte-Carlo returns of a recorded episode are
`lactchain.types.Trajectory.returns`.
"""

import torch
from torch import Tensor

from lactchain.functional.value_losses import check_equal_shapes


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
    values = torch.as_tensor(lambda_)
    if not ((values >= 0.0) & (values <= 1.0)).all():
        raise ValueError(f"lambda_: expected a number in [0, 1], got {lambda_}")
    lambda_t = torch.zeros_like(r_t) + lambda_
    if truncated_t is not None:
        lambda_t = lambda_ * (1.0 - truncated_t.to(r_t.dtype))
    check_equal_shapes(r_t=r_t, discount_t=discount_t, v_tm1=v_tm1, v_t=v_t, truncated_t=lambda_t)
    if not r_t.ndim or not r_t.numel():
        raise ValueError(f"r_t: expected a shape (T, ...) with T >= 1, got {tuple(r_t.shape)}")
    delta_t = r_t + discount_t * v_t - v_tm1
    running = torch.zeros_like(r_t[0])
    advantages_tm1 = torch.empty_like(r_t)
    for t in reversed(range(len(r_t))):
        running = delta_t[t] + discount_t[t] * lambda_t[t] * running
        advantages_tm1[t] = running
    return advantages_tm1
