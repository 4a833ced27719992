"""Builds the tiny models and fetches the others: every other script finds its weights here.

python scripts/prepare_weights.py --config configs/prepare_weights/gridworld_tiny.yaml
python scripts/prepare_weights.py --config configs/prepare_weights/smollm2.yaml
python scripts/prepare_weights.py --config configs/prepare_weights/gridworld_mistral7b.yaml
"""

from lactchain.runs.process import launch
from lactchain_extras.stages.prepare_weights import PrepareWeightsConfig, main

if __name__ == "__main__":
    launch(main, PrepareWeightsConfig, __doc__)
