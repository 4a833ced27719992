r"""Makes episodes to learn from offline: scripted policies play, or a data set is imported.

Reads --source if given (a Minari data set of text in arrow, or a Hugging Face data set); writes
RUN/trajectories/*.parquet, and RUN/minari/ and RUN/dataset/ where --export names them.

    python scripts/make_offline_data.py --config configs/make_offline_data/maze.yaml
    python scripts/make_offline_data.py --config configs/make_offline_data/wordle.yaml
"""

from lactchain.console import figures
from lactchain.jobs import MakeOfflineDataConfig
from lactchain.process import launch, seed_everything
from lactchain.run import Run


def main(config: MakeOfflineDataConfig) -> dict:
    from lactchain import distributed
    from lactchain.data.behavior import export_episodes, import_episodes, record
    from lactchain.data.rollouts import collection_metrics, time_metrics
    from lactchain.data.stuck import stuck_metrics
    from lactchain.data.trajectories import write_trajectories

    with Run.of(config) as run:
        if run.finished:
            return run.summary
        seed_everything(config.run.seed, config.run.threads)
        if config.source is None:
            trajectories, tally = record(config, run)
            times = time_metrics(tally)
        else:
            trajectories, times = import_episodes(config.source), {}
        if distributed.is_main():
            if config.source is not None:
                write_trajectories(run.path("trajectories") / "imported.parquet", trajectories)
            export_episodes(trajectories, config, run)
        summary = collection_metrics(trajectories) | stuck_metrics(trajectories) | times
        run.log_once(summary, step=0)
        run.finish(summary)
    figures("Offline data", summary)
    return summary


if __name__ == "__main__":
    launch(main, MakeOfflineDataConfig)
