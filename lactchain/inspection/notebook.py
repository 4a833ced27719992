"""Looking into runs from a notebook: the explorer of `report.html`, in a frame of its own.

run = open_run("runs/quickstart")
run                                      # the explorer
explore(run, screen="pairs")             # the same, open on another screen
explore(run, beside=["runs/other"])      # two runs, side by side
frames(run)["answers"]                   # what it shows, for pandas
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lactchain.inspection import report
from lactchain.inspection.contents import contents
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


def frames(run: RunView | str | Path) -> dict[str, Any]:
    """The tables of the explorer as pandas data frames, by their names.

    `state`, `start_state` and `end_state` are rows of the frame `states`. Half a surrogate pair,
    which a frame cannot hold, stands as its number.
    """
    import pandas

    view = run if isinstance(run, RunView) else open_run(run)
    return {
        name: pandas.DataFrame({key: list(map(_as_utf8, values)) for key, values in table.items()})
        for name, table in contents(view).tables.items()
    }


def _as_utf8(value: Any) -> Any:
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
