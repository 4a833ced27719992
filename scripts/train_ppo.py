"""Trains PPO: proximal policy optimisation, for discrete and continuous actions.

python scripts/train_ppo.py --config configs/train_ppo/cartpole.yaml
python scripts/train_ppo.py --config configs/train_ppo/gridworld.yaml
"""

from lactchain.baselines.settings import TrainPPOConfig
from lactchain.runs.process import launch
from lactchain.stages.train_agent import main

if __name__ == "__main__":
    launch(main, TrainPPOConfig, __doc__)
