"""The explorer of `report.html` in a notebook: in a frame, and its tables for pandas.

explore("runs/quickstart")
explore(run, screen="pairs")             # open on another screen
explore(run, beside=["runs/other"])      # two runs, side by side
frames("runs/quickstart")["answers"]
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lactchain.inspection.run_view import RunView, open_run
from lactchain_extras.explorer.contents import contents
from lactchain_extras.explorer.report import render
from lactchain_extras.explorer.tables import as_utf8

FRAME = (
    '<iframe srcdoc="{}" sandbox="allow-scripts" style="width: 100%; height: {}px; border: 0"'
    ' title="a run"></iframe>'
)


@dataclass(frozen=True)
class Explorer:
    """A page that a notebook displays, within a frame: it reaches nothing outside of that."""

    page: str
    height: int

    def _repr_html_(self) -> str:
        return FRAME.format(html.escape(self.page), self.height)


def explore(
    run: RunView | str | Path,
    screen: str = "summary",
    beside: Sequence[str | Path] = (),
    height: int = 760,
) -> Explorer:
    """The explorer of a run, others `beside` it, open on one of `report.SCREENS`."""
    return Explorer(render(open_run(run), [open_run(other) for other in beside], screen), height)


def frames(run: RunView | str | Path) -> dict[str, Any]:
    """The tables of the explorer as pandas data frames, by their names.

    `state`, `start_state` and `end_state` are rows of the frame `states`. Half a surrogate pair,
    which a frame cannot hold, stands as its number.
    """
    import pandas

    return {
        name: pandas.DataFrame({key: list(map(as_utf8, values)) for key, values in table.items()})
        for name, table in contents(open_run(run)).tables.items()
    }
