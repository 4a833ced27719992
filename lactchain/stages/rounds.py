"""The rounds of a pipeline: each stage's configuration, from what those before it have left."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lactchain import plugins
from lactchain.config.settings import (
    ActorConfig,
    GuidedActorConfig,
    PlayerConfig,
    RunConfig,
    SamplerConfig,
    recast,
)
from lactchain.data import alarms
from lactchain.data.evaluations import check_success_known
from lactchain.data.rollouts import Rollouts
from lactchain.data.samples import invalid_rate, sample_completions
from lactchain.environments.language import make_language_env
from lactchain.errors import ConfigError, NoPairsError
from lactchain.functional.random_streams import derive_seed
from lactchain.models.weights import ADAPTER_RECORD
from lactchain.runs import distributed
from lactchain.runs.run import Run
from lactchain.stages import evaluate, train_bc, train_critic, train_simpo
from lactchain.stages.evaluate import EvaluateConfig
from lactchain.stages.pipeline_config import ActorStageConfig, CriticStageConfig, RunPipelineConfig
from lactchain.stages.round_results import RoundResults, is_worse, play_selection
from lactchain.stages.stage_run import LivePage, note_servers
from lactchain.stages.train_bc import TrainBCConfig, WarmStartConfig
from lactchain.stages.train_critic import TrainCriticConfig
from lactchain.stages.train_simpo import TrainSimPOConfig

ASKED = 32
"""So many completions tell whether an actor answers in chains, before anything is paid for."""

STEP_DECAY = 0.5
"""Factor on SimPO's learning rate and on target_kl after each round that was undone."""

SECTIONS = {"warm_start": WarmStartConfig, "critic": CriticStageConfig, "simpo": ActorStageConfig}
"""The settings of the pipeline that are a stage's own, by the pipeline's names."""

log = logging.getLogger(__name__)


class Rounds:
    """The stages of a pipeline, each on what the ones before it left.

    Attributes:
        actor: the actor as it stands: a model, or a model and an adapter.
        critic: the folder of the critic as it stands.
        results: what the rounds came to so far.
    """

    def __init__(self, config: RunPipelineConfig, run: Run) -> None:
        from lactchain.models.critic import check_critic

        self.config, self.run = config, run
        self.actor = config.actor
        self.critic = config.critic.config.checkpoint
        self.encoder = config.critic.config.model
        self.results = RoundResults(config, run)
        recorder = plugins.add_on("recorder")
        self.recorder = recorder and recorder(config, run)
        self.page = LivePage(run.directory)
        env = make_language_env(config.environment)
        env.start_states()  # that there are some
        if config.tiny is not None:
            self._build_tiny_models()
        self.results.bases = {"actor": self.actor.model, "critic": self.encoder}
        with full_keys("critic"):
            check_critic(replace(config.critic.config, model=self.encoder))
        check_success_known(env, config.target or (), "target")
        if config.selection is not None:
            check_success_known(env, ["success_rate"], "selection")
        self._asks_at_texts = env.view.outcomes is not None or env.view.model is None

    def warm_start(self) -> None:
        """Clones scripted behaviour: an adapter where one is to be trained, else all weights."""
        stage = replace(cloning(self.config, self.actor), run=self._stage("warm_start"))
        with full_keys("warm_start"):
            self._take_actor(stage, train_bc.main(stage))

    def require_chains(self) -> None:
        """Asks an actor that was not cloned for some completions, before anything is paid for.

        `ConfigError` where hardly any is a chain: free completions have nothing to compare then.
        """
        from lactchain.models.actor import load_player
        from lactchain.models.runtime import free_memory

        if self.actor.decoding != "free" or self.is_done(0):
            return
        rollouts, seed = Rollouts(self.config.environment), self.config.run.seed
        silent = None
        if distributed.is_main():
            actor = load_player(replace(self.actor, temperature=1.0), rollouts.env.grammar)
            samples = sample_completions(actor, rollouts, ASKED, derive_seed(seed, "asked"))
            silent = round(ASKED * invalid_rate(samples))
            free_memory()
        silent = distributed.of_main(silent)
        if silent > alarms.MOSTLY_SILENT * ASKED:
            raise ConfigError(
                f"warm_start: expected an actor that answers in chains, but {silent} of {ASKED}"
                f" free completions of {self.actor.model} are none; clone first (warm_start, as"
                " configs/run_pipeline/smollm2.yaml does), or set actor.decoding to constrained"
            )

    def evaluate(self, number: int) -> None:
        """Greedy, free episodes from every start state, after the round of that number.

        A round that is worse than the best one is undone.
        """
        if self.actor.served is not None and not self.is_done(number):
            self._sync(number)
        run = self._stage(f"round_{number}/evaluation")
        greedy = recast(self.actor, GuidedActorConfig, decoding="free", temperature=0.0)
        figures = evaluate.main(replace(evaluation(self.config, greedy), run=run))
        if self.recorder:
            self.recorder.record(number, self.actor, self.critic)
        worse = False
        if self.config.selection is not None:
            folder = self._stage(f"round_{number}/selection")
            figures |= play_selection(self.config, greedy, folder)
            worse = number > 0 and is_worse(self.run.directory, number, self.results.best)
        self.results.add(figures, self.actor, self.critic, undone=worse)
        if worse:
            best = self.results.best
            # The critic stays, as it has seen more.
            self.actor = replace(self.actor, **self.results.evaluations[best]["actor"])
            log.warning(
                "round %d is undone, since it is worse than round %d on the sample for selection:"
                " the run goes on from that one with steps %g times as long",
                *(number, best, STEP_DECAY),
            )
        self.results.gather(self.results.chosen())

    def _sync(self, number: int) -> None:
        """Gives the servers the adapter as it stands, and looks whether they compute as it does."""
        engines = plugins.required("engines", "actor.served")
        note_servers(self.config, self.run)
        figures = None
        if distributed.is_main():
            engines.sync(self.actor, self.run.directory.glob("round_*/simpo/actor"))
            figures = engines.drift_in(self.config.environment, self.actor, self.config.run.seed)
        if (figures := distributed.of_main(figures)) is not None:
            self.run.log_once(figures, step=number)
            version = self.actor.adapter or self.actor.model
            engines.check_drift(figures, self.actor.served.max_drift, version)

    def is_done(self, number: int) -> bool:
        """Whether a round was played, and evaluated, before this process began."""
        return (self.run.directory / f"round_{number}/evaluation/summary.json").exists()

    def train_critic(self, number: int) -> None:
        """The critic of a round; it goes on from that of the round before."""
        stage = criticism(self.config, recast(self.actor, PlayerConfig, decoding="constrained"))
        stage = replace(
            stage,
            run=self._stage(f"round_{number}/critic"),
            critic=replace(stage.critic, model=self.encoder, checkpoint=self.critic),
            compare_with_exact=stage.compare_with_exact and number == 1,
        )
        with full_keys("critic"):
            self.results.critic_summaries.append(train_critic.main(stage))
        self.critic = str(Path(stage.run.run_dir) / "critic")

    def train_actor(self, number: int) -> bool:
        """Pairs of the actor's completions, and SimPO on them; whether there was anything to learn.

        There is not where it says one thing to each state, however hot it is asked. `CollapseError`
        where there is nothing to prefer among different completions.
        """
        stage = self._improvement(number)
        try:
            with full_keys("simpo"):
                self._take_actor(stage, train_simpo.main(stage))
            return True
        except NoPairsError as error:
            if error.agree and self.actor.temperature:
                log.info("the actor is sure of every state: the run ends")
                return False
            raise alarms.no_pairs(error, self.results.evaluations) from error

    def _improvement(self, number: int) -> TrainSimPOConfig:
        settings = self.config.simpo
        training, loss = settings.training, settings.loss
        shorter = STEP_DECAY ** sum(figures["undone"] for figures in self.results.evaluations)
        decay = self.config.learning_rate_decay ** (number - 1) * shorter
        bound = None if loss.target_kl is None else loss.target_kl * shorter
        growth = self.config.nll_weight_growth ** (number - 1)
        return recast(
            settings,
            TrainSimPOConfig,
            run=self._stage(f"round_{number}/simpo"),
            environment=self.config.environment,
            actor=self.actor,
            critic=self.critic,
            trajectories=self._episodes(number),
            loss=replace(loss, nll_weight=loss.nll_weight * growth, target_kl=bound),
            training=replace(training, learning_rate=training.learning_rate * decay),
        )

    def _episodes(self, number: int) -> str | None:
        """The critic's episodes of a round, where pairs are asked at their texts.

        So they are where texts remember, or stand for what an observer can only guess: a state then
        tells less than the text of an episode that came there. And without a model nobody knows
        what states there are beside those that were met.
        """
        if self.config.environment.history == 1 and not self._asks_at_texts:
            return None
        return str(self.run.directory / f"round_{number}/critic/trajectories")

    def _take_actor(self, stage: TrainBCConfig | TrainSimPOConfig, summary: dict[str, Any]) -> None:
        """Goes on with the actor that a stage has trained."""
        folder = Path(stage.run.run_dir) / "actor"
        if (folder / ADAPTER_RECORD).is_file():
            self.actor = replace(self.actor, adapter=str(folder))
        else:
            self.actor = replace(self.actor, model=str(folder), adapter=None)
        self.results.actor_summaries.append(summary)

    def _stage(self, name: str) -> RunConfig:
        """The run folder of a stage that begins; its seed differs from stage to stage."""
        if distributed.is_main():
            self.page.begin(name)
        run = self.config.run
        seed = derive_seed(run.seed, name) % 2**32
        return replace(run, run_dir=str(self.run.directory / name), seed=seed)

    def _build_tiny_models(self) -> None:
        from lactchain.data.base_models import prepare_tiny_actor, prepare_tiny_encoder

        if distributed.is_main():
            config, words = self.config, [self.actor.strategy]
            shape, world, seed = config.tiny, config.environment, config.run.seed
            prepare_tiny_actor(self.actor.model, shape, world, seed, words)
            prepare_tiny_encoder(self.encoder, self.actor.model)
        distributed.barrier()


@contextmanager
def full_keys(stage: str) -> Iterator[None]:
    """Errors of a stage name a setting as the pipeline does."""
    try:
        yield
    except ConfigError as error:
        first = str(error).partition(":")[0].partition(".")[0]
        # What is `critic` in the stage of that name is `critic.config` in the pipeline.
        name = "config" if first == stage == "critic" else first
        if name not in vars(SECTIONS[stage]()):
            raise
        raise ConfigError(f"{stage}.{name}" + str(error).removeprefix(first)) from error


def cloning(config: RunPipelineConfig, actor: ActorConfig) -> TrainBCConfig:
    """The warm start of an actor, without a run folder of its own."""
    return recast(config.warm_start, TrainBCConfig, environment=config.environment, actor=actor)


def evaluation(config: RunPipelineConfig, actor: SamplerConfig) -> EvaluateConfig:
    """An evaluation of an actor, without a run folder of its own."""
    return EvaluateConfig(environment=config.environment, actor=actor, evaluation=config.evaluation)


def criticism(config: RunPipelineConfig, actor: PlayerConfig) -> TrainCriticConfig:
    """The training of a critic on an actor's episodes, without a run folder of its own."""
    section, world = config.critic, config.environment
    return recast(section, TrainCriticConfig, environment=world, actor=actor, critic=section.config)
