"""How far one policy is from another, from log-probabilities of what was sampled.

Both estimates are zero or more in every sample, and have less variance than the plain mean of
log-ratios. Source: Schulman 2020, "Approximating KL divergence", k3.
"""

from torch import Tensor


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
