"""Trains DQN: deep Q-learning, double, with replay.

python scripts/train_dqn.py --config configs/train_dqn/cartpole.yaml
python scripts/train_dqn.py --config configs/train_dqn/gridworld.yaml
"""

from lactchain.baselines.settings import TrainDQNConfig
from lactchain.runs.process import launch
from lactchain.stages.train_agent import main

if __name__ == "__main__":
    launch(main, TrainDQNConfig, __doc__)
