r"""Behaviour cloning: the actor learns to answer as scripted behaviour, pairs or episodes do.

python scripts/train_bc.py --config configs/train_bc/gridworld_tiny.yaml
accelerate launch --config_file configs/accelerate/cuda_bf16.yaml scripts/train_bc.py \
        --config configs/train_bc/gridworld_mistral7b.yaml
"""

from lactchain.runs.process import launch
from lactchain.stages.train_bc import TrainBCConfig, main

if __name__ == "__main__":
    launch(main, TrainBCConfig, __doc__)
