"""Searches hyper-parameters and architectures by evolution.

python scripts/search.py --config configs/search/cartpole.yaml
python scripts/search.py --config configs/search/gridworld_tiny.yaml
"""

from lactchain.runs.process import launch
from lactchain.stages.search import SearchConfig, main

if __name__ == "__main__":
    launch(main, SearchConfig, __doc__)
