"""The settings of a pipeline: those of its stages, and how its rounds follow one another."""

from dataclasses import dataclass, field
from typing import Annotated

from lactchain.config.bounds import AtLeast1, Bound, Bounded, PositiveShare
from lactchain.config.settings import (
    ActorConfig,
    CollectConfig,
    CriticConfig,
    EnvironmentConfig,
    PreferenceConfig,
    RunConfig,
    SimPOConfig,
    TrainingConfig,
    check,
)
from lactchain.config.weights import TinyModelConfig
from lactchain.stages.evaluate import EvaluationConfig
from lactchain.stages.train_bc import WarmStartConfig
from lactchain.stages.train_simpo import check_bound


@dataclass(frozen=True)
class CriticStageConfig:
    """How each round trains its critic."""

    config: CriticConfig = CriticConfig()
    collect: CollectConfig = CollectConfig()
    training: TrainingConfig = TrainingConfig()
    compare_with_exact: bool = True
    """Measure the critic of the first round as train_critic does."""


@dataclass(frozen=True)
class ActorStageConfig:
    """How each round improves the actor."""

    preferences: PreferenceConfig = PreferenceConfig()
    loss: SimPOConfig = SimPOConfig()
    training: TrainingConfig = TrainingConfig()


@dataclass(frozen=True)
class SelectionConfig(Bounded):
    """How rounds are compared, and what follows where one is worse: it is undone."""

    num_starts: Annotated[int, Bound(at_least=2)] = 96
    """Start states that rounds are compared on, each played greedily and by sampling; others than
    those of `evaluation.num_starts`, while there are enough."""


@dataclass(frozen=True)
class RunPipelineConfig(Bounded):
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
    selection: SelectionConfig | None = None
    """How rounds are compared, so that one that is worse than the best before it is undone; null:
    none is undone."""
    num_rounds: AtLeast1 | None = 4
    """Rounds at most; null: follows from the world."""
    learning_rate_decay: PositiveShare = 1.0
    """Factor on SimPO's learning rate from round to round, in (0, 1]: later rounds have pairs of
    fewer states, and should disturb the others less."""
    nll_weight_growth: Annotated[float, Bound(at_least=1)] = 1.0
    """Factor on SimPO's NLL weight from round to round, at least 1: rejecting completions spreads
    probability over all other tokens, and later rounds have ever less to gain by it."""
    target: dict[str, float] | None = field(default_factory=dict)
    """Figures that end the rounds early when all are met: least values of `success_rate`,
    `success_within_2_chains` and, in worlds with chance, `of_optimum`; greatest of
    `actions_over_shortest`, `invalid_rate` (of the greedy episodes) and `sampled_invalid_rate` (of
    the sampled completions); where states are held back, of the practised ones. Null: follows from
    the world."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bound("simpo.loss.target_kl", self.simpo.loss, self.actor)
        if (served := self.actor.served) is None:
            return
        why = "null where servers generate, since they have their model before the run"
        check(self.tiny is None, "tiny", why, self.tiny)
        check(self.warm_start is None, "warm_start", f"{why}: clone by train_bc", self.warm_start)
        engines = "vllm or sglang, which load adapters"
        check(served.dialect != "text", "actor.served.dialect", engines, served.dialect)
        adapted = self.actor.lora is not None or self.actor.adapter is not None
        check(adapted, "actor.lora", "an adapter to train, all that servers load", None)
