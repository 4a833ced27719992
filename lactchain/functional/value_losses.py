"""Losses of value functions, one number per row; the caller takes the (masked, weighted) mean.

`_tm1` marks the source of a transition, `_t` its destination; `discount_t` is γ(1 − terminated).
Targets carry no gradient.

A token of the agent is a transition, too: from the state in which it was said to the one behind it.
Behind a completion's last token, `discount_t` multiplies the value of the text that it led to. Q of
tokens comes from N heads, hence (N, T).
"""

from typing import Literal

import torch
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


def expectile_loss(values: Tensor, targets: Tensor, expectile: float) -> Tensor:
    """Asymmetric squares |τ − 1(u < 0)| u² with u = target − value, (B,).

    τ is `expectile`: at 0.5 half the squared error, towards 1 the value approaches the largest
    target. Source: Kostrikov, Nair & Levine 2021, "Offline RL with implicit Q-learning",
    equation 5; Newey & Powell 1987.
    """
    if not 0.0 < expectile < 1.0:
        raise ValueError(f"expectile: expected a number in (0, 1), got {expectile}")
    check_equal_shapes(values=values, targets=targets)
    error = targets.detach() - values
    return torch.where(error < 0, 1.0 - expectile, expectile) * error.square()


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


# --- of tokens ------------------------------------------------------------------------------------


def ilql_losses(
    q_tm1: Tensor,
    logsumexp_tm1: Tensor,
    v_tm1: Tensor,
    target_q_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    v_t: Tensor,
    expectile: float,
) -> dict[str, Tensor]:
    """The three parts of ILQL's loss, each (T,).

    `q`: Σ_i (Q_i − y)², y = r_t + discount_t V(s_t); `v`: the expectile loss of V against
    min_i Q̂_i of the target network; `cql`: Σ_i [log Σ_a exp Q_i(s, a) − Q_i].
    Source: Snell et al. 2022, "Offline RL for natural language generation with implicit language
    Q-learning", equations 3 to 5; weights are the caller's.

    Args:
        q_tm1: (N, T) values of the tokens in the data.
        logsumexp_tm1: (N, T) log Σ exp over the vocabulary in the same states.
        v_tm1: (T,) values of these states.
        target_q_tm1: (T,) least target value of the tokens in the data.
        expectile: of V, in (0, 1).
    """
    _check_shapes(q_tm1, logsumexp_tm1, v_tm1, target_q_tm1, r_t, discount_t, v_t)
    targets = (r_t + discount_t * v_t).detach()
    return {
        "q": (q_tm1 - targets).square().sum(dim=0),
        "v": expectile_loss(v_tm1, target_q_tm1, expectile),
        "cql": (logsumexp_tm1 - q_tm1).sum(dim=0),
    }


def monte_carlo_losses(
    q_tm1: Tensor, logsumexp_tm1: Tensor, v_tm1: Tensor, returns_tm1: Tensor
) -> dict[str, Tensor]:
    """The parts of the Monte-Carlo loss, each (T,): `q`, `v` and `cql` as in `ilql_losses`.

    Source: LMRL-Gym (Abdulhai et al. 2023), MC returns; V, the mean return of a state, is ours, and
    gives advantages and the values of episodes that were cut.
    """
    _check_shapes(q_tm1, logsumexp_tm1, v_tm1, returns_tm1)
    returns_tm1 = returns_tm1.detach()
    return {
        "q": (q_tm1 - returns_tm1).square().sum(dim=0),
        "v": (v_tm1 - returns_tm1).square(),
        "cql": (logsumexp_tm1 - q_tm1).sum(dim=0),
    }


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """Mean of weight · loss over T tokens; with weights of mean 1 over the data, of the data."""
    return torch.dot(losses, weights.to(losses.dtype)) / len(losses)


def _check_shapes(q: Tensor, logsumexp: Tensor, *others: Tensor) -> None:
    shapes = [tuple(q.shape), tuple(logsumexp.shape), *(tuple(x.shape) for x in others)]
    if q.ndim != 2 or shapes[1] != shapes[0] or set(shapes[2:]) != {shapes[0][1:]}:
        raise ValueError(f"expected (N, T) twice and (T,) for the others, got {shapes}")


# --- shapes ---------------------------------------------------------------------------------------


def check_equal_shapes(**tensors: Tensor) -> None:
    """Refuses to broadcast: a (T, 1) against a (T,) is the classic silent fault."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"expected equal shapes, got {shapes}")
