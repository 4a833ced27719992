"""Trains CQL: conservative Q-learning from recorded transitions, without playing.

Reads --data: parquet of ours, an HDF5 file in d3rlpy's layout, or the folder of a Minari data set;
without it the run plays at random and keeps RUN/transitions.parquet. Writes RUN/best/ and RUN/last/
(weights), RUN/evaluations.json, RUN/learning_curve.svg, RUN/report.html and RUN/summary.json.
Choosing the best by playing is a luxury that offline learning may not have: see RUN/last.

    python scripts/train_cql.py --config configs/train_cql/cartpole.yaml
    python scripts/train_cql.py --config configs/train_cql/gridworld.yaml
"""

from lactchain.baselines.settings import TrainCQLConfig
from lactchain.console import figures
from lactchain.process import launch


def main(config: TrainCQLConfig) -> dict:
    from lactchain.baselines.training import train
    from lactchain.inspection.report import write_learning_curve, write_report

    summary = train(config)
    write_learning_curve(config.run.run_dir)
    write_report(config.run.run_dir)
    figures("CQL", summary)
    return summary


if __name__ == "__main__":
    launch(main, TrainCQLConfig)
