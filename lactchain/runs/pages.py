"""The page of a run, drawn by whatever add-on draws one; a run is never held up by it."""

import logging
import time
from pathlib import Path

from lactchain import plugins

LIVE_SHARE = 0.02
"""What the page may cost of a run's time: where it costs more, it is left as it was for a while."""
log = logging.getLogger(__name__)


def write_page(run_dir: str | Path, under_way: str = "") -> None:
    """Draws a run; a page that cannot be drawn or written costs a warning."""
    try:
        plugins.call("page", run_dir, under_way=under_way)
    except Exception as error:  # noqa: BLE001  - of whatever kind: the run is no part of it
        log.warning("%s: the page is left as it was: %s", run_dir, error)


class LivePage:
    """The page of a run under way: written anew when a stage begins, while that costs little."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self._began, self._spent = run_dir, time.perf_counter(), 0.0

    def begin(self, stage: str) -> None:
        """Shows what there is so far, and that a stage is under way."""
        start = time.perf_counter()
        if self._spent <= LIVE_SHARE * (start - self._began):
            write_page(self._run_dir, under_way=stage)
            self._spent += time.perf_counter() - start
