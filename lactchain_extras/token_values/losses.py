"""Losses of values of tokens, one number per token, as in `lactchain.functional.losses`.

A token of the agent is a transition, too: from the state in which it was said to the one behind it.
Behind a completion's last token, `discount_t` multiplies the value of the text that it led to. Q of
tokens comes from N heads, hence (N, T).
"""

import torch
from torch import Tensor

from lactchain.functional.losses import check_equal_shapes


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
