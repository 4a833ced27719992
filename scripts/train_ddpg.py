"""Trains DDPG: a deterministic actor that climbs its critic, for continuous actions.

python scripts/train_ddpg.py --config configs/train_ddpg/pendulum.yaml
python scripts/train_ddpg.py --config configs/train_ddpg/mountain_car.yaml
"""

from lactchain.baselines.settings import TrainDDPGConfig
from lactchain.runs.process import launch
from lactchain.stages.train_agent import main

if __name__ == "__main__":
    launch(main, TrainDDPGConfig, __doc__)
