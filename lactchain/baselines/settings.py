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
    success_return: float | None = None
    """Return from which an episode counts as a success; null: the threshold that Gymnasium's
    registry names for the environment, if it names one."""

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
    reward_scale: float = 1.0
    """Factor on rewards where they are learnt from; figures are of unscaled ones."""

    def __post_init__(self) -> None:
        _check_common(self)
        for name in ("num_steps", "num_epochs"):
            check(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        check(self.reward_scale > 0, "reward_scale", "a positive number", self.reward_scale)
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


@dataclass(frozen=True)
class DQNConfig:
    """Deep Q-learning (Mnih et al. 2015), double (van Hasselt et al. 2016)."""

    num_envs: int = 1
    """Copies of the environment that each member plays."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of the hidden layers."""
    activation: Activation = "relu"
    """Activation of the hidden layers."""
    double: bool = True
    """Let the online network choose the action that the target network values."""
    loss: Literal["mse", "smooth_l1"] = "smooth_l1"
    """How far values are from their targets; smooth_l1 makes little of large errors."""
    learning_rate: float = gene(1e-4, 1e-5, 1e-2, log=True)
    """Step size of Adam."""
    gamma: float = gene(0.99, 0.9, 0.9999)
    """Discount, in (0, 1]."""
    batch_size: int = gene(32, 16, 512, log=True, integer=True)
    """Transitions of an update."""
    tau: float = gene(1.0, 0.001, 1.0, log=True)
    """Share by which the target network moves to the online one; 1 copies it."""
    target_every_updates: int = 100
    """Updates between two such moves."""
    train_every_env_steps: int = 4
    """Environment steps of a member between two rounds of updates, a multiple of num_envs."""
    num_updates: int = 1
    """Updates of a round, however full the buffer is."""
    buffer_size: int = 100_000
    """Transitions that the replay buffer of a member holds."""
    learning_starts: int = 1000
    """Environment steps of a member, played at random, before the first update."""
    exploration_fraction: float = gene(0.1, 0.01, 0.5)
    """Share of the run in which the exploration rate falls from 1 to its final value."""
    final_exploration: float = gene(0.05, 0.01, 0.2)
    """Probability of a random action thereafter, drawn for each copy by itself."""
    max_grad_norm: float = gene(10.0, 0.3, 10.0, log=True)
    """Gradients are scaled down to this norm."""
    anneal: bool = False
    """Let the learning rate fall linearly to 0 over the run."""
    reward_scale: float = 1.0
    """Factor on rewards where they are learnt from; figures are of unscaled ones."""
    average_weights: float = 0.0
    """Decay, per update, of a running average of the weights that greedy play then uses; 0: greedy
    play uses the last weights."""

    def __post_init__(self) -> None:
        _check_common(self)
        _check_replay(self)
        for name in ("final_exploration", "exploration_fraction"):
            value = getattr(self, name)
            check(0 <= value <= 1, name, "a share in [0, 1]", value)
        check(self.reward_scale > 0, "reward_scale", "a positive number", self.reward_scale)
        decay = self.average_weights
        check(0 <= decay < 1, "average_weights", "a number in [0, 1)", decay)
        check(self.max_grad_norm > 0, "max_grad_norm", "a positive number", self.max_grad_norm)
        check(
            self.target_every_updates >= 1,
            "target_every_updates",
            "at least 1",
            self.target_every_updates,
        )


@dataclass(frozen=True)
class DDPGConfig:
    """Deep deterministic policy gradient (Lillicrap et al. 2015)."""

    num_envs: int = 1
    """Copies of the environment that each member plays."""
    hidden: tuple[int, ...] = (256, 256)
    """Units of the hidden layers, of actor and critics each."""
    activation: Activation = "relu"
    """Activation of the hidden layers."""
    num_critics: Literal[1, 2] = 1
    """2: targets take the smaller of two estimates (Fujimoto et al. 2018)."""
    learning_rate: float = gene(1e-3, 1e-5, 1e-2, log=True)
    """Step size of Adam, for the critics."""
    actor_learning_rate: float = gene(1e-3, 1e-5, 1e-2, log=True)
    """Step size of Adam, for the actor."""
    gamma: float = gene(0.99, 0.9, 0.9999)
    """Discount, in (0, 1]."""
    batch_size: int = gene(256, 16, 512, log=True, integer=True)
    """Transitions of an update."""
    tau: float = gene(0.005, 0.001, 0.1, log=True)
    """Share by which the target networks move to the online ones after each update."""
    reward_scale: float = gene(1.0, 0.01, 10.0, log=True)
    """Factor on rewards where they are learnt from; figures are of unscaled ones."""
    exploration_noise: float = gene(0.1, 0.01, 0.5)
    """Deviation of the Gaussian noise on actions, which lie in [-1, 1]."""
    train_every_env_steps: int = 1
    """Environment steps of a member between two rounds of updates, a multiple of num_envs."""
    num_updates: int = 1
    """Updates of a round, however full the buffer is."""
    buffer_size: int = 200_000
    """Transitions that the replay buffer of a member holds."""
    learning_starts: int = 1000
    """Environment steps of a member, played at random, before the first update."""
    anneal: bool = False
    """Let the learning rates fall linearly to 0 over the run."""

    def __post_init__(self) -> None:
        _check_common(self)
        _check_replay(self)
        for name in ("actor_learning_rate", "reward_scale"):
            check(getattr(self, name) > 0, name, "a positive number", getattr(self, name))
        noise = self.exploration_noise
        check(noise >= 0, "exploration_noise", "at least 0", noise)


@dataclass(frozen=True)
class CQLConfig:
    """Conservative Q-learning on recorded transitions (Kumar et al. 2020)."""

    hidden: tuple[int, ...] = (64, 64)
    """Units of the hidden layers."""
    activation: Activation = "relu"
    """Activation of the hidden layers."""
    learning_rate: float = gene(1e-3, 1e-5, 1e-2, log=True)
    """Step size of Adam."""
    gamma: float = gene(0.99, 0.9, 0.9999)
    """Discount, in (0, 1]."""
    cql_weight: float = gene(1.0, 0.01, 10.0, log=True)
    """Weight of the penalty, beside half the squared error; the paper's alpha."""
    batch_size: int = gene(256, 16, 512, log=True, integer=True)
    """Transitions of an update."""
    tau: float = gene(0.005, 0.001, 1.0, log=True)
    """Share by which the target network moves to the online one after each update."""
    num_updates: int = 100
    """Updates of one iteration."""
    max_grad_norm: float = gene(10.0, 0.3, 10.0, log=True)
    """Gradients are scaled down to this norm."""
    anneal: bool = False
    """Let the learning rate fall linearly to 0 over the run."""

    def __post_init__(self) -> None:
        _check_learning(self)
        check(self.cql_weight >= 0, "cql_weight", "at least 0", self.cql_weight)
        check(0 < self.tau <= 1, "tau", "a share in (0, 1]", self.tau)
        check(self.num_updates >= 1, "num_updates", "at least 1", self.num_updates)
        check(self.max_grad_norm > 0, "max_grad_norm", "a positive number", self.max_grad_norm)


def _check_replay(config: Any) -> None:
    """What must hold of every config with a replay buffer."""
    for name in ("num_updates", "buffer_size"):
        check(getattr(config, name) >= 1, name, "at least 1", getattr(config, name))
    check(config.learning_starts >= 0, "learning_starts", "at least 0", config.learning_starts)
    check(0 < config.tau <= 1, "tau", "a share in (0, 1]", config.tau)
    size = config.buffer_size
    check(
        config.batch_size <= size, "batch_size", f"at most buffer_size = {size}", config.batch_size
    )
    steps, copies = config.train_every_env_steps, config.num_envs
    check(
        steps >= copies and steps % copies == 0,
        "train_every_env_steps",
        f"a multiple of num_envs = {copies}",
        steps,
    )


def _check_common(config: Any) -> None:
    """What must hold of the config of every agent that plays."""
    check(config.num_envs >= 1, "num_envs", "at least 1", config.num_envs)
    _check_learning(config)


def _check_learning(config: Any) -> None:
    """What must hold of every agent's config."""
    widths = config.hidden
    check(all(width >= 1 for width in widths), "hidden", "widths of at least 1", widths)
    check(config.learning_rate > 0, "learning_rate", "a positive number", config.learning_rate)
    check(0 < config.gamma <= 1, "gamma", "a number in (0, 1]", config.gamma)
    check(config.batch_size >= 1, "batch_size", "at least 1", config.batch_size)


@dataclass(frozen=True)
class LoopConfig:
    """How long is learnt, and how often it is looked at.

    Steps are environment steps of each member; for CQL, which plays none, they are updates.
    """

    num_members: int = 1
    """Members that learn side by side from seeds of their own."""
    total_steps: int = 100_000
    """Steps of the run."""
    log_every_steps: int = 2_000
    """Steps between records of metrics.jsonl."""
    eval_every_steps: int = 10_000
    """Steps between evaluations; there is always one at the end."""
    num_eval_episodes: int = 20
    """Greedy episodes of each evaluation, from the same seeds for every member every time."""
    save_every_steps: int = 10_000
    """Steps between checkpoints, so many a kill can cost; 0: only when the run is asked to stop."""
    keep_checkpoints: int = 2
    """Checkpoints to keep; older ones go when a newer one is verified."""
    target_return: float | None = None
    """Mean return of an evaluation that ends the run early; null: none does."""

    def __post_init__(self) -> None:
        for name in (
            "num_members", "total_steps", "log_every_steps", "eval_every_steps",
            "num_eval_episodes", "keep_checkpoints",
        ):  # fmt: skip
            check(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        check(self.save_every_steps >= 0, "save_every_steps", "at least 0", self.save_every_steps)


@dataclass(frozen=True)
class TrainPPOConfig:
    """A run of PPO."""

    run: RunConfig = RunConfig(run_dir="runs/train_ppo")
    environment: WorldConfig = WorldConfig()
    agent: PPOConfig = PPOConfig()
    loop: LoopConfig = LoopConfig()


@dataclass(frozen=True)
class TrainDQNConfig:
    """A run of DQN."""

    run: RunConfig = RunConfig(run_dir="runs/train_dqn")
    environment: WorldConfig = WorldConfig()
    agent: DQNConfig = DQNConfig()
    loop: LoopConfig = LoopConfig(total_steps=50_000)


@dataclass(frozen=True)
class TrainDDPGConfig:
    """A run of DDPG."""

    run: RunConfig = RunConfig(run_dir="runs/train_ddpg")
    environment: WorldConfig = WorldConfig(id="Pendulum-v1")
    agent: DDPGConfig = DDPGConfig()
    loop: LoopConfig = LoopConfig(total_steps=20_000)


@dataclass(frozen=True)
class TrainCQLConfig:
    """A run of CQL."""

    run: RunConfig = RunConfig(run_dir="runs/train_cql")
    environment: WorldConfig = WorldConfig()
    """What the data are of, and what the result is evaluated in."""
    agent: CQLConfig = CQLConfig()
    loop: LoopConfig = LoopConfig(total_steps=10_000, log_every_steps=500, eval_every_steps=2_500)
    data: str | None = None
    """Recorded transitions: parquet of ours, an HDF5 file in d3rlpy's layout, or the folder of a
    Minari data set; null: random play of the run's own, kept in RUN/transitions.parquet."""
    num_random_steps: int = 20_000
    """Environment steps of that random play."""

    def __post_init__(self) -> None:
        steps = self.num_random_steps
        check(steps >= 1, "num_random_steps", "at least 1", steps)


@dataclass(frozen=True)
class EvaluateAgentConfig:
    """An evaluation, as a run of its own, of any agent: one of another library, say."""

    run: RunConfig = RunConfig(run_dir="runs/evaluate_agent")
    environment: WorldConfig = WorldConfig()
    num_eval_episodes: int = 100
    """Greedy episodes, from the same seeds as those in other runs' summaries."""
    agent: str = ""
    """Who plays, for the reader of the report."""

    def __post_init__(self) -> None:
        count = self.num_eval_episodes
        check(count >= 1, "num_eval_episodes", "at least 1", count)
