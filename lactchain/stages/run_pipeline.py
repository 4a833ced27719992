"""The whole founding recipe: warm start, then rounds of critic and SimPO, until the target is met.

Reads the base models, or builds tiny ones; writes RUN/warm_start/ and RUN/round_N/*, run folders as
their own scripts make them, RUN/actor and RUN/critic of the round that is the result,
RUN/summary.json, RUN/report.html and, where the world draws itself, RUN/episode.gif. What each
round answers is in RUN/round_N/inspection. Killed, it goes on where it was. Settings that are null
follow from the world, by the rules of `lactchain.stages.sizing`; RUN/sizes.json holds them.

Departures from the founding text: (1) the recipe is repeated for some rounds, since one round of a
tiny actor does not finish the grid; (2) a warm start stands in for a base model's knowledge.
"""

import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from lactchain import plugins
from lactchain.config.bounds import AtLeast1, Bound, Bounded, PositiveShare
from lactchain.config.settings import (
    ActorConfig,
    CollectConfig,
    CriticConfig,
    EnvironmentConfig,
    PreferenceConfig,
    RunConfig,
    SimPOConfig,
    TinyModelConfig,
    TrainingConfig,
    check,
)
from lactchain.data import alarms
from lactchain.data.evaluations import practised
from lactchain.errors import CollapseError
from lactchain.runs import distributed
from lactchain.runs.pages import write_page
from lactchain.runs.process import is_dry_run
from lactchain.runs.progress import under_way
from lactchain.runs.run import Run
from lactchain.stages.closing import show_result
from lactchain.stages.evaluate import EvaluationConfig
from lactchain.stages.memory import Batch, print_memory
from lactchain.stages.rounds import Rounds
from lactchain.stages.running import stage
from lactchain.stages.selection import SelectionConfig
from lactchain.stages.sizing import (
    RULES,
    fill,
    is_null,
    measure_world,
    require_numbers,
    with_values,
)
from lactchain.stages.train_bc import WarmStartConfig
from lactchain.stages.train_simpo import check_bound
from lactchain.storage.files import follow, read_json, to_json
from lactchain.storage.manifests import verify_if_described, write_with_manifest

log = logging.getLogger(__name__)

BATCHES = (
    Batch("warm_start.training.batch_size", "actor.max_new_tokens"),
    Batch("evaluation.num_envs", "actor.max_new_tokens"),
    Batch("critic.collect.num_envs", "actor.max_new_tokens"),
    Batch("critic.training.batch_size", "critic.config.max_length"),
    Batch("simpo.preferences.states_per_shard", "actor.max_new_tokens"),
    Batch("simpo.training.batch_size", "actor.max_new_tokens", texts=2),
)
"""Of the stages, by the pipeline's own settings."""


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
    selection: SelectionConfig | None = None
    """How rounds are compared, so that one that is worse than the best before it is undone; null:
    none is undone."""
    keep_checkpoints: bool = False
    """Keep the checkpoints of finished stages, with the optimiser's moments; false: their result
    alone stays."""
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
        check_bound("simpo.simpo.target_kl", self.simpo.simpo, self.actor)
        if (served := self.actor.served) is None:
            return
        why = "null where servers generate, since they have their model before the run"
        check(self.tiny is None, "tiny", why, self.tiny)
        check(self.warm_start is None, "warm_start", f"{why}: clone by train_bc", self.warm_start)
        engines = "vllm or sglang, which load adapters"
        check(served.dialect != "text", "actor.served.dialect", engines, served.dialect)
        adapted = self.actor.lora is not None or self.actor.adapter is not None
        check(adapted, "actor.lora", "an adapter to train, all that servers load", None)


def main(config: RunPipelineConfig) -> dict[str, Any]:
    """Runs the rounds; returns the figures before and after."""
    if is_dry_run():
        return print_memory(sized(config), BATCHES if config.tiny is None else ())
    with stage("", config, report=True, fills_nulls=True, closing=show_result) as begun:
        if begun.is_open:
            begun.finish(recipe(config, begun.run))
    if distributed.is_main() and (films := plugins.add_on("films")):
        films.film_run(Path(config.run.run_dir), begun.summary["round"])
    return begun.summary


def recipe(config: RunPipelineConfig, run: Run) -> dict[str, Any]:
    """The algorithm, from the warm start to the round in which the target is met."""
    with under_way("getting ready"):
        config = sized(config, run)
        rounds = Rounds(config, run)
    results = rounds.results
    if config.warm_start is not None:
        rounds.warm_start()
    else:
        rounds.require_chains()
    try:
        rounds.evaluate(0)
        with under_way("round", config.num_rounds, most=True) as step:
            for number in range(1, config.num_rounds + 1):
                repeated = rounds.is_done(number)
                step.note = f"success {practised(results.evaluations[-1], 'success_rate'):.2f}"
                rounds.train_critic(number)
                if not rounds.train_actor(number):  # makes pairs, ranked by the critic; SimPO
                    break
                rounds.evaluate(number)
                if results.is_enough():
                    break
                results.check_collapse(rounds_left=config.num_rounds - number)
                (step.resumed if repeated else step.at)(number)
    except CollapseError:
        results.gather(alarms.best_round(results.evaluations))
        if distributed.is_main():
            write_page(run.directory)
        raise
    summary = results.summary()
    if follow(run.path("actor")).is_dir():  # else none was trained
        plugins.call("card", config, run, "actor", summary)
    return summary


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
        verify_if_described(path, "remove it and give the same command to measure the world again")
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
            text = to_json({"world": asdict(world), "settings": settings})
            write_with_manifest(path, text.encode(), {})
        distributed.barrier()
    return config
