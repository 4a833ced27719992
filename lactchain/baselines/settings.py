"""The configs of the classic agents: plain values, no torch. Genes say what a search may change.

Defaults are those of Stable-Baselines3 where it has the algorithm, unless said otherwise; YAML
files in configs/ hold what suits an environment.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from lactchain.genes import gene
from lactchain.settings import RunConfig, check

Activation = Literal["tanh", "relu", "elu"]


@dataclass(frozen=True)
class WorldConfig:
    """The environment as numbers."""

    id: str = "CartPole-v1"
    """Gymnasium id. Continuous actions are rescaled to [-1, 1]."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment, such as {size: 6}."""

    def __post_init__(self) -> None:
        check(bool(self.id), "id", "a Gymnasium id", self.id)


@dataclass(frozen=True)
class PPOConfig:
    """Proximal policy optimisation (Schulman et al. 2017)."""

    num_envs: int = 8
    """Copies of the environment that each member plays."""
    num_steps: int = 256
    """Steps of each copy between two updates."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of the hidden layers, of actor and critic each."""
    activation: Activation = "tanh"
    """Activation of the hidden layers."""
    learning_rate: float = gene(3e-4, 1e-5, 1e-2, log=True)
    """Step size of Adam."""
    gamma: float = gene(0.99, 0.9, 0.9999)
    """Discount, in (0, 1]."""
    gae_lambda: float = gene(0.95, 0.8, 1.0)
    """Decay of generalised advantages, in [0, 1]."""
    clip_range: float = gene(0.2, 0.1, 0.4)
    """How far the probability ratio may leave 1."""
    entropy_coef: float = gene(0.0, 0.0, 0.1)
    """Weight of the entropy bonus."""
    value_coef: float = gene(0.5, 0.0, 1.0)
    """Weight of the value loss."""
    max_grad_norm: float = gene(0.5, 0.3, 5.0, log=True)
    """Gradients are scaled down to this norm."""
    batch_size: int = gene(64, 8, 512, log=True, integer=True)
    """Rows of a minibatch, at most num_envs * num_steps."""
    num_epochs: int = gene(10, 1, 20, integer=True)
    """Passes over the rows of a rollout."""
    anneal: bool = False
    """Let learning rate and clip range fall linearly to 0 over the run."""
    initial_log_std: float = 0.0
    """Logarithm of the initial deviation of continuous actions."""

    def __post_init__(self) -> None:
        _check_common(self)
        for name in ("num_steps", "num_epochs"):
            check(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        check(0 <= self.gae_lambda <= 1, "gae_lambda", "a number in [0, 1]", self.gae_lambda)
        check(self.clip_range > 0, "clip_range", "a positive number", self.clip_range)
        check(self.max_grad_norm > 0, "max_grad_norm", "a positive number", self.max_grad_norm)
        rows = self.num_envs * self.num_steps
        check(
            self.batch_size <= rows,
            "batch_size",
            f"at most num_envs * num_steps = {rows}",
            self.batch_size,
        )


def _check_common(config: Any) -> None:
    """What must hold of every agent's config."""
    check(config.num_envs >= 1, "num_envs", "at least 1", config.num_envs)
    widths = config.hidden
    check(all(width >= 1 for width in widths), "hidden", "widths of at least 1", widths)
    check(config.learning_rate > 0, "learning_rate", "a positive number", config.learning_rate)
    check(0 < config.gamma <= 1, "gamma", "a number in (0, 1]", config.gamma)
    check(config.batch_size >= 1, "batch_size", "at least 1", config.batch_size)


__all__ = ["PPOConfig", "RunConfig", "WorldConfig"]
