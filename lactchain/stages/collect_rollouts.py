"""Collects episodes of an actor, to train critics on or to look at.

Reads the actor's weights; writes RUN/trajectories/*.parquet, one file per shard of episodes. Start
states go round the whole state space. Shards are shared out among the processes, and what a shard
holds does not depend on their number; a restarted run keeps the finished ones.
"""

from dataclasses import dataclass
from typing import Any

from lactchain.data.episodes import sampled_episodes
from lactchain.data.rollouts import Rollouts, collection_metrics, time_metrics
from lactchain.run import Run
from lactchain.settings import CollectConfig, EnvironmentConfig, RunConfig, SamplerConfig
from lactchain.stages.frame import Phases, run_stage
from lactchain.types import Policy, Trajectory


@dataclass(frozen=True)
class CollectRolloutsConfig:
    """Episodes of an actor."""

    run: RunConfig = RunConfig(run_dir="runs/collect_rollouts")
    environment: EnvironmentConfig = EnvironmentConfig()
    actor: SamplerConfig = SamplerConfig()
    collect: CollectConfig = CollectConfig()


def main(config: CollectRolloutsConfig) -> dict[str, Any]:
    """Plays the episodes; returns their figures."""
    return run_stage("Rollouts", config, collect_rollouts, memory)


def collect_rollouts(config: CollectRolloutsConfig, run: Run) -> dict[str, Any]:
    """Episodes of the actor of a configuration."""
    from lactchain.models.actor import LanguageActor

    rollouts = Rollouts(config.environment, config.collect.num_envs)
    actor = LanguageActor.from_config(config.actor, rollouts.env.grammar)
    return play_into(run, actor, rollouts, config.collect, config.run.seed)[1]


def play_into(
    run: Run, policy: Policy, rollouts: Rollouts, collect: CollectConfig, seed: int
) -> tuple[list[Trajectory], dict[str, float]]:
    """Episodes of any policy in RUN/trajectories, and their figures."""
    episodes = sampled_episodes(rollouts.env, collect.num_episodes, seed)
    trajectories, tally = rollouts.collect(
        policy, episodes, run.path("trajectories"), collect.shard_size
    )
    metrics = collection_metrics(trajectories) | time_metrics(tally)
    run.log_once(metrics, step=0)
    return trajectories, metrics


def memory(config: CollectRolloutsConfig) -> Phases:
    """The phases that are estimated."""
    from lactchain.budget import answers

    rows = config.collect.num_envs
    yield answers("rollouts", config.environment, config.actor, rows, "collect.num_envs")
