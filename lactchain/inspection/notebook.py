"""Looking into runs from a notebook: all of this displays itself, escaped, without scripts.

run = open_run("runs/quickstart")
run                                      # what is there
show_run(run)                            # curves, success by distance, values
show_trajectory(run.trajectories[0], run)
show_pairs(run)
"""

from lactchain.inspection import report, values
from lactchain.inspection.markup import Markup, join
from lactchain.inspection.run_view import RunView, open_run
from lactchain.types import Trajectory

__all__ = [
    "RunView",
    "open_run",
    "show_curves",
    "show_pairs",
    "show_run",
    "show_success",
    "show_trajectories",
    "show_trajectory",
    "show_values",
]


def show_run(run: RunView) -> Markup:
    """Curves, success by distance and values, as far as the run has them."""
    return join((show_curves(run), show_success(run), show_values(run)))


def show_curves(run: RunView) -> Markup:
    """The metrics of a run and of its stages."""
    return report.curves(run)


def show_success(run: RunView) -> Markup:
    """How often the goal was reached, by the length of the shortest path."""
    return report.success(run.newest("episodes")[1])


def show_values(run: RunView) -> Markup:
    """The critic's values beside the exact ones, and what a value model says of each move."""
    told = values.answer_values(run.newest("answer_values")[1], run.picture)
    return join((values.state_values(run.newest("values")[1], run.picture), told))


def show_trajectory(trajectory: Trajectory, run: RunView) -> Markup:
    """One episode: drawn as its world draws it, valued by the critic of the run."""
    of_states, of_answers = run.newest("values")[1], run.newest("answer_values")[1]
    return report.episode_card(trajectory, run.picture, of_states, of_answers)


def show_trajectories(run: RunView, count: int = 4) -> Markup:
    """Some episodes of a run, failures first and at most half of them."""
    episodes = report.sample_episodes(run.newest("trajectories")[1], count)
    return join(show_trajectory(episode, run) for episode in episodes)


def show_pairs(run: RunView, count: int = report.NUM_PAIRS) -> Markup:
    """The margins of all pairs of a run, and some of the pairs."""
    return report.pair_table(run.newest("pairs")[1], count)
