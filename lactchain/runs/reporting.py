"""What shows a run beside its own files, a page and trackers such as wandb: none holds it up."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lactchain import plugins

LIVE_SHARE = 0.02
"""What the page may cost of a run's time: where it costs more, it tells the stage alone."""
log = logging.getLogger(__name__)


def write_page(run_dir: str | Path, under_way: str = "", anew: bool = True) -> None:
    """Draws a run, or mends what a page tells of how far it is; failing costs a warning."""
    try:
        plugins.call("page", run_dir, under_way=under_way, anew=anew)
    except Exception as error:  # noqa: BLE001  - of whatever kind: the run is no part of it
        log.warning("%s: the page is left as it was: %s", run_dir, error)


class LivePage:
    """The page of a run under way, written when a stage begins: anew, while that costs little."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self._began, self._spent = run_dir, time.perf_counter(), 0.0

    def begin(self, stage: str) -> None:
        """Shows what there is so far, and that a stage is under way."""
        start = time.perf_counter()
        is_cheap = self._spent <= LIVE_SHARE * (start - self._began)
        write_page(self._run_dir, under_way=stage, anew=is_cheap)
        self._spent += time.perf_counter() - start


class OptionalTracker:
    """Hands calls on to a tracker until one of them fails.

    Args:
        make: makes the tracker, which may fail too.
        name: what the warning calls it.
    """

    def __init__(self, make: Callable[[], Any], name: str) -> None:
        self._name = name
        self._tracker = self._try(make)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._try(
            lambda: getattr(self._tracker, name)(*args, **kwargs)
        )

    def _try(self, call: Callable[[], Any]) -> Any:
        if vars(self).get("_tracker", call) is None:
            return None
        try:
            return call()
        except Exception as error:  # noqa: BLE001  - of whatever kind: it is no part of the run
            log.warning(
                "%s failed (%s: %s): the run goes on without it, and metrics.jsonl has all figures",
                *(self._name, type(error).__name__, error),
            )
            self._tracker = None
            return None
