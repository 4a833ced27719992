"""Looking into runs from a notebook: all of this displays itself, escaped, without scripts.

run = open_run("runs/quickstart")
run                                      # what is there
show_run(run)                            # curves, success by distance, values
show_trajectory(run.trajectories[0], run)
show_pairs(run)
"""

from collections.abc import Sequence

from lactchain.inspection import markup, report
from lactchain.inspection.run_view import RunView
from lactchain.inspection.run_view import open_run as open_run
from lactchain.types import Trajectory


class Shown(markup.Markup):
    """HTML that a notebook displays."""

    def _repr_html_(self) -> str:
        return str(markup.parts.notebook(self))


def show_run(run: RunView) -> Shown:
    """Curves, success by distance and values, as far as the run has them."""
    return show_curves(run) + show_success(run) + show_values(run)


def show_curves(run: RunView) -> Shown:
    """The metrics of a run and of its stages."""
    return Shown(report.curves(run))


def show_success(run: RunView) -> Shown:
    """How often the goal was reached, by the length of the shortest path."""
    return Shown(report.success(run.newest("episodes")[1]))


def show_values(run: RunView) -> Shown:
    """The critic's values beside the exact ones, and what a value model says of each move."""
    values, told = run.newest("values")[1], run.newest("completion_values")[1]
    return Shown(
        report.state_values(values, run.picture) + report.completion_values(told, run.picture)
    )


def show_trajectory(trajectory: Trajectory, run: RunView) -> Shown:
    """One episode: drawn as its world draws it, valued by the critic of the run."""
    return _drawn([trajectory], run)


def show_trajectories(run: RunView, count: int = 4) -> Shown:
    """Some episodes of a run, failures first and at most half of them."""
    return _drawn(report.sample_episodes(run.newest("trajectories")[1], count), run)


def show_pairs(run: RunView, count: int = report.NUM_PAIRS) -> Shown:
    """The margins of all pairs of a run, and some of the pairs."""
    return Shown(report.pair_table(run.newest("pairs")[1], count))


def _drawn(trajectories: Sequence[Trajectory], run: RunView) -> Shown:
    values, told = run.newest("values")[1], run.newest("completion_values")[1]
    return Shown(report.rollouts(trajectories, run.picture, values, told))
