r"""Stage 2 of the founding recipe: the critic is frozen, the actor learns from preference pairs.

accelerate launch scripts/train_simpo.py --config configs/train_simpo/gridworld_tiny.yaml
accelerate launch --config_file configs/accelerate/cuda_bf16.yaml scripts/train_simpo.py \
        --config configs/train_simpo/gridworld_mistral7b.yaml
"""

from lactchain.runs.process import launch
from lactchain.stages.train_simpo import TrainSimPOConfig, main

if __name__ == "__main__":
    launch(main, TrainSimPOConfig, __doc__)
