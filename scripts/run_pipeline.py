r"""The whole founding recipe: warm start, then rounds of critic and SimPO, until the target is met.

python scripts/run_pipeline.py --config configs/run_pipeline/tiny.yaml
accelerate launch --config_file configs/accelerate/cuda_bf16.yaml scripts/run_pipeline.py \
        --config configs/run_pipeline/gridworld_mistral7b.yaml
"""

from lactchain.runs.process import launch
from lactchain.stages.run_pipeline import RunPipelineConfig, main

if __name__ == "__main__":
    launch(main, RunPipelineConfig, __doc__)
