"""What is under way: one live line at the foot of a terminal, elsewhere a line each minute.

Whoever works for a while says so by `under_way`, and counts:

    with under_way("rollouts", 12) as step:
        for shard in shards:
            ...
            step.at(step.done + 1)

The line shows all steps that are under way, the outer ones first: `round 3/14 · Critic · training
120/240 · success .88 · at most 3 min left`.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from rich.live import Live
from rich.text import Text

from lactchain.runs.console import console, plain

FRAMES_PER_SECOND = 4
SECONDS_BETWEEN_LINES = 60.0
"""How often a log is told, which shows no live line."""

SECONDS_TO_TELL = 3.0
"""How long a step has to be under way before it is said how much longer it takes."""


@dataclass(eq=False)
class Step:
    """A piece of work under way.

    Attributes:
        label: what the line calls it.
        total: how many parts it has; None: nobody knows.
        most: whether it may be over before all of its parts are done.
        done: how many of them are done.
        note: a figure that is worth a look meanwhile.
    """

    label: str
    total: int | None = None
    most: bool = False
    done: float = 0
    note: str = ""
    _since: tuple[float, float] = field(default_factory=lambda: (0, time.monotonic()))
    _last: float = field(default_factory=time.monotonic)

    def at(self, done: float) -> None:
        """So much is done now, which a log is told now and then."""
        global _told
        self.done, self._last = done, time.monotonic()
        if self._last - _told >= SECONDS_BETWEEN_LINES and _steps and not is_watched():
            _told = self._last
            console.print(plain(live_line()), soft_wrap=True)

    def resumed(self, done: float) -> None:
        """So much was done before, so that it tells nothing of how long the rest takes."""
        self.at(done)
        self._since = done, self._last

    def seconds_left(self) -> float | None:
        """How long the rest takes at the pace so far; None where nothing tells."""
        first, began = self._since
        if self.total is None or self.done <= first or self._last - began < SECONDS_TO_TELL:
            return None
        rest = (self._last - began) / (self.done - first) * (self.total - self.done)
        return max(rest - (time.monotonic() - self._last), 0.0)

    def __str__(self) -> str:
        """The step as the line shows it."""
        if self.total is None:
            return self.label
        # A part is said to be under way; of many parts only how many are done matters.
        shown = min(self.done + 1, self.total) if self.most else self.done
        return f"{self.label} {shown:,.0f}/{self.total:,}"


_steps: list[Step] = []
_told = 0.0
"""When a log was told last, or the outermost step began."""


def nothing_under_way() -> bool:
    """Whether no step is: what is done now was asked for by a person, not by an outer stage."""
    return not _steps


@contextmanager
def under_way(label: str, total: int | None = None, most: bool = False) -> Iterator[Step]:
    """A step, on the line for as long as the block lasts; see `Step`."""
    global _told
    step, is_first = Step(label, total, most), nothing_under_way()
    line = _LiveLine() if is_first and is_watched() else nullcontext()
    _told = time.monotonic() if is_first else _told
    _steps.append(step)
    try:
        with line:
            yield step
    finally:
        _steps.remove(step)


def live_line() -> str:
    """The line as it is now: the time is that of the outermost step of which it can be told."""
    steps = [step for step in _steps if step.label]
    notes = [step.note for step in steps if step.note]
    known = [(step, seconds) for step in _steps if (seconds := step.seconds_left()) is not None]
    times = [f"{'at most' if s.most else 'about'} {_said(seconds)} left" for s, seconds in known]
    return " · ".join([*map(str, steps), *notes, *times[:1]])


def is_watched() -> bool:
    """Whether there is a terminal for the line."""
    return console.file.isatty() and not (console.quiet or console.is_dumb_terminal)


class _LiveLine(Live):
    def __init__(self) -> None:
        super().__init__(
            console=console,
            get_renderable=lambda: Text(
                plain(live_line()).plain, no_wrap=True, overflow="ellipsis"
            ),
            refresh_per_second=FRAMES_PER_SECOND,
            transient=True,
            redirect_stderr=sys.stderr.isatty(),
        )

    def start(self, refresh: bool = False) -> None:
        """Starts at once; the cursor stays, since nobody would bring it back after a kill."""
        super().start(refresh=True)
        self.console.show_cursor(True)


def _said(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
