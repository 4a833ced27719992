"""Trains DQN: deep Q-learning, double, with replay.

Reads nothing but the environment; writes RUN/best/ and RUN/last/ (weights), RUN/evaluations.json,
RUN/learning_curve.svg, RUN/report.html and RUN/summary.json. --loop.num_members trains several
seeds as one batched computation. A file RUN/stop ends the run in good order.

    python scripts/train_dqn.py --config configs/train_dqn/cartpole.yaml
    python scripts/train_dqn.py --config configs/train_dqn/gridworld.yaml
"""

from lactchain.baselines.settings import TrainDQNConfig
from lactchain.console import figures
from lactchain.process import launch


def main(config: TrainDQNConfig) -> dict:
    from lactchain.baselines.training import train
    from lactchain.inspection.report import write_learning_curve, write_report

    summary = train(config)
    write_learning_curve(config.run.run_dir)
    write_report(config.run.run_dir)
    figures("DQN", summary)
    return summary


if __name__ == "__main__":
    launch(main, TrainDQNConfig)
