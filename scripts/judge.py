"""Judges critics by what the states of a policy are worth, and by the order of its chains.

python scripts/judge.py --config configs/judge/gridworld_tiny.yaml
python scripts/judge.py --config configs/judge/gridworld_tiny.yaml \
    --critics '[runs/train_critic/critic, numbers.json, "reward:my/reward-model"]'
"""

from lactchain.runs.process import launch
from lactchain_extras.stages.judge import JudgeConfig, main

if __name__ == "__main__":
    launch(main, JudgeConfig, __doc__)
