"""What the critic's stage needs around its training: episodes before, true values after."""

from __future__ import annotations

from lactchain import distributed
from lactchain.data.episodes import sampled_episodes
from lactchain.data.evaluations import write_values
from lactchain.data.exact_values import can_enumerate, critic_against_exact, exact_policy
from lactchain.data.rollouts import Rollouts, collection_metrics, time_metrics
from lactchain.data.trajectories import read_trajectories
from lactchain.environments.language import LanguageEnv, make_language_env
from lactchain.jobs import TrainCriticConfig
from lactchain.models.actor import LanguageActor
from lactchain.models.critic import EmbeddingCritic
from lactchain.models.loading import free_memory
from lactchain.run import Run
from lactchain.types import Trajectory


def critic_episodes(
    config: TrainCriticConfig, run: Run
) -> tuple[list[Trajectory], dict[str, float]]:
    """The episodes to learn from, read or played, and their figures."""
    if config.trajectories is not None:
        trajectories = read_trajectories(config.trajectories)
        return trajectories, collection_metrics(trajectories)
    rollouts = Rollouts(config.environment, config.collect.num_envs)
    actor = LanguageActor.from_config(config.actor, rollouts.env.grammar)
    episodes = sampled_episodes(rollouts.env, config.collect, config.run.seed)
    trajectories, tally = rollouts.collect(
        actor, episodes, run.path("trajectories"), config.collect.shard_size
    )
    metrics = collection_metrics(trajectories) | time_metrics(tally)
    run.log_once(metrics, step=0)
    return trajectories, metrics


def compares_with_exact(config: TrainCriticConfig, env: LanguageEnv) -> bool:
    """Whether true values are asked for, and can be computed: of states, and chains alone."""
    constrained = config.actor.decoding == "constrained"
    wanted = config.compare_with_exact and config.critic.mode == "value" and constrained
    return wanted and can_enumerate(env)


def measure_values(config: TrainCriticConfig, run: Run) -> dict[str, float]:
    """Writes `values.json` and returns `critic_r2`, `critic_rmse`; nothing if not computable.

    Nothing else should be in memory: neither the trainer nor the critic in training. The processes
    share the enumeration of the actor's answers out. Rank 0 alone measures the critic
    that the run has saved: that in training may be spread over several processes.
    """
    env = make_language_env(config.environment)
    if not compares_with_exact(config, env):
        return {}
    free_memory()
    actor = LanguageActor.from_config(config.actor, env.grammar)
    policy = exact_policy(actor, env, run.path("policy"))
    if not distributed.is_main():
        return {}
    values = critic_against_exact(EmbeddingCritic.load(run.path("critic")), policy, env)
    write_values(run.path("values.json"), values)
    return {"critic_r2": values.r2, "critic_rmse": values.rmse}
