r"""ILQL: learns from recorded episodes what each token is worth under the best behaviour in them.

python scripts/train_ilql.py --config configs/train_ilql/maze_tiny.yaml
accelerate launch --config_file configs/accelerate/cuda_bf16.yaml scripts/train_ilql.py \
        --config configs/train_ilql/maze_mistral7b.yaml
"""

from lactchain.runs.process import launch
from lactchain_extras.stages.train_ilql import TrainILQLConfig, main

if __name__ == "__main__":
    launch(main, TrainILQLConfig, __doc__)
