"""Losses and divergences of policies, one number per row; the caller takes the (weighted) mean.

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
