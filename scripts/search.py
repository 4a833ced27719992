r"""Searches hyper-parameters and architectures: evolution, random search, or Optuna's TPE.

python scripts/search.py --config configs/search/cartpole.yaml
python scripts/search.py --config configs/search/cartpole.yaml --method random \
        --run.run_dir runs/random_search
python scripts/search.py --config configs/search/gridworld_tiny.yaml
"""

from lactchain.runs.process import launch
from lactchain.stages.search import SearchConfig, main

if __name__ == "__main__":
    launch(main, SearchConfig, __doc__)
