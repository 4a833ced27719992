"""Compares runs in one world: figures, settings, and which start states were gained and lost.

Runs that differ in their seed alone are one row more: means over seeds, with intervals.

Reads the run folders, finished or under way; writes nothing. Start states are paired, so that a
difference has an interval: what lies within it may be luck.
"""

from dataclasses import dataclass

from lactchain.config.bounds import AtLeast0, Bounded
from lactchain.config.settings import check
from lactchain.inspection.run_view import open_run
from lactchain.runs.console import console, plain, table
from lactchain_extras import comparing
from lactchain_extras.explorer.summary import status


@dataclass(frozen=True)
class CompareConfig(Bounded):
    """What to compare."""

    runs: tuple[str, ...] = ()
    """Folders of two runs or more; all are compared with the first."""
    show: AtLeast0 = 5
    """Start states to list that a run has lost, and as many that it has gained."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(len(self.runs) > 1, "runs", "two folders or more", self.runs)


def main(config: CompareConfig) -> None:
    """Prints the comparison."""
    runs = [open_run(folder) for folder in config.runs]
    compared = comparing.compare(runs)
    table("What they came to", comparing.figures(runs))
    if means := comparing.over_seeds(runs):
        table("Means over seeds (± 95 %), named by the first of their runs", means)
    for run in runs:
        if run.summary is None:
            line = f"{run.directory}: its last evaluation so far is compared. {status(run)}"
            console.print(plain(line), soft_wrap=True)
    if differing := comparing.settings(runs):
        table("Settings that differ", differing)
    if others := comparing.in_other_worlds(runs):
        line = "environment.id or environment.kwargs is not that of the first run, so that states"
        console.print(plain(f"{', '.join(others)}: {line} may mean other things"), soft_wrap=True)
    meant = "95 % interval; the fewer completions the better"
    table(f"By start states in common ({meant})", [pair.row() for pair in compared])
    for pair in compared:
        if changes := pair.changes(config.show):
            table(f"{pair.other.directory}: start states lost, and gained", changes)
        elif not pair.gained and not pair.lost:
            same = f"{pair.other.directory}: no start state is gained or lost"
            console.print(plain(same), soft_wrap=True)
