"""Compares runs in one world: figures, settings, and which start states were gained and lost.

python scripts/compare.py --config configs/compare/seeds.yaml
python scripts/compare.py --config configs/compare/rounds.yaml
python scripts/compare.py --runs '[runs/seed_0, runs/seed_1, runs/seed_2]' --show 10

The two configurations are of the quickstart: with two seeds, and its first round beside its clone.
"""

from lactchain.runs.process import launch
from lactchain_extras.stages.compare import CompareConfig, main

if __name__ == "__main__":
    launch(main, CompareConfig, __doc__)
