"""Trains CQL: conservative Q-learning from recorded transitions, without playing.

python scripts/train_cql.py --config configs/train_cql/cartpole.yaml
python scripts/train_cql.py --config configs/train_cql/gridworld.yaml
"""

from lactchain.baselines.settings import TrainCQLConfig
from lactchain.runs.process import launch
from lactchain.stages.train_agent import main

if __name__ == "__main__":
    launch(main, TrainCQLConfig, __doc__)
