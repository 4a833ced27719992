"""The configs of the classic agents: plain values, no torch. Tunables are searched.

Defaults are those of Stable-Baselines3 where it has the algorithm, unless said otherwise; YAML
files in configs/ hold what suits an environment.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from lactchain.config.bounds import (
    AtLeast0,
    AtLeast1,
    Bound,
    Bounded,
    Count,
    NonNegative,
    Positive,
    PositiveShare,
    Share,
    tunable,
)
from lactchain.config.settings import RunConfig, check


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
class AgentConfig(Bounded):
    """What all classic agents have."""

    hidden: tuple[AtLeast1, ...] = (64, 64)
    """Units of the hidden layers, of each network."""
    activation: Literal["tanh", "relu", "elu"] = "relu"
    """Activation of the hidden layers."""
    rescale_observations: bool = False
    """Let networks see observations brought from their space's bounds to [-1, 1]."""
    anneal: bool = False
    """Let learning rates (and PPO's clip range) fall linearly to 0 over the run."""
    learning_rate: Positive = tunable(3e-4, 1e-5, 1e-2, log=True)
    """Step size of Adam; DDPG: for the critics."""


@dataclass(frozen=True)
class ReplayConfig(AgentConfig):
    """What agents have that learn from a replay buffer."""

    num_envs: Count = 1
    """Copies of the environment that each member plays."""
    train_every_env_steps: AtLeast1 = 1
    """Environment steps of a member between two rounds of updates, a multiple of num_envs."""
    num_updates: AtLeast1 = 1
    """Updates of a round, however full the buffer is."""
    buffer_size: AtLeast1 = 100_000
    """Transitions that the replay buffer of a member holds."""
    learning_starts: AtLeast0 = 1000
    """Environment steps of a member, played at random, before the first update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        size, rows = self.buffer_size, self.batch_size
        check(rows <= size, "batch_size", f"at most buffer_size = {size}", rows)
        steps, copies = self.train_every_env_steps, self.num_envs
        fits = steps % copies == 0
        check(fits, "train_every_env_steps", f"a multiple of num_envs = {copies}", steps)


@dataclass(frozen=True)
class PPOConfig(AgentConfig):
    """Proximal policy optimisation (Schulman et al. 2017)."""

    num_envs: Count = 8
    """Copies of the environment that each member plays."""
    num_steps: AtLeast1 = 256
    """Steps of each copy between two updates."""
    activation: Literal["tanh", "relu", "elu"] = "tanh"
    gamma: PositiveShare = tunable(0.99, 0.9, 0.9999)
    """Discount."""
    gae_lambda: Share = tunable(0.95, 0.8, 1.0)
    """Decay of generalised advantages."""
    clip_range: Positive = tunable(0.2, 0.1, 0.4)
    """How far the probability ratio may leave 1."""
    entropy_coef: float = tunable(0.0, 0.0, 0.1)
    """Weight of the entropy bonus."""
    value_coef: float = tunable(0.5, 0.0, 1.0)
    """Weight of the value loss."""
    max_grad_norm: Positive = tunable(0.5, 0.3, 5.0, log=True)
    """Gradients are scaled down to this norm."""
    batch_size: AtLeast1 = tunable(64, 8, 512, log=True, integer=True)
    """Rows of a minibatch, at most num_envs * num_steps."""
    num_epochs: AtLeast1 = tunable(10, 1, 20, integer=True)
    """Passes over the rows of a rollout."""
    reward_scale: Positive = 1.0
    """Factor on rewards where they are learnt from; figures are of unscaled ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = self.num_envs * self.num_steps
        fits, wanted = self.batch_size <= rows, f"at most num_envs * num_steps = {rows}"
        check(fits, "batch_size", wanted, self.batch_size)


@dataclass(frozen=True)
class DQNConfig(ReplayConfig):
    """Deep Q-learning (Mnih et al. 2015), double (van Hasselt et al. 2016)."""

    train_every_env_steps: AtLeast1 = 4
    double: bool = True
    """Let the online network choose the action that the target network values."""
    loss: Literal["mse", "smooth_l1"] = "smooth_l1"
    """How far values are from their targets; smooth_l1 makes little of large errors."""
    learning_rate: Positive = tunable(1e-4, 1e-5, 1e-2, log=True)
    gamma: PositiveShare = tunable(0.99, 0.9, 0.9999)
    """Discount."""
    batch_size: AtLeast1 = tunable(32, 16, 512, log=True, integer=True)
    """Transitions of an update."""
    tau: PositiveShare = tunable(1.0, 0.001, 1.0, log=True)
    """Share by which the target network moves to the online one; 1 copies it."""
    target_every_updates: AtLeast1 = 100
    """Updates between two such moves."""
    exploration_fraction: Share = tunable(0.1, 0.01, 0.5)
    """Share of the run in which the exploration rate falls from 1 to its final value."""
    final_exploration: Share = tunable(0.05, 0.01, 0.2)
    """Probability of a random action thereafter, drawn for each copy by itself."""
    max_grad_norm: Positive = tunable(10.0, 0.3, 10.0, log=True)
    """Gradients are scaled down to this norm."""
    reward_scale: Positive = 1.0
    """Factor on rewards where they are learnt from; figures are of unscaled ones."""
    average_weights: Annotated[float, Bound(at_least=0, below=1)] = 0.0
    """Decay, per update, of a running average of the weights that greedy play then uses; 0: greedy
    play uses the last weights."""


@dataclass(frozen=True)
class DDPGConfig(ReplayConfig):
    """Deep deterministic policy gradient (Lillicrap et al. 2015)."""

    hidden: tuple[AtLeast1, ...] = (256, 256)
    buffer_size: AtLeast1 = 200_000
    learning_rate: Positive = tunable(1e-3, 1e-5, 1e-2, log=True)
    actor_learning_rate: Positive = tunable(1e-3, 1e-5, 1e-2, log=True)
    """Step size of Adam, for the actor."""
    gamma: PositiveShare = tunable(0.99, 0.9, 0.9999)
    """Discount."""
    batch_size: AtLeast1 = tunable(256, 16, 512, log=True, integer=True)
    """Transitions of an update."""
    tau: PositiveShare = tunable(0.005, 0.001, 0.1, log=True)
    """Share by which the target networks move to the online ones after each update."""
    reward_scale: Positive = tunable(1.0, 0.01, 10.0, log=True)
    """Factor on rewards where they are learnt from; figures are of unscaled ones."""
    exploration_noise: NonNegative = tunable(0.1, 0.01, 0.5)
    """Deviation of the Gaussian noise on actions, which lie in [-1, 1]."""


@dataclass(frozen=True)
class CQLConfig(AgentConfig):
    """Conservative Q-learning on recorded transitions (Kumar et al. 2020)."""

    # What `QLearner` reads too: settings of DQN, and constants of CQL.
    double = True
    loss = "mse"
    reward_scale = 1.0
    target_every_updates = 1
    average_weights = 0.0
    learning_rate: Positive = tunable(1e-3, 1e-5, 1e-2, log=True)
    gamma: PositiveShare = tunable(0.99, 0.9, 0.9999)
    """Discount."""
    cql_weight: NonNegative = tunable(1.0, 0.01, 10.0, log=True)
    """Weight of the penalty, beside half the squared error; the paper's alpha."""
    batch_size: AtLeast1 = tunable(256, 16, 512, log=True, integer=True)
    """Transitions of an update."""
    tau: PositiveShare = tunable(0.005, 0.001, 1.0, log=True)
    """Share by which the target network moves to the online one after each update."""
    num_updates: AtLeast1 = 100
    """Updates of one iteration."""
    max_grad_norm: Positive = tunable(10.0, 0.3, 10.0, log=True)
    """Gradients are scaled down to this norm."""


@dataclass(frozen=True)
class LoopConfig(Bounded):
    """How long is learnt, and how often it is looked at.

    Steps are environment steps of each member; for CQL, which plays none, they are updates.
    """

    num_members: Count = 1
    """Members that learn side by side from seeds of their own."""
    total_steps: AtLeast1 = 100_000
    """Steps of the run."""
    log_every_steps: AtLeast1 = 2_000
    """Steps between records of metrics.jsonl."""
    eval_every_steps: AtLeast1 = 10_000
    """Steps between evaluations; there is always one at the end."""
    num_eval_episodes: Count = 20
    """Greedy episodes of each evaluation, from the same seeds for every member every time."""
    save_every_steps: AtLeast0 = 10_000
    """Steps between checkpoints, so many a kill can cost; 0: only when the run is asked to stop."""


@dataclass(frozen=True)
class TrainAgentConfig(Bounded):
    """A run of some agent; a subclass says which."""

    run: RunConfig
    environment: WorldConfig = WorldConfig()
    agent: Any = None
    loop: LoopConfig = LoopConfig()


@dataclass(frozen=True)
class TrainPPOConfig(TrainAgentConfig):
    """A run of PPO."""

    run: RunConfig = RunConfig(run_dir="runs/train_ppo")
    agent: PPOConfig = PPOConfig()


@dataclass(frozen=True)
class TrainDQNConfig(TrainAgentConfig):
    """A run of DQN."""

    run: RunConfig = RunConfig(run_dir="runs/train_dqn")
    agent: DQNConfig = DQNConfig()
    loop: LoopConfig = LoopConfig(total_steps=50_000)


@dataclass(frozen=True)
class TrainDDPGConfig(TrainAgentConfig):
    """A run of DDPG."""

    run: RunConfig = RunConfig(run_dir="runs/train_ddpg")
    environment: WorldConfig = WorldConfig(id="Pendulum-v1")
    agent: DDPGConfig = DDPGConfig()
    loop: LoopConfig = LoopConfig(total_steps=20_000)


@dataclass(frozen=True)
class TrainCQLConfig(TrainAgentConfig):
    """A run of CQL."""

    run: RunConfig = RunConfig(run_dir="runs/train_cql")
    agent: CQLConfig = CQLConfig()
    loop: LoopConfig = LoopConfig(total_steps=10_000, log_every_steps=500, eval_every_steps=2_500)
    data: str | None = None
    """Recorded transitions: a folder of ours, an HDF5 file in d3rlpy's layout, or the folder of a
    Minari data set; null: random play of the run's own, kept in RUN/transitions."""
    num_random_steps: AtLeast1 = 20_000
    """Environment steps of that random play."""
