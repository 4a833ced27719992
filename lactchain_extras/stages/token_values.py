"""What the stages train_mc and train_ilql share: from recorded episodes to values of tokens."""

from dataclasses import dataclass
from typing import Any, ClassVar

from lactchain import plugins
from lactchain.config.settings import ActorConfig, EnvironmentConfig, RunConfig, TrainingConfig
from lactchain.data.sources import open_trajectories
from lactchain.environments.language import make_language_env
from lactchain.runs.run import Run
from lactchain.stages.stage_run import BatchSettings
from lactchain_extras.token_values.settings import ValueConfig


@dataclass(frozen=True)
class TrainValuesConfig:
    """Values of tokens, from recorded episodes."""

    run: RunConfig = RunConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    actor: ActorConfig = ActorConfig()
    """Where the value model begins: the cloned actor."""
    trajectories: str = "runs/make_offline_data/trajectories"
    """Folder or file of episodes (see `lactchain_extras.exchange.data_sets`)."""
    training: TrainingConfig = TrainingConfig()

    method: ClassVar[str]
    """The field with the settings of the method, and its name among the trainers."""

    @property
    def settings(self) -> ValueConfig:
        """Those of the method."""
        return getattr(self, self.method)


def train_values(config: TrainValuesConfig, run: Run) -> dict[str, Any]:
    """A value model on the episodes of a configuration, in RUN/values; returns the last losses.

    RUN/token_values is what it makes of a few of them (`lactchain_extras.explorer.inspections`).

    Raises:
        DataError: the episodes are damaged or do not fit the actor; see `token_view`.
    """
    from lactchain.models.loading import context_of, load_own_tokenizer
    from lactchain.models.prompting import PromptTemplate
    from lactchain.trainers.base import save_result, train, training_arguments
    from lactchain_extras.token_values.model import ValueModel
    from lactchain_extras.token_values.recording import record_token_values
    from lactchain_extras.token_values.token_view import mean_return, token_view
    from lactchain_extras.token_values.trainers import TRAINERS, training_figures

    settings, trainer_class = config.settings, TRAINERS[config.method]
    env, tokenizer = make_language_env(config.environment), load_own_tokenizer(config.actor)
    template = PromptTemplate(tokenizer, config.actor.strategy, env.grammar)
    episodes = open_trajectories(config.trajectories, env)
    view = token_view(episodes, template, tokenizer, context_of(config.actor))
    view = view.first_tokens() if settings.tokens == "first" else view
    model = ValueModel.from_actor(
        config.actor,
        method=config.method,
        gamma=settings.gamma,
        num_q_heads=trainer_class.num_q_heads,
        head_size=settings.head_size,
        start=mean_return(view, settings.gamma),
    )
    about = run.path("checkpoints"), config.run.seed
    args = training_arguments(config.training, *about, report_to=config.run.report_to)
    trainer = trainer_class(model, args, view, settings, run=run)
    train(trainer)
    save_result(trainer, run.path("values"))
    record_token_values(run, model, template, episodes)
    summary = training_figures(trainer)
    plugins.call("card", config, run, "values", summary)
    return summary


def batches_of(heads: int) -> list[BatchSettings]:
    """The batches of values with so many heads over the vocabulary."""
    return [BatchSettings("training.batch_size", "actor.max_new_tokens", heads=heads)]
