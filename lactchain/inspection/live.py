"""The page of a run that goes on: written anew when a stage begins, as far as that costs little."""

import time
from pathlib import Path

from lactchain.inspection.report import write_report

SHARE = 0.02
"""What the page may cost of a run's time: where it costs more, it is left as it was for a while."""


class LivePage:
    """`report.html` in the folder of a run under way."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self._began, self._spent = run_dir, time.perf_counter(), 0.0

    def begin(self, stage: str) -> None:
        """Shows what there is so far, and that a stage is under way.

        Raises:
            DiskError: the page cannot be written.
        """
        start = time.perf_counter()
        if self._spent <= SHARE * (start - self._began):
            write_report(self._run_dir, under_way=stage)
            self._spent += time.perf_counter() - start
