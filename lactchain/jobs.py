"""One config class per script: what it reads, what it makes, and how much of it."""

import re
from dataclasses import dataclass, field
from typing import Literal

from lactchain.settings import (
    ActorConfig,
    CollectConfig,
    CriticConfig,
    EnvironmentConfig,
    ILQLConfig,
    PreferenceConfig,
    RegressionConfig,
    RunConfig,
    SimPOConfig,
    TinyModelConfig,
    TrainingConfig,
    ValueConfig,
    check,
)

DATASET_ID = re.compile(r"([-_\w]+/)*[-_\w]+-v\d+")
"""What Minari calls a data set: names between slashes, and a version."""


@dataclass(frozen=True)
class BehaviorConfig:
    """Scripted behaviour to clone: a mixture of shortest paths and random chains."""

    num_chains: int = 20_000
    """Chains to clone, from start states drawn uniformly."""
    competent_fraction: float = 0.3
    """Share of chains along a shortest path, cut to the longest legal chain."""
    max_random_length: int = 4
    """Longest random chain, in actions; lengths are uniform."""

    def __post_init__(self) -> None:
        check(self.num_chains >= 1, "num_chains", "at least 1", self.num_chains)
        fraction = self.competent_fraction
        check(0 <= fraction <= 1, "competent_fraction", "a share in [0, 1]", fraction)
        check(
            self.max_random_length >= 1, "max_random_length", "at least 1", self.max_random_length
        )


@dataclass(frozen=True)
class WarmStartConfig:
    """How a base model that knows nothing comes to know the form of an answer."""

    behavior: BehaviorConfig = BehaviorConfig()
    training: TrainingConfig = TrainingConfig()


@dataclass(frozen=True)
class EvaluationConfig:
    """Greedy episodes from every start state, and sampled answers."""

    num_envs: int = 256
    """Episodes played side by side in each process."""
    num_episodes_per_start: int = 1
    """Episodes from every start state; more than one where world or actor throw dice."""
    num_samples: int = 10_000
    """Answers sampled freely at temperature 1, to measure how many are no chains; 0: none."""

    def __post_init__(self) -> None:
        check(self.num_envs >= 1, "num_envs", "at least 1", self.num_envs)
        repeats = self.num_episodes_per_start
        check(repeats >= 1, "num_episodes_per_start", "at least 1", repeats)
        check(self.num_samples >= 0, "num_samples", "at least 0", self.num_samples)


@dataclass(frozen=True)
class PrepareWeightsConfig:
    """Which models are built, and which are downloaded."""

    folder: str = "weights"
    """Where the models go: tiny-base, tiny-encoder, tiny-actor, and organisation/name of downloaded
    ones."""
    tiny: TinyModelConfig | None = None
    """Shape of the tiny base model and encoder to build; null: none."""
    environment: EnvironmentConfig = EnvironmentConfig()
    """The world whose words the tokenizer of the tiny models learns, and in which the tiny actor is
    warmed up. Other worlds it can read too, in more tokens."""
    warm_start: WarmStartConfig | None = None
    """The cloning that makes the tiny base model the tiny actor; null: there is no tiny actor."""
    seed: int = 0
    """Seed of the tiny models' weights and of the cloning."""
    download: list[str] = field(default_factory=list)
    """Hub ids of models to download; a download that was cut continues."""
    dry_run: bool = False
    """Make nothing: print the memory that training the 7B models takes."""

    def __post_init__(self) -> None:
        check(bool(self.folder), "folder", "a folder", self.folder)
        check(
            self.tiny is not None or bool(self.download),
            "download",
            "hub ids, or the shape of tiny models in `tiny`",
            self.download,
        )
        check(
            self.tiny is not None or self.warm_start is None,
            "warm_start",
            "null without `tiny`",
            self.warm_start,
        )


@dataclass(frozen=True)
class TrainBCConfig:
    """Behaviour cloning."""

    run: RunConfig = RunConfig(run_dir="runs/train_bc")
    environment: EnvironmentConfig = EnvironmentConfig()
    actor: ActorConfig = ActorConfig()
    behavior: BehaviorConfig = BehaviorConfig()
    training: TrainingConfig = TrainingConfig()
    pairs: str | None = None
    """Folder or file of preference pairs whose chosen answers are cloned instead of scripted
    behaviour; null: scripted behaviour."""
    trajectories: str | None = None
    """Folder or file of episodes whose answers are cloned instead; null: scripted behaviour."""
    only_successes: bool = False
    """Of the episodes, those that reached their goal (%BC in LMRL-Gym's maze)."""
    best_fraction: float = 1.0
    """Of these, the share with the best returns, in (0, 1] (%BC; 0.3 in LMRL-Gym's Wordle)."""
    only_final_answers: bool = False
    """Of each, its last answer alone: of a success the one that reached the goal, however poor
    those before it were."""
    dry_run: bool = False
    """Make nothing: print the memory that this takes, beside what the device has."""

    def __post_init__(self) -> None:
        check(
            self.pairs is None or self.trajectories is None,
            "trajectories",
            "null beside `pairs`",
            self.trajectories,
        )
        fraction = self.best_fraction
        check(0 < fraction <= 1, "best_fraction", "a share in (0, 1]", fraction)


@dataclass(frozen=True)
class RecordingConfig:
    """Whose behaviour is recorded as offline data, and where in the world."""

    policies: dict[str, float] = field(default_factory=lambda: {"random": 1.0})
    """Scripted policies by name, each with its share of the decisions; the shares add up to 1.
    optimal (shortest paths), random (any chain), legal (moves that no wall stops), consistent (a
    word that fits the feedback), informed (the one that tells most)."""
    policy_template: str | None = None
    """What the policies read of a state where the environment shows them less, without history;
    the same decisions are recorded with what the environment shows. null: they read that."""
    regions: list[dict[str, list[int]]] = field(default_factory=list)
    """Parts of the world, each the least and greatest value of some fields of a state: an episode
    starts in one of them, and is cut when it leaves it. None: everywhere."""

    def __post_init__(self) -> None:
        shares = self.policies
        positive = bool(shares) and all(share > 0 for share in shares.values())
        total = sum(shares.values())
        check(positive and abs(total - 1) < 1e-6, "policies", "shares that add up to 1", shares)
        for region in self.regions:
            ranges = all(len(r) == 2 and r[0] <= r[1] for r in region.values())
            check(bool(region) and ranges, "regions", "fields with [least, greatest]", region)


@dataclass(frozen=True)
class MakeOfflineDataConfig:
    """Episodes to learn from without interaction."""

    run: RunConfig = RunConfig(run_dir="runs/make_offline_data")
    environment: EnvironmentConfig = EnvironmentConfig()
    behavior: RecordingConfig = RecordingConfig()
    collect: CollectConfig = CollectConfig()
    source: str | None = None
    """Folder of a Minari data set of text, or of a Hugging Face data set of episodes, to take
    instead of playing; null: scripted policies play."""
    export: list[Literal["minari", "datasets"]] = field(default_factory=list)
    """Formats to write beside the trajectory files: minari (arrow), datasets (Hugging Face, with a
    card)."""
    dataset_id: str = "lactchain/offline-v0"
    """Name of the exported data sets, with a version as Minari wants it."""

    def __post_init__(self) -> None:
        named = "minari" not in self.export or DATASET_ID.fullmatch(self.dataset_id)
        check(bool(named), "dataset_id", "a name such as maze/data-v0", self.dataset_id)


@dataclass(frozen=True)
class CollectRolloutsConfig:
    """Episodes of an actor."""

    run: RunConfig = RunConfig(run_dir="runs/collect_rollouts")
    environment: EnvironmentConfig = EnvironmentConfig()
    actor: ActorConfig = ActorConfig()
    collect: CollectConfig = CollectConfig()
    dry_run: bool = False
    """Make nothing: print the memory that this takes, beside what the device has."""


@dataclass(frozen=True)
class TrainCriticConfig:
    """Stage 1 of the founding recipe: the actor is frozen, the critic regresses on returns."""

    run: RunConfig = RunConfig(run_dir="runs/train_critic")
    environment: EnvironmentConfig = EnvironmentConfig()
    actor: ActorConfig = ActorConfig(decoding="constrained")
    critic: CriticConfig = CriticConfig()
    trajectories: str | None = None
    """Folder or file of episodes; null: the actor plays its own."""
    collect: CollectConfig = CollectConfig()
    regression: RegressionConfig = RegressionConfig()
    training: TrainingConfig = TrainingConfig()
    compare_with_exact: bool = True
    """Measure the critic against the true values of the actor, where its chains are few enough to
    be enumerated: it reads every legal answer to every state."""
    dry_run: bool = False
    """Make nothing: print the memory that this takes, beside what the device has."""


@dataclass(frozen=True)
class MakePreferencesConfig:
    """Preference pairs from an actor's answers, ranked by a critic."""

    run: RunConfig = RunConfig(run_dir="runs/make_preferences")
    environment: EnvironmentConfig = EnvironmentConfig()
    actor: ActorConfig = ActorConfig()
    critic: str | None = None
    """Folder of a trained critic; null: answers are ranked by return."""
    preferences: PreferenceConfig = PreferenceConfig()
    dry_run: bool = False
    """Make nothing: print the memory that this takes, beside what the device has."""


@dataclass(frozen=True)
class TrainSimPOConfig:
    """Stage 2 of the founding recipe: the critic is frozen, the actor learns from pairs."""

    run: RunConfig = RunConfig(run_dir="runs/train_simpo")
    environment: EnvironmentConfig = EnvironmentConfig()
    actor: ActorConfig = ActorConfig()
    critic: str | None = None
    """Folder of a trained critic that ranks the pairs; null: they are ranked by return."""
    pairs: str | None = None
    """Folder or file of preference pairs; null: the actor makes its own."""
    preferences: PreferenceConfig = PreferenceConfig()
    simpo: SimPOConfig = SimPOConfig()
    training: TrainingConfig = TrainingConfig()
    dry_run: bool = False
    """Make nothing: print the memory that this takes, beside what the device has."""


@dataclass(frozen=True)
class TrainMCConfig:
    """Monte-Carlo values of the tokens in recorded episodes."""

    run: RunConfig = RunConfig(run_dir="runs/train_mc")
    environment: EnvironmentConfig = EnvironmentConfig()
    actor: ActorConfig = ActorConfig()
    """Where the value model begins: the cloned actor."""
    trajectories: str = "runs/make_offline_data/trajectories"
    """Folder or file of episodes."""
    mc: ValueConfig = ValueConfig()
    training: TrainingConfig = TrainingConfig()
    dry_run: bool = False
    """Make nothing: print the memory that this takes, beside what the device has."""


@dataclass(frozen=True)
class TrainILQLConfig:
    """Implicit language Q-learning on recorded episodes."""

    run: RunConfig = RunConfig(run_dir="runs/train_ilql")
    environment: EnvironmentConfig = EnvironmentConfig()
    actor: ActorConfig = ActorConfig()
    """Where the value model begins: the cloned actor."""
    trajectories: str = "runs/make_offline_data/trajectories"
    """Folder or file of episodes."""
    ilql: ILQLConfig = ILQLConfig()
    training: TrainingConfig = TrainingConfig()
    dry_run: bool = False
    """Make nothing: print the memory that this takes, beside what the device has."""


@dataclass(frozen=True)
class EvaluateConfig:
    """Greedy episodes from every start state."""

    run: RunConfig = RunConfig(run_dir="runs/evaluate")
    environment: EnvironmentConfig = EnvironmentConfig()
    actor: ActorConfig = ActorConfig(temperature=0.0)
    evaluation: EvaluationConfig = EvaluationConfig()
    dry_run: bool = False
    """Make nothing: print the memory that this takes, beside what the device has."""


@dataclass(frozen=True)
class PlayConfig:
    """A game in the terminal."""

    environment: EnvironmentConfig = EnvironmentConfig()
    actor: ActorConfig | None = None
    """Who plays; null: you."""
    seed: int = 0
    """Seed of the start state."""
    dry_run: bool = False
    """Make nothing: print the memory that this takes, beside what the device has."""


@dataclass(frozen=True)
class ExportConfig:
    """An actor as one model for other engines."""

    run: RunConfig = RunConfig(run_dir="runs/export")
    actor: ActorConfig = ActorConfig()
    """Whose weights and adapter are merged; how it answers does not matter here."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """The type to round to. Adapters of short trainings lose much in 16 bits; the share that is
    kept is printed."""


@dataclass(frozen=True)
class CriticStageConfig:
    """How each round trains its critic."""

    config: CriticConfig = CriticConfig()
    collect: CollectConfig = CollectConfig()
    regression: RegressionConfig = RegressionConfig()
    training: TrainingConfig = TrainingConfig()
    compare_with_exact: bool = True
    """Measure the critic of the first round as train_critic does."""


@dataclass(frozen=True)
class ActorStageConfig:
    """How each round improves the actor."""

    preferences: PreferenceConfig = PreferenceConfig()
    simpo: SimPOConfig = SimPOConfig()
    training: TrainingConfig = TrainingConfig()


@dataclass(frozen=True)
class RunPipelineConfig:
    """The founding recipe: warm start, then rounds of critic and SimPO, until the target is met."""

    run: RunConfig = RunConfig(run_dir="runs/run_pipeline")
    environment: EnvironmentConfig = EnvironmentConfig()
    tiny: TinyModelConfig | None = None
    """Shape of tiny models that the run builds for itself; null: `actor.model` and
    `critic.config.model` are used."""
    actor: ActorConfig = ActorConfig()
    """Who learns; episodes for the critic are always played under constrained decoding."""
    warm_start: WarmStartConfig | None = None
    """Cloning before the first round; null: none, the model is taken as it is."""
    critic: CriticStageConfig = CriticStageConfig()
    simpo: ActorStageConfig = ActorStageConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    num_rounds: int = 4
    """Rounds at most."""
    learning_rate_decay: float = 1.0
    """Factor on SimPO's learning rate from round to round, in (0, 1]: later rounds have pairs of
    fewer states, and should disturb the others less."""
    nll_weight_growth: float = 1.0
    """Factor on SimPO's NLL weight from round to round, at least 1: rejecting answers spreads
    probability over all other tokens, and later rounds have ever less to gain by it."""
    target: dict[str, float] = field(default_factory=dict)
    """Figures that end the rounds early when all are met: least values of `success_rate` and
    `success_within_2_chains`, greatest of `actions_over_shortest` and `invalid_rate`."""
    dry_run: bool = False
    """Make nothing: print the memory that this takes, beside what the device has."""

    def __post_init__(self) -> None:
        check(self.num_rounds >= 1, "num_rounds", "at least 1", self.num_rounds)
        growth, decay = self.nll_weight_growth, self.learning_rate_decay
        check(growth >= 1, "nll_weight_growth", "at least 1", growth)
        check(0 < decay <= 1, "learning_rate_decay", "a factor in (0, 1]", decay)
