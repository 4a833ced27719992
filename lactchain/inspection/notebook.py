"""Looking into runs from a notebook: the explorer of `report.html`, in a frame of its own.

run = open_run("runs/quickstart")
run                                      # the explorer
explore(run, screen="pairs")             # the same, open on another screen
explore(run, beside=["runs/other"])      # two runs, side by side
"""

from collections.abc import Sequence
from pathlib import Path

from lactchain.inspection import report
from lactchain.inspection.run_view import RunView
from lactchain.inspection.run_view import open_run as open_run


class Explorer:
    """A page that a notebook displays."""

    def __init__(self, page: str, height: int) -> None:
        self.page, self.height = page, height

    def _repr_html_(self) -> str:
        return report.framed(self.page, self.height)


def explore(
    run: RunView | str | Path,
    screen: str = "summary",
    beside: Sequence[str | Path] = (),
    height: int = 760,
) -> Explorer:
    """The explorer of a run, with others `beside` it.

    Args:
        screen: the one of `report.SCREENS` that it opens on.
        height: of the frame, in pixels.
    """
    view = run if isinstance(run, RunView) else open_run(run)
    return Explorer(report.render(view, [open_run(other) for other in beside], screen), height)
