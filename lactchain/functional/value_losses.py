"""Losses of value functions, one number per row; the caller takes the (masked, weighted) mean.

`_tm1` marks the source of a transition, `_t` its destination; `discount_t` is γ(1 − terminated).
Targets carry no gradient.
"""

from typing import Literal

from torch import Tensor
from torch.nn import functional as F

Regression = Literal["mse", "smooth_l1"]


def regression_loss(values: Tensor, targets: Tensor, kind: Regression = "smooth_l1") -> Tensor:
    """Monte-Carlo regression of values on returns, (B,).

    "mse" is (v − R)², whose minimum is the mean return; "smooth_l1" is ½(v − R)² within 1 of the
    target and |v − R| − ½ beyond (Huber 1964; Girshick 2015, equation 3), which rare huge returns
    cannot dominate but which is biased where returns are skewed.
    """
    check_equal_shapes(values=values, targets=targets)
    if kind == "mse":
        return F.mse_loss(values, targets.detach(), reduction="none")
    if kind == "smooth_l1":
        return F.smooth_l1_loss(values, targets.detach(), reduction="none")
    raise ValueError(f"kind: expected 'mse' or 'smooth_l1', got {kind!r}")


def double_q_targets(
    r_t: Tensor, discount_t: Tensor, q_t_target: Tensor, q_t_online: Tensor
) -> Tensor:
    """Targets r_t + discount_t Q'(s_t, argmax_a Q(s_t, a)), (B,), of values (B, A).

    The online network, Q, chooses the action; the target network, Q', values it.
    Source: van Hasselt, Guez & Silver 2016, equation 4.
    """
    check_equal_shapes(r_t=r_t, discount_t=discount_t)
    check_equal_shapes(q_t_target=q_t_target, q_t_online=q_t_online)
    chosen = q_t_online.argmax(dim=-1, keepdim=True)
    return (r_t + discount_t * q_t_target.gather(-1, chosen).squeeze(-1)).detach()


def cql_penalty(q_tm1: Tensor, a_tm1: Tensor) -> Tensor:
    """Conservative penalty log Σ_a exp Q(s, a) − Q(s, a_data), (…), of values (…, A).

    What is subtracted is the value of the action in the data, not the mean over all actions: only
    so are unseen actions pushed below seen ones. It is also the cross-entropy of softmax(Q) against
    the data, whose indices are `a_tm1` (…). Source: Kumar et al. 2020, "Conservative Q-learning",
    equation 4, CQL(H).
    """
    if q_tm1.shape[:-1] != a_tm1.shape:
        raise ValueError(
            f"q_tm1, a_tm1: expected (..., A) and (...), got {tuple(q_tm1.shape)} "
            f"and {tuple(a_tm1.shape)}"
        )
    q_data = q_tm1.gather(-1, a_tm1.unsqueeze(-1)).squeeze(-1)
    return q_tm1.logsumexp(dim=-1) - q_data


def check_equal_shapes(**tensors: Tensor) -> None:
    """Refuses to broadcast: a (T, 1) against a (T,) is the classic silent fault."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"expected equal shapes, got {shapes}")
