"""Losses of values and policies, divergences, advantages; the caller takes the (weighted) mean.

Losses and divergences are one number per row. `_tm1` marks the source of a transition, `_t` its
destination; `discount_t` is γ(1 − terminated). Targets carry no gradient.

Both divergences are zero or more in every sample, and have less variance than the plain mean of
log-ratios. Source: Schulman 2020, "Approximating KL divergence", k3.
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


def simpo_loss(
    chosen_logps: Tensor, rejected_logps: Tensor, beta: float, target_margin: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """SimPO, −log σ(β(ℓ_w − ℓ_l) − γ_m), (B,): a preference loss without a reference model.

    The implicit reward of a completion is β times its average log-probability; the chosen one
    should lead by γ_m. Source: Meng, Xia & Chen 2024, "SimPO", equation 6.

    Args:
        chosen_logps: (B,) log-probability of the chosen completion, averaged over its tokens, ℓ_w.
        rejected_logps: (B,) the same for the rejected completion, ℓ_l.
        beta: scale of the reward; the paper uses 2.0 to 2.5.
        target_margin: the paper's γ, TRL's `simpo_gamma`, in reward units.

    Returns:
        The losses, and per pair the metrics `rewards/chosen`, `rewards/rejected`,
        `rewards/margins` and `rewards/accuracies` (does the chosen completion lead?), all (B,).
    """
    check_equal_shapes(chosen_logps=chosen_logps, rejected_logps=rejected_logps)
    chosen_rewards, rejected_rewards = beta * chosen_logps, beta * rejected_logps
    margins = chosen_rewards - rejected_rewards
    metrics = {
        "rewards/chosen": chosen_rewards.detach(),
        "rewards/rejected": rejected_rewards.detach(),
        "rewards/margins": margins.detach(),
        "rewards/accuracies": (margins.detach() > 0).to(margins.dtype),
    }
    return -F.logsigmoid(margins - target_margin), metrics


def ppo_clip_loss(
    logps: Tensor, behaviour_logps: Tensor, advantages: Tensor, clip_range: float
) -> Tensor:
    """Clipped surrogate −min(ρA, clip(ρ, 1 − ε, 1 + ε) A) with ρ = exp(log π − log π_old), (B,).

    Source: Schulman et al. 2017, "Proximal policy optimization algorithms", equation 7.
    """
    ratios = (logps - behaviour_logps.detach()).exp()
    advantages = advantages.detach()
    clipped = ratios.clamp(1.0 - clip_range, 1.0 + clip_range)
    return -torch.minimum(ratios * advantages, clipped * advantages)


def kl_from_sampler(log_ratios: Tensor) -> Tensor:
    """One estimate a sample (B,) of KL(p‖q), p having sampled: e^r − 1 − r.

    Of log-ratios (B,), r = log q(x) − log p(x). It grows without bound as q forgets what p says.
    """
    return log_ratios.expm1() - log_ratios


def kl_to_sampler(log_ratios: Tensor) -> Tensor:
    """One estimate a sample (B,) of KL(q‖p), by the same log-ratios r: e^r r − e^r + 1.

    What q says and p hardly ever does is not among the samples: far from p this is too low.
    """
    return log_ratios.exp() * log_ratios - log_ratios.expm1()


def generalized_advantages(
    r_t: Tensor,
    discount_t: Tensor,
    v_tm1: Tensor,
    v_t: Tensor,
    lambda_: float,
    truncated_t: Tensor | None = None,
) -> Tensor:
    """Generalised advantage estimates (GAE), (T, …), time being the first axis.

    A_{t-1} = δ_t + γλ(1 − terminated)(1 − truncated) A_t, δ_t = r_t + discount_t v_t − v_{t-1}.
    Source: Schulman et al. 2016, "High-dimensional continuous control using generalized advantage
    estimation", equation 16.

    `v_t` is the value of the observation before any reset. Truncation does not touch the discount;
    it cuts the recursion.
    """
    if not 0.0 <= lambda_ <= 1.0:
        raise ValueError(f"lambda_: expected a number in [0, 1], got {lambda_}")
    lambda_t = torch.full_like(r_t, lambda_)
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


def check_equal_shapes(**tensors: Tensor) -> None:
    """Refuses to broadcast: a (T, 1) against a (T,) is the classic silent fault."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"expected equal shapes, got {shapes}")
