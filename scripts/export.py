"""Exports an actor as one model: base and adapter merged in float32, rounded to --dtype.

python scripts/export.py --config configs/export/gridworld_tiny.yaml
python scripts/export.py --config configs/export/gridworld_mistral7b.yaml --dtype float32
"""

from lactchain.runs.process import launch
from lactchain_extras.stages.export import ExportConfig, main

if __name__ == "__main__":
    launch(main, ExportConfig, __doc__)
