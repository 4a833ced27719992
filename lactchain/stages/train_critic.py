"""Stage 1 of the founding recipe: the actor is frozen, the critic regresses on returns.

The head is solved for in closed form on the encoder as it stands, then both take gradient steps,
then the head is solved for again; with `critic.frozen` the first of the three is all.

Reads the actor's and the encoder's weights, and --trajectories if given; else the actor plays its
own episodes into RUN/trajectories/. Writes RUN/checkpoints/, RUN/critic/, and, where the actor's
chains can be enumerated, RUN/policy/, how probable each is in each state, and RUN/values.json: the
critic beside the exact values of the actor.

Departures from the founding text: (1) the data set is collected first and reused for several
epochs, since a frozen actor's episodes stay valid; (2) gamma is per action by default; (3) a time
limit is no ending, cut episodes bootstrap; (4) the last token is pooled, not the first; (5) values
are fitted to λ-returns with λ .5 (critic.trace; 1 are returns as they were played).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lactchain import plugins
from lactchain.config.settings import CriticConfig, PlayerConfig, RunConfig, TrainingConfig
from lactchain.data.evaluations import PARTS, StateValues, collection_metrics, write_values
from lactchain.data.exact_values import can_enumerate, critic_against_exact, exact_policy
from lactchain.data.intervals import r2, resampled_interval, rmse
from lactchain.data.sources import open_trajectories
from lactchain.environments.language import LanguageEnv, make_language_env
from lactchain.errors import ConfigError
from lactchain.runs import distributed
from lactchain.runs.process import seed_everything
from lactchain.runs.run import Run
from lactchain.stages import collect_rollouts
from lactchain.stages.collect_rollouts import CollectRolloutsConfig
from lactchain.stages.stage_run import BatchSettings, stage
from lactchain.types import Trajectory

if TYPE_CHECKING:
    from lactchain.trainers.critic import CriticTrainer

log = logging.getLogger(__name__)

EVAL_FRACTION = 0.1
"""Share of the episodes that are held out, on which R2 and RMSE are measured."""


@dataclass(frozen=True)
class TrainCriticConfig(CollectRolloutsConfig):
    """Stage 1 of the founding recipe: the actor is frozen, the critic regresses on returns."""

    run: RunConfig = RunConfig(run_dir="runs/train_critic")
    actor: PlayerConfig = PlayerConfig(decoding="constrained")
    critic: CriticConfig = CriticConfig()
    trajectories: str | None = None
    """Folder or file of episodes (see `lactchain.data.sources`); null: the actor plays its own."""
    training: TrainingConfig = TrainingConfig()
    compare_with_exact: bool = True
    """Measure the critic against the true values of the actor, where its chains are few enough to
    be enumerated: it reads every legal completion to every state."""


def main(config: TrainCriticConfig) -> dict[str, Any]:
    """Trains the critic; returns how well it predicts."""
    batches = [] if config.trajectories is not None else [*collect_rollouts.BATCHES]
    batches.append(BatchSettings("training.batch_size", "critic.max_length"))
    with stage("Critic", config, batches) as run:
        if run.outcome is None:
            run.finish(train_critic(config, run))
    return run.outcome


def train_critic(config: TrainCriticConfig, run: Run) -> dict[str, Any]:
    """Episodes, then the regression on their returns, then the comparison with exact values."""
    from lactchain.models.critic import check_critic
    from lactchain.trainers.base import save_result

    check_critic(config.critic)
    trajectories, summary = _episodes(config, run)
    seed_everything(config.run.seed, config.run.threads)
    trainer, figures = _fit(config, trajectories, run)
    summary |= figures
    if trainer.eval_dataset is not None:
        summary |= _evaluate(trainer)
    save_result(trainer, run.path("critic"))
    del trainer  # the actor and the trained critic come in its place
    summary |= measure_values(config, run)
    plugins.call("card", config, run, "critic", summary)
    return summary


def _episodes(config: TrainCriticConfig, run: Run) -> tuple[list[Trajectory], dict[str, float]]:
    """The episodes to learn from, read or played, and their figures."""
    if config.trajectories is None:
        return collect_rollouts.episodes_into(config, run)
    trajectories = open_trajectories(config.trajectories, make_language_env(config.environment))
    return trajectories, collection_metrics(trajectories)


def critic_trainer(
    config: TrainCriticConfig, trajectories: Sequence[Trajectory], run: Run
) -> "CriticTrainer":
    """The trainer of the critic of a configuration; some episodes are held out for evaluation."""
    from lactchain.models.critic import EmbeddingCritic
    from lactchain.trainers.base import training_arguments
    from lactchain.trainers.critic import CriticTrainer, EpisodeTable, return_scale, split_episodes

    settings, seed = config.critic, config.run.seed
    scale = return_scale(trajectories, settings.gamma, settings.discount_per)
    critic = EmbeddingCritic.from_config(settings, trainable=True, value_scale=scale)
    training, held_out = split_episodes(trajectories, EVAL_FRACTION, seed)
    args = training_arguments(
        config.training, run.path("checkpoints"), seed, report_to=config.run.report_to
    )
    table = EpisodeTable(training, critic)
    eval_table = EpisodeTable(held_out, critic) if held_out else None
    return CriticTrainer(critic, args, table, run=run, eval_table=eval_table)


def _fit(
    config: TrainCriticConfig, trajectories: Sequence[Trajectory], run: Run
) -> tuple["CriticTrainer", dict[str, float]]:
    """The trainer of the fitted critic, whose head is solved for before and behind gradient steps.

    They are taken back where the folds are predicted worse behind them. That is a guard against
    steps that destroy, and no proof of gain: the steps have seen the folds.
    """
    from lactchain.trainers.base import train

    trainer = critic_trainer(config, trajectories, run)
    found = first = trainer.solve()
    if not config.critic.frozen:
        train(trainer)
        found = trainer.solve()
    if found.r2 < first.r2:
        log.warning(
            "critic: the steps are taken back: the R2 of folds fell from %.5f to %.5f",
            *(first.r2, found.r2),
        )
        frozen = replace(config, critic=replace(config.critic, frozen=True))
        trainer = critic_trainer(frozen, trajectories, run)
        found = trainer.solve()
    return trainer, {"solved_r2": first.r2, "fold_r2": found.r2, "calibration_slope": found.slope}


def _evaluate(trainer: "CriticTrainer") -> dict[str, Any]:
    """R2 and RMSE of held-out returns with their intervals, and R2 beside its ceiling."""
    figures: dict[str, Any] = trainer.evaluate()
    for name, statistic in (("r2", r2), ("rmse", rmse)):
        figures[f"eval_{name}_interval"] = resampled_interval(trainer.eval_sums, statistic)
    ceiling, interval = trainer.ceiling()
    share = figures["eval_r2"] / ceiling if interval[0] > 0 else None
    return figures | {
        "eval_r2_ceiling": ceiling,
        "eval_r2_ceiling_interval": interval,
        "eval_r2_over_ceiling": share,
    }


def measure_values(config: TrainCriticConfig, run: Run) -> dict[str, float]:
    """Writes `values.json` and returns the figures of the critic; nothing if not computable.

    They are those of states and chains alone, of an actor under constrained decoding: with a
    history it does not answer the state. Nothing else should be in memory: neither the trainer nor
    the critic in training. The processes share the enumeration of the actor's completions out. Rank
    0 alone measures the critic that the run has saved: that in training may be spread over several.
    """
    from lactchain.models.actor import LanguageActor
    from lactchain.models.critic import EmbeddingCritic
    from lactchain.models.runtime import free_memory

    env = make_language_env(config.environment)
    constrained = config.actor.decoding == "constrained" and env.history == 1
    wanted = config.compare_with_exact and config.critic.mode == "value"
    if not (wanted and constrained and can_enumerate(env)):
        return {}
    free_memory()
    actor = LanguageActor.from_config(config.actor, env.grammar)
    policy = exact_policy(actor, env, run.path("policy"))
    if not distributed.is_main():
        return {}
    critic = EmbeddingCritic.load(run.path("critic"))
    try:
        values = critic_against_exact(critic, policy, env)
    except ConfigError as error:
        log.warning("the critic is not compared with exact values: %s", error)
        return {}
    write_values(run.path("values.json"), values)
    return critic_figures(values, env)


def critic_figures(values: StateValues, env: LanguageEnv) -> dict[str, float]:
    """`critic_r2`, `critic_rmse` and `critic_rho`.

    Where states are held back, the first two of each part as well.
    """
    figures = {"critic_r2": values.r2, "critic_rmse": values.rmse, "critic_rho": values.rho}
    for name, kind in PARTS.items() if env.held_back else ():
        part = values.where([(state in env.held_back) == kind for state in values.states])
        figures |= {f"{name}/critic_r2": part.r2, f"{name}/critic_rmse": part.rmse}
    return figures
