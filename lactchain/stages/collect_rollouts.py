"""Collects episodes of an actor, to train critics on or to look at.

Reads the actor's weights; writes RUN/trajectories/*.parquet, one file per shard of episodes. Start
states go round the whole state space. Shards are shared out among the processes, and what a shard
holds does not depend on their number; a restarted run keeps the finished ones.
"""

from dataclasses import dataclass
from typing import Any

from lactchain.config.settings import CollectConfig, EnvironmentConfig, RunConfig, SamplerConfig
from lactchain.data.episodes import sampled_episodes
from lactchain.data.evaluations import collection_metrics, time_metrics
from lactchain.data.rollouts import Rollouts
from lactchain.runs.run import Run
from lactchain.stages.stage_run import BatchSettings, stage
from lactchain.types import Trajectory

BATCHES = (BatchSettings("collect.num_envs", "actor.max_new_tokens"),)


@dataclass(frozen=True)
class CollectRolloutsConfig:
    """Episodes of an actor."""

    run: RunConfig = RunConfig(run_dir="runs/collect_rollouts")
    environment: EnvironmentConfig = EnvironmentConfig()
    actor: SamplerConfig = SamplerConfig()
    collect: CollectConfig = CollectConfig()


def main(config: CollectRolloutsConfig) -> dict[str, Any]:
    """Plays the episodes; returns their figures."""
    with stage("Rollouts", config, BATCHES) as run:
        if run.outcome is None:
            run.finish(episodes_into(config, run)[1])
    return run.outcome


def episodes_into(
    config: CollectRolloutsConfig, run: Run
) -> tuple[list[Trajectory], dict[str, float]]:
    """Episodes of the actor of a configuration, in RUN/trajectories, and their figures."""
    from lactchain.models.actor import load_player

    collect = config.collect
    rollouts = Rollouts(config.environment, collect.num_envs)
    actor = load_player(config.actor, rollouts.env.grammar)
    episodes = sampled_episodes(rollouts.env, collect.num_episodes, config.run.seed)
    trajectories, tally = rollouts.collect(
        actor, episodes, run.path("trajectories"), collect.shard_size
    )
    metrics = collection_metrics(trajectories) | time_metrics(tally)
    run.log_once(metrics, step=0)
    return trajectories, metrics
