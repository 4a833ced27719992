r"""Stage 1 of the founding recipe: the actor is frozen, the critic regresses on returns.

accelerate launch scripts/train_critic.py --config configs/train_critic/gridworld_tiny.yaml
accelerate launch --config_file configs/accelerate/cuda_bf16.yaml scripts/train_critic.py \
        --config configs/train_critic/gridworld_mistral7b.yaml
"""

from lactchain.runs.process import launch
from lactchain.stages.train_critic import TrainCriticConfig, main

if __name__ == "__main__":
    launch(main, TrainCriticConfig, __doc__)
