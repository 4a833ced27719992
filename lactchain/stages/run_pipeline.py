"""The whole founding recipe: warm start, then rounds of critic and SimPO, until the target is met.

Reads the base models, or builds tiny ones; writes RUN/warm_start/ and RUN/round_N/*, run folders as
their own scripts make them, RUN/actor and RUN/critic of the round that is the result,
RUN/summary.json and RUN/report.html. Killed, it goes on where it was. Settings that are null follow
from the world, by the rules of `lactchain.stages.sizing`; RUN/sizes.json holds them.

Departures from the founding text: (1) the recipe is repeated for some rounds, since one round of a
tiny actor does not finish the grid; (2) a warm start stands in for a base model's knowledge.
"""

import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from lactchain import distributed
from lactchain.bounds import AtLeast1, Bound, Bounded, PositiveShare
from lactchain.data import alarms
from lactchain.data.evaluations import PARTS, practised
from lactchain.errors import CollapseError, NoPairsError
from lactchain.files import atomic_write, read_json, write_json
from lactchain.inspection.report import write_report
from lactchain.run import Run
from lactchain.settings import (
    ActorConfig,
    CollectConfig,
    CriticConfig,
    EnvironmentConfig,
    GuidedActorConfig,
    PlayerConfig,
    PreferenceConfig,
    RunConfig,
    SamplerConfig,
    SimPOConfig,
    TinyModelConfig,
    TrainingConfig,
    check,
    recast,
)
from lactchain.stages import evaluate, train_bc, train_critic, train_simpo
from lactchain.stages.evaluate import EvaluateConfig, EvaluationConfig
from lactchain.stages.running import Phases, run_stage
from lactchain.stages.sizing import (
    RULES,
    fill,
    is_null,
    measure_world,
    require_numbers,
    with_values,
)
from lactchain.stages.train_bc import TrainBCConfig, WarmStartConfig
from lactchain.stages.train_critic import TrainCriticConfig
from lactchain.stages.train_simpo import TrainSimPOConfig

AT_MOST = {"actions_over_shortest", "invalid_rate", "sampled_invalid_rate"}
"""Figures that a target bounds from above; all others are bounded from below."""

FIGURES_OF_ROUNDS = (
    "success_rate",
    "success_within_2_chains",
    "mean_chain_length",
    "actions_over_shortest",
    "sampled_invalid_rate",
    "retrieval_accuracy",
    "alarms",
)
FIGURES_OF_CHANCE = (
    "expected_success",
    "optimum_success",
    "expected_value",
    "optimum_value",
    "of_optimum",
)
"""Of worlds with chance alone; see `expected_figures`."""

SEEDS_PER_ROUND = 1000
PATIENCE = 4
"""Rounds that are no better than the best before, by success and then by return, after which a run
ends."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CriticStageConfig:
    """How each round trains its critic."""

    config: CriticConfig = CriticConfig()
    collect: CollectConfig = CollectConfig()
    training: TrainingConfig = TrainingConfig()
    compare_with_exact: bool = True
    """Measure the critic of the first round as train_critic does."""
    from_clone: bool = False
    """A tiny critic begins with the trunk of the cloned actor, that reads already, and not with
    that of the untrained one."""


@dataclass(frozen=True)
class ActorStageConfig:
    """How each round improves the actor."""

    preferences: PreferenceConfig = PreferenceConfig()
    simpo: SimPOConfig = SimPOConfig()
    training: TrainingConfig = TrainingConfig()


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
    num_rounds: AtLeast1 = 4
    """Rounds at most."""
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
        both = self.tiny is not None and self.warm_start is not None
        clones = self.critic.from_clone
        check(both or not clones, "critic.from_clone", "false without tiny and warm_start", clones)


def main(config: RunPipelineConfig) -> dict[str, Any]:
    """Runs the rounds; returns the figures before and after."""
    title = f"{config.run.run_dir}: see report.html there for pictures"
    return run_stage(title, config, recipe, memory, report=True, fills_nulls=True)


def recipe(config: RunPipelineConfig, run: Run) -> dict[str, Any]:
    """The algorithm, from the warm start to the round in which the target is met."""
    config = sized(config, run)
    rounds = Rounds(config, run)
    if config.warm_start is not None:
        rounds.warm_start()
    try:
        rounds.evaluate(0)
        for number in range(1, config.num_rounds + 1):
            rounds.train_critic(number)
            if not rounds.train_actor(number):  # makes pairs, ranked by the critic; SimPO on them
                break
            rounds.evaluate(number)
            if rounds.target_is_met() or rounds.stand_still():
                break
    except CollapseError:
        rounds.gather_results(alarms.best_round(rounds.evaluations))
        if distributed.is_main():
            write_report(run.directory)
        raise
    rounds.gather_results(rounds.result())
    return rounds.summary()


def sized(config: RunPipelineConfig, run: Run | None = None) -> RunPipelineConfig:
    """The configuration with numbers that follow from the world in the place of nulls.

    A run keeps them, so that it goes on with the same ones.

    Raises:
        ConfigError: a null is left that no rule stands for.
    """
    if not any(is_null(config, rule.key) for rule in RULES):
        require_numbers(config)
        return config
    path = None if run is None else run.path("sizes.json")
    if path is not None and path.is_file():
        return with_values(config, read_json(path)["settings"])
    world = measure_world(config.environment, config.run.seed)
    config, choices = fill(config, world, distributed.world_size())
    if run is not None:
        log.info("%s: %s", config.environment.id, world)
        for choice in choices:
            log.info("%s", choice)
        distributed.barrier()  # no process looks for a file that another one is about to write
        if distributed.is_main():
            settings = {choice.key: choice.value for choice in choices}
            write_json(path, {"world": asdict(world), "settings": settings})
        distributed.barrier()
    return config


class Rounds:
    """The stages of a pipeline, each on what the ones before it left.

    Attributes:
        actor: the actor as it stands: a model, or a model and an adapter.
        critic: the folder of the critic as it stands.
        evaluations: figures before the first round, and after each with its alarms.
        models: the actor and the critic that each of them is of.
    """

    def __init__(self, config: RunPipelineConfig, run: Run) -> None:
        from lactchain.models.critic import check_critic

        self.config, self.run = config, run
        self.actor = config.actor
        self.critic = config.critic.config.checkpoint
        self.encoder = config.critic.config.model
        self.evaluations: list[dict[str, Any]] = []
        self.models: list[tuple[ActorConfig, str | None]] = []
        self.critic_summaries: list[dict[str, Any]] = []
        self.actor_summaries: list[dict[str, Any]] = []
        self._began = time.perf_counter(), time.process_time()
        if config.tiny is not None:
            self._build_tiny_models()
        check_critic(replace(config.critic.config, model=self.encoder))

    def warm_start(self) -> None:
        """Clones scripted behaviour, with all weights: an adapter comes with the first round."""
        stage = replace(_cloning(self.config, self.actor), run=self._stage("warm_start", 0))
        self._take_actor(stage, train_bc.main(stage))
        if self.config.critic.from_clone:
            self._build_encoder("cloned_encoder")

    def evaluate(self, number: int) -> None:
        """Greedy, free episodes from every start state, after the round of that number.

        The metrics of the pipeline are their figures, over rounds, and the alarms.

        Raises:
            CollapseError: the run unlearns what it could.
        """
        run = self._stage(f"round_{number}/evaluation", number)
        greedy = recast(self.actor, GuidedActorConfig, decoding="free", temperature=0.0)
        figures = evaluate.main(replace(_evaluation(self.config, greedy), run=run))
        metrics = {f"eval/{name}": value for name, value in figures.items()}
        fired = {}
        if number:
            alarms.warn(figures)
            fired = alarms.fired(self.actor_summaries[-1] | figures)
            metrics |= {f"alarm/{name}": int(is_on) for name, is_on in fired.items()}
        self.run.log_once(metrics, step=len(self.evaluations))
        names = [name for name, is_on in fired.items() if is_on]
        self.evaluations.append(figures | {"alarms": names})
        self.models.append((self.actor, self.critic))
        alarms.check_collapse(self.evaluations)

    def train_critic(self, number: int) -> None:
        """The critic of a round; it goes on from that of the round before."""
        player = recast(self.actor, PlayerConfig, decoding="constrained")
        stage = _criticism(self.config, player)
        stage = replace(
            stage,
            run=self._stage(f"round_{number}/critic", number),
            critic=replace(stage.critic, model=self.encoder, checkpoint=self.critic),
            compare_with_exact=stage.compare_with_exact and number == 1,
        )
        self.critic_summaries.append(train_critic.main(stage))
        self.critic = str(Path(stage.run.run_dir) / "critic")

    def train_actor(self, number: int) -> bool:
        """Pairs of the actor's completions, and SimPO on them.

        Returns:
            Whether there was something to learn: not where it says one thing to each state,
            however hot it is asked.

        Raises:
            CollapseError: there is nothing to prefer among different completions.
        """
        settings = self.config.simpo
        training, simpo = settings.training, settings.simpo
        decay = self.config.learning_rate_decay ** (number - 1)
        growth = self.config.nll_weight_growth ** (number - 1)
        stage = TrainSimPOConfig(
            run=self._stage(f"round_{number}/simpo", number),
            environment=self.config.environment,
            actor=self.actor,
            critic=self.critic if settings.preferences.rank_by == "advantage" else None,
            trajectories=self._episodes(number),
            preferences=settings.preferences,
            simpo=replace(simpo, nll_weight=simpo.nll_weight * growth),
            training=replace(training, learning_rate=training.learning_rate * decay),
        )
        try:
            self._take_actor(stage, train_simpo.main(stage))
            return True
        except NoPairsError as error:
            if error.agree and self.actor.temperature:
                log.info("the actor is sure of every state: the run ends")
                return False
            raise alarms.no_pairs(error, self.evaluations) from error

    def _episodes(self, number: int) -> str | None:
        """The critic's episodes of a round, whose texts pairs are asked with a history.

        Without one, what a state shows does not depend on what came before.
        """
        if self.config.environment.history == 1:
            return None
        return str(self.run.directory / f"round_{number}/critic/trajectories")

    def target_is_met(self) -> bool:
        """Whether the last evaluation meets every figure of the target, if there is one."""
        last, target = self.evaluations[-1], self.config.target
        return bool(target) and all(
            _meets(practised(last, name), bound, name in AT_MOST) for name, bound in target.items()
        )

    def stand_still(self) -> bool:
        """Whether none of the last rounds is better than those before."""
        merits = list(map(_merit, self.evaluations))
        earlier, late = merits[:-PATIENCE], merits[-PATIENCE:]
        if len(earlier) < 2 or max(late) > max(earlier):
            return False
        log.info("no better round among the last %d: the run ends", PATIENCE)
        return True

    def result(self) -> int:
        """The round whose actor is the result."""
        last = len(self.evaluations) - 1
        if self.target_is_met():
            return last
        return max(range(1, last + 1), key=lambda n: _merit(self.evaluations[n]), default=0)

    def gather_results(self, number: int) -> None:
        """Puts what people look for first at the top of the run's folder, from a round."""
        sources = {
            "episodes_before.json": "round_0/evaluation/episodes.json",
            "episodes.json": f"round_{number}/evaluation/episodes.json",
            "values.json": "round_1/critic/values.json",
        }
        if not distributed.is_main():
            return
        for name, source in sources.items():
            if (self.run.directory / source).is_file():
                content = (self.run.directory / source).read_bytes()
                atomic_write(self.run.path(name), content)
        trained = f"round_{number}/simpo" if number else "warm_start"
        for name, source in (("actor", trained), ("critic", f"round_{number}/critic")):
            link = self.run.path(name)
            link.unlink(missing_ok=True)
            if (self.run.directory / source / name).is_dir():  # else it was given, or there is none
                os.symlink(f"{source}/{name}", link)

    def summary(self) -> dict[str, Any]:
        """What `summary.json` holds: the figures before and after, and those of every round."""
        before, after = self.evaluations[0], self.evaluations[self.result()]
        first = self.critic_summaries[0]
        actor, critic = self.models[self.result()]
        stages = self.actor_summaries + self.critic_summaries
        wall_start, cpu_start = self._began
        return {
            "seed": self.config.run.seed,
            "success_rate_before": before["success_rate"],
            "success_rate_after": after["success_rate"],
            **_present(after, FIGURES_OF_CHANCE),
            "success_within_2_chains": after["success_within_2_chains"],
            "mean_chain_length": after["mean_chain_length"],
            "actions_over_shortest": after["actions_over_shortest"],
            **_figures_of_parts(after),
            "invalid_rate_after": after.get("sampled_invalid_rate", after["invalid_rate"]),
            "critic_r2": first.get("critic_r2"),
            "critic_rmse": first.get("critic_rmse"),
            "num_pairs": sum(stage.get("num_pairs", 0) for stage in stages),
            "num_cloned_chains": sum(stage.get("num_examples", 0) for stage in stages),
            # Actions that were played to learn from; evaluations do not count, for any agent.
            "num_env_steps": sum(stage.get("num_env_steps", 0) for stage in stages),
            "rollouts_per_second": first.get("time/chains_per_second"),
            # Since the run began or went on; of this process and its threads.
            "wall_seconds": time.perf_counter() - wall_start,
            "time/cpu_seconds": time.process_time() - cpu_start,
            "num_rounds": len(self.evaluations) - 1,
            "target_met": self.target_is_met(),
            "round": self.result(),
            "actor": {"model": actor.model, "adapter": actor.adapter},
            "critic": critic,
            "alarms": alarms.first_rounds([figures["alarms"] for figures in self.evaluations]),
            "rounds": [
                {"round": number}
                | {name: figures.get(name) for name in FIGURES_OF_ROUNDS}
                | _figures_of_parts(figures)
                | _present(figures, FIGURES_OF_CHANCE)
                for number, figures in enumerate(self.evaluations)
            ],
        }

    def _take_actor(self, stage: TrainBCConfig | TrainSimPOConfig, summary: dict) -> None:
        """Goes on with the actor that a stage has trained."""
        from lactchain.models.adapters import ADAPTER_RECORD

        folder = Path(stage.run.run_dir) / "actor"
        if (folder / ADAPTER_RECORD).is_file():
            self.actor = replace(self.actor, adapter=str(folder))
        else:
            self.actor = replace(self.actor, model=str(folder), adapter=None)
        self.actor_summaries.append(summary)

    def _stage(self, name: str, number: int) -> RunConfig:
        """The run folder of a stage, whose seed differs from round to round."""
        run = self.config.run
        seed = (run.seed * SEEDS_PER_ROUND + number) % 2**32
        return replace(run, run_dir=str(self.run.directory / name), seed=seed, resume="auto")

    def _build_tiny_models(self) -> None:
        from lactchain.data.base_models import prepare_tiny_actor

        actor = str(self.run.directory / "base" / "actor")
        if distributed.is_main():
            seed = self.config.run.seed
            prepare_tiny_actor(actor, self.config.tiny, self.config.environment, seed)
        distributed.barrier()
        self.actor = replace(self.actor, model=actor)
        self._build_encoder("encoder")

    def _build_encoder(self, name: str) -> None:
        """The critic's base, with the trunk of the actor as it stands."""
        from lactchain.data.base_models import prepare_tiny_encoder

        encoder = str(self.run.directory / "base" / name)
        if distributed.is_main():
            prepare_tiny_encoder(encoder, self.actor.model)
        distributed.barrier()
        self.encoder = encoder


def _merit(figures: Mapping[str, Any]) -> tuple[float, float]:
    """What rounds are compared by: success in per cent, and among equals the return.

    With chance, the share of the optimum, which knows no luck, stands for success. What could not
    be computed is the worst; a summary that was read again has None in the place of NaN.
    """
    success = figures.get("of_optimum", practised(figures, "success_rate"))
    return round(_or_worst(success), 2), _or_worst(practised(figures, "episode_return"))


def _or_worst(figure: float | None) -> float:
    return -math.inf if figure is None or math.isnan(figure) else figure


def _present(figures: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: figures[name] for name in names if name in figures}


def _meets(figure: float | None, bound: float, at_most: bool) -> bool:
    """Whether a figure is as good as asked; one that could not be computed is not."""
    return figure is not None and (figure <= bound if at_most else figure >= bound)


def _figures_of_parts(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures of practised start states and of those held back; empty where none is."""
    names = [f"{part}/{name}" for part in PARTS for name in FIGURES_OF_ROUNDS]
    return {name: figures[name] for name in names if name in figures}


def _cloning(config: RunPipelineConfig, actor: ActorConfig) -> TrainBCConfig:
    return TrainBCConfig(
        environment=config.environment,
        actor=replace(actor, lora=None),
        behavior=config.warm_start.behavior,
        training=recast(config.warm_start.training, TrainingConfig),
    )


def _evaluation(config: RunPipelineConfig, actor: SamplerConfig) -> EvaluateConfig:
    return EvaluateConfig(environment=config.environment, actor=actor, evaluation=config.evaluation)


def _criticism(config: RunPipelineConfig, actor: PlayerConfig) -> TrainCriticConfig:
    settings = config.critic
    return TrainCriticConfig(
        environment=config.environment,
        actor=actor,
        critic=settings.config,
        collect=settings.collect,
        training=settings.training,
        compare_with_exact=settings.compare_with_exact,
    )


def memory(config: RunPipelineConfig) -> Phases:
    """The phases of a round, with the adapter that is there from the second one on.

    Numbers that follow from the world are those of a new run with as many processes as now.
    """
    from lactchain.budget import TO_BE_TRAINED, ranking

    config = sized(config)
    actor, critic = config.actor, config.critic.config
    all_trained = actor.lora is None and actor.adapter is None
    if actor.dtype == "auto" and (all_trained or config.warm_start is not None):
        actor = replace(actor, dtype="float32")  # as such a training stores it
    trained = actor
    if actor.lora is not None:
        trained = replace(actor, adapter=actor.adapter or TO_BE_TRAINED)
    if config.warm_start is not None:
        yield from train_bc.memory(_cloning(config, config.actor))
    yield from evaluate.memory(_evaluation(config, trained))
    yield from train_critic.memory(_criticism(config, replace(trained, decoding="constrained")))
    preferences, judge = config.simpo.preferences, None
    if preferences.rank_by == "advantage":
        judge = replace(critic, checkpoint=critic.checkpoint or TO_BE_TRAINED)
    setting = "simpo.preferences.states_per_shard"
    yield from ranking(config.environment, actor, judge, preferences, setting)
    training = TrainSimPOConfig(
        environment=config.environment, actor=actor, training=config.simpo.training
    )
    yield train_simpo.simpo_phase(training)
