r"""Evaluates an actor: an episode from every start state, and sampled completions.

python scripts/evaluate.py --config configs/evaluate/gridworld_tiny.yaml
accelerate launch --config_file configs/accelerate/multi_gpu.yaml scripts/evaluate.py \
        --config configs/evaluate/gridworld_mistral7b.yaml
"""

from lactchain.runs.process import launch
from lactchain.stages.evaluate import EvaluateConfig, main

if __name__ == "__main__":
    launch(main, EvaluateConfig, __doc__)
