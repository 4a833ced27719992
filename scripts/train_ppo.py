"""Trains PPO: proximal policy optimisation, for discrete and continuous actions.

Reads nothing but the environment; writes RUN/best/ and RUN/last/ (weights), RUN/evaluations.json,
RUN/learning_curve.svg, RUN/report.html and RUN/summary.json. --loop.num_members trains several
seeds as one batched computation. A file RUN/stop ends the run in good order.

    python scripts/train_ppo.py --config configs/train_ppo/cartpole.yaml
    python scripts/train_ppo.py --config configs/train_ppo/gridworld.yaml
"""

from lactchain.baselines.settings import TrainPPOConfig
from lactchain.console import figures
from lactchain.process import launch


def main(config: TrainPPOConfig) -> dict:
    from lactchain.baselines.training import train
    from lactchain.inspection.report import write_learning_curve, write_report

    summary = train(config)
    write_learning_curve(config.run.run_dir)
    write_report(config.run.run_dir)
    figures("PPO", summary)
    return summary


if __name__ == "__main__":
    launch(main, TrainPPOConfig)
