r"""Collects episodes of an actor, to train critics on or to look at.

Reads the actor's weights; writes RUN/trajectories/*.parquet, one file per shard of episodes. Start
states go round the whole state space. Shards are shared out among the processes, and what a shard
holds does not depend on their number; a restarted run keeps the finished ones.

    python scripts/collect_rollouts.py --config configs/collect_rollouts/gridworld_tiny.yaml
    accelerate launch --config_file configs/accelerate/multi_gpu.yaml scripts/collect_rollouts.py \
        --config configs/collect_rollouts/gridworld_mistral7b.yaml
"""

from lactchain.console import figures
from lactchain.jobs import CollectRolloutsConfig
from lactchain.process import launch, seed_everything
from lactchain.run import Run


def main(config: CollectRolloutsConfig) -> dict:
    from lactchain.budget import check_budget, print_budget
    from lactchain.data.episodes import sampled_episodes
    from lactchain.data.rollouts import Rollouts, collection_metrics, time_metrics
    from lactchain.models.actor import LanguageActor

    if config.dry_run:
        return print_budget(config)

    with Run.of(config) as run:
        if run.finished:
            return run.summary
        check_budget(config)
        seed_everything(config.run.seed, config.run.threads)
        rollouts = Rollouts(config.environment, config.collect.num_envs)
        actor = LanguageActor.from_config(config.actor, rollouts.env.grammar)
        episodes = sampled_episodes(rollouts.env, config.collect, config.run.seed)
        trajectories, tally = rollouts.collect(
            actor, episodes, run.path("trajectories"), config.collect.shard_size
        )
        summary = collection_metrics(trajectories) | time_metrics(tally)
        run.log_once(summary, step=0)
        run.finish(summary)
    figures("Rollouts", summary)
    return summary


if __name__ == "__main__":
    launch(main, CollectRolloutsConfig)
