r"""Collects episodes of an actor, to train critics on or to look at.

python scripts/collect_rollouts.py --config configs/collect_rollouts/gridworld_tiny.yaml
accelerate launch --config_file configs/accelerate/multi_gpu.yaml scripts/collect_rollouts.py \
        --config configs/collect_rollouts/gridworld_mistral7b.yaml
"""

from lactchain.runs.process import launch
from lactchain.stages.collect_rollouts import CollectRolloutsConfig, main

if __name__ == "__main__":
    launch(main, CollectRolloutsConfig, __doc__)
