"""Trackers beside metrics.jsonl, such as wandb's: one that fails costs a warning, and no run."""

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)


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
