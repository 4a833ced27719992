"""Plays an episode in the terminal, step by step: you are the policy, or you watch an actor.

python scripts/play.py --config configs/play/gridworld_tiny.yaml
python scripts/play.py --config configs/play/gridworld_mistral7b.yaml
"""

from lactchain.runs.process import launch
from lactchain_extras.stages.play import PlayConfig, main

if __name__ == "__main__":
    launch(main, PlayConfig, __doc__)
