"""Looking into runs from a notebook: the tables of a run, as data frames.

run = open_run("runs/quickstart")
run                                      # the explorer, where an add-on has one
frames(run)["answers"]                   # what it shows, for pandas
"""

from pathlib import Path
from typing import Any

from lactchain.inspection.contents import contents
from lactchain.inspection.run_view import RunView, open_run


def frames(run: RunView | str | Path) -> dict[str, Any]:
    """The tables of the explorer as pandas data frames, by their names.

    `state`, `start_state` and `end_state` are rows of the frame `states`. Half a surrogate pair,
    which a frame cannot hold, stands as its number.
    """
    import pandas

    return {
        name: pandas.DataFrame({key: list(map(_as_utf8, values)) for key, values in table.items()})
        for name, table in contents(open_run(run)).tables.items()
    }


def _as_utf8(value: Any) -> Any:
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
