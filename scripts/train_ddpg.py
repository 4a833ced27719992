"""Trains DDPG: a deterministic actor that climbs its critic, for continuous actions.

Reads nothing but the environment; writes RUN/best/ and RUN/last/ (weights), RUN/evaluations.json,
RUN/learning_curve.svg, RUN/report.html and RUN/summary.json. --loop.num_members trains several
seeds as one batched computation. A file RUN/stop ends the run in good order.

    python scripts/train_ddpg.py --config configs/train_ddpg/pendulum.yaml
    python scripts/train_ddpg.py --config configs/train_ddpg/mountain_car.yaml
"""

from lactchain.baselines.settings import TrainDDPGConfig
from lactchain.console import figures
from lactchain.process import launch


def main(config: TrainDDPGConfig) -> dict:
    from lactchain.baselines.training import train
    from lactchain.inspection.report import write_learning_curve, write_report

    summary = train(config)
    write_learning_curve(config.run.run_dir)
    write_report(config.run.run_dir)
    figures("DDPG", summary)
    return summary


if __name__ == "__main__":
    launch(main, TrainDDPGConfig)
