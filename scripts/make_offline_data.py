"""Makes episodes to learn from offline: scripted policies play, or a data set is imported.

python scripts/make_offline_data.py --config configs/make_offline_data/maze.yaml
python scripts/make_offline_data.py --config configs/make_offline_data/wordle.yaml
"""

from lactchain.runs.process import launch
from lactchain_extras.stages.make_offline_data import MakeOfflineDataConfig, main

if __name__ == "__main__":
    launch(main, MakeOfflineDataConfig, __doc__)
