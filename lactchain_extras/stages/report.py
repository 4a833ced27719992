"""Writes report.html: one page that shows a run, or a pipeline with its stages, in any browser.

Reads:   <run_dir>/{config.yaml, environment.json, metrics.jsonl, summary.json, values.json,
         episodes.json, episodes_before.json, trajectories/, pairs/, round_N/inspection/} and runs
         inside <run_dir>, as far as they are there: a running job can be looked at too
Writes:  <run_dir>/report.html, the explorer: self-contained, opens from disk, needs no network
"""

from dataclasses import dataclass

from lactchain.config.settings import check
from lactchain.runs.console import console, plain
from lactchain_extras.explorer.report import write_report


@dataclass(frozen=True)
class ReportConfig:
    """What to report on, and where to."""

    run_dir: str = "runs/quickstart"
    """Folder of the run, or of a pipeline with runs inside."""
    output: str | None = None
    """The page to write; null: report.html in the run's folder."""
    beside: tuple[str, ...] = ()
    """Folders of other runs, to be set beside this one: success, cost, curves."""

    def __post_init__(self) -> None:
        check(bool(self.run_dir), "run_dir", "a folder", self.run_dir)


def main(config: ReportConfig) -> None:
    """Writes the page and prints where it is."""
    path = write_report(config.run_dir, config.output, config.beside)
    console.print(plain(str(path)), soft_wrap=True)
