"""Writes numbered tasks of a world to a file that others can cite, or verifies a result on them.

python scripts/panel.py --config configs/panel/grid.yaml
python scripts/panel.py --config configs/panel/sokoban.yaml --count 50
python scripts/panel.py --environment.id FrozenLake-v1 --count 200 --file panels/frozen_lake.json
python scripts/panel.py --file panels/frozen_lake.json --verify runs/evaluate/panel_result.json
"""

from lactchain.runs.process import launch
from lactchain_extras.stages.panel import PanelConfig, main

if __name__ == "__main__":
    launch(main, PanelConfig, __doc__)
