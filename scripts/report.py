"""Writes report.html: one page that shows a run, or a pipeline with its stages, in any browser.

python scripts/report.py --run_dir runs/quickstart
python scripts/report.py --run_dir runs/quickstart --beside '[runs/train_ppo_gridworld]'
python scripts/report.py --config configs/report/gridworld_mistral7b.yaml
"""

from lactchain.runs.process import launch
from lactchain_extras.stages.report import ReportConfig, main

if __name__ == "__main__":
    launch(main, ReportConfig, __doc__)
