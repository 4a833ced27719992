r"""Monte-Carlo values: learns from recorded episodes what the behaviour earned behind each token.

python scripts/train_mc.py --config configs/train_mc/maze_tiny.yaml
accelerate launch --config_file configs/accelerate/cuda_bf16.yaml scripts/train_mc.py \
        --config configs/train_mc/maze_mistral7b.yaml
"""

from lactchain.runs.process import launch
from lactchain_extras.stages.train_mc import TrainMCConfig, main

if __name__ == "__main__":
    launch(main, TrainMCConfig, __doc__)
