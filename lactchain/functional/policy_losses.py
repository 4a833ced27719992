"""Losses, divergences and advantages of policies; the caller takes the (weighted) mean of losses.

Both divergences are zero or more in every sample, and have less variance than the plain mean of
log-ratios. Source: Schulman 2020, "Approximating KL divergence", k3.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from lactchain.functional.value_losses import check_equal_shapes


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
    logps: Tensor, behaviour_logps: Tensor, advantages: Tensor, clip_range: float | Tensor
) -> Tensor:
    """Clipped surrogate −min(ρA, clip(ρ, 1 − ε, 1 + ε) A) with ρ = exp(log π − log π_old), (B,).

    Source: Schulman et al. 2017, "Proximal policy optimization algorithms", equation 7. ε is a
    number, or a tensor that broadcasts against the rows.
    """
    ratios = (logps - behaviour_logps.detach()).exp()
    advantages = advantages.detach()
    clipped = ratios.clamp(1.0 - clip_range, 1.0 + clip_range)
    return -torch.minimum(ratios * advantages, clipped * advantages)


def kl_from_sampler(log_ratios: Tensor) -> Tensor:
    """One estimate a sample (B,) of KL(p‖q), p having sampled: e^r − 1 − r.

    It grows without bound as q forgets what p says.

    Args:
        log_ratios: (B,) r = log q(x) − log p(x) of x ~ p.
    """
    return log_ratios.expm1() - log_ratios


def kl_to_sampler(log_ratios: Tensor) -> Tensor:
    """One estimate a sample (B,) of KL(q‖p), p having sampled: e^r r − e^r + 1.

    What q says and p hardly ever does is not among the samples: far from p this is too low.

    Args:
        log_ratios: (B,) r = log q(x) − log p(x) of x ~ p.
    """
    return log_ratios.exp() * log_ratios - log_ratios.expm1()


def generalized_advantages(
    r_t: Tensor,
    discount_t: Tensor,
    v_tm1: Tensor,
    v_t: Tensor,
    lambda_: float | Tensor,
    truncated_t: Tensor | None = None,
) -> Tensor:
    """Generalised advantage estimates (GAE), (T, …), time being the first axis.

    A_{t-1} = δ_t + γλ(1 − terminated)(1 − truncated) A_t, δ_t = r_t + discount_t v_t − v_{t-1}.
    Source: Schulman et al. 2016, "High-dimensional continuous control using generalized advantage
    estimation", equation 16. λ is a number, or a tensor that broadcasts against `r_t`.

    `_tm1` is at the source of a transition, `_t` at its destination: `discount_t` is
    γ(1 − terminated) and multiplies `v_t`, the value of the observation before any reset. So
    truncation does not touch the discount; it cuts the recursion.
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
