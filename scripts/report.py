"""Writes report.html: one page that shows a run, or a pipeline with its stages, in any browser.

Reads:   <run_dir>/{config.yaml, environment.json, metrics.jsonl, summary.json, values.json,
         episodes.json, episodes_before.json, trajectories/, pairs/} and runs inside <run_dir>,
         as far as they are there: a running job can be looked at too
Writes:  <run_dir>/report.html, self-contained, without scripts

    python scripts/report.py --run_dir runs/quickstart
    python scripts/report.py --run_dir runs/quickstart --beside '[runs/train_ppo_gridworld]'
    python scripts/report.py --config configs/report/gridworld_mistral7b.yaml
"""

from lactchain.inspection.report import ReportConfig, write_report
from lactchain.process import launch


def main(config: ReportConfig) -> None:
    path = write_report(config.run_dir, config.output, config.num_rollouts, config.beside)
    print(path)


if __name__ == "__main__":
    launch(main, ReportConfig)
