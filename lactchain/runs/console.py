"""The console: short tables for people, and one live line at the foot of a terminal.

Text that a model wrote is never taken for markup. Whoever works for a while says so by `under_way`,
and counts:

    with under_way("rollouts", 12) as step:
        for shard in shards:
            ...
            step.at(step.done + 1)

The line shows all steps that are under way, the outer ones first: `round 3/14 · Critic · training
120/240 · at most 3 min left · success .88`. Elsewhere than on a terminal it is a line each minute.
"""

import logging
import os
import sys
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

console = Console(highlight=False)
MOST_SHOWN = 2000
"""Characters of a line on the console: what is wrong may hold a whole file."""
LONGEST_WORD = 8  # a table breaks longer ones before headings and numbers
LONGEST_NAME = 32
"""Characters of a name, in the first column of a table, up to which it is kept in one piece."""
FRAMES_PER_SECOND = 4
SECONDS_BETWEEN_LINES = 60.0
"""How often a log is told, which shows no live line."""
SECONDS_TO_TELL = 3.0
"""How long a step has to be under way before it is said how much longer it takes."""


class Unfailing:
    """A stream that loses what it cannot write: on a full disk, or behind a reader that has gone.

    The console is for people; the work goes on without them.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes what can be written."""
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Hands it on, as far as that can be done."""
        with suppress(OSError, ValueError):
            self._stream.flush()

    def close(self) -> None:
        """Nothing: a world may not take the console away."""

    def close_quietly(self) -> None:
        """Leaves nothing that Python would fail to write when the process ends."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def guard_streams() -> None:
    """Puts an `Unfailing` in the place of stdout and stderr, where nobody else has put another."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):
            if hasattr(stream, "reconfigure"):  # letters that a console does not have show escaped
                stream.reconfigure(errors="backslashreplace")
            setattr(sys, name, Unfailing(stream))


def leave_streams() -> None:
    """What is left of the console when a process ends."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Unfailing):
            stream.close_quietly()


def tell(line: str) -> None:
    """Writes a line to stderr at once, whatever holds the console: for signals and for threads."""
    with suppress(OSError):
        os.write(2, one_line(line).encode() + b"\n")


def one_line(text: str) -> str:
    """What a line on the console shows of a text: no control characters, and no more than fits."""
    more = f" ... ({len(text) - MOST_SHOWN:,} characters more)" if len(text) > MOST_SHOWN else ""
    return plain(text[:MOST_SHOWN]).plain + more


def plain(text: str) -> Text:
    """Text to print letter for letter; control characters and lone surrogates show escaped."""
    hidden = {"Cc", "Cf", "Cs"}
    shown = (
        c if c in "\n\t" or unicodedata.category(c) not in hidden else ascii(c)[1:-1] for c in text
    )
    return Text("".join(shown))


def figures(title: str, values: Mapping[str, Any]) -> None:
    """Prints names and values, one a line, but nothing of None, nor of values within values."""
    hidden = Mapping | list | tuple | None
    known = [(name, value) for name, value in values.items() if not isinstance(value, hidden)]
    if known:
        table(title, [{"figure": name, "value": value} for name, value in known])


class GrowingTable:
    """A table that people watch grow: a line for each row, as soon as it is known."""

    def __init__(self) -> None:
        self._widths: list[int] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """Prints a row, under the keys of the first one; the last column may be of any width."""
        cells = [cell(value) for value in row.values()]
        if not self._widths:
            widths = zip(map(len, row), map(len, cells), strict=True)
            self._widths = [max(*pair, 7) for pair in widths]
            if isinstance([*row.values()][-1], str):  # notes need no room before them
                self._widths[-1] = 0
            self._print(list(row))
        self._print(cells)

    def _print(self, cells: Sequence[str]) -> None:
        placed = [cell.rjust(width) for cell, width in zip(cells, self._widths, strict=True)]
        console.print(plain("  ".join(placed).rstrip()), soft_wrap=True)


def cell(value: Any) -> str:
    """A value in a table; floats with four significant digits, nothing for None and NaN."""
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class LogLines(logging.StreamHandler):
    """Log lines on stderr; above the live line, where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes to what stderr is now: a live line puts itself in its place."""
        self.stream = sys.stderr
        super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        """The line; names of files and of models, which it may hold, are anybody's."""
        return one_line(super().format(record))


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints rows under the keys of the first one; floats with four significant digits."""
    printed = Table(title=plain(title), title_justify="left")
    cells = [[cell(value) for value in row.values()] for row in rows]
    words = [" ".join(column).split() for column in zip_longest(rows[0], *cells, fillvalue="")]
    whole = [max((len(w) for w in some if len(w) <= LONGEST_WORD), default=1) for some in words]
    room = console.width - 1 - 3 * len(whole) - sum(whole[1:])  # of the first column
    keeps_words = whole[0] <= room  # else rich would cut the table
    longest = max(len(text) for text in (next(iter(rows[0])), *(row[0] for row in cells)))
    keeps_names = longest <= (min(room, LONGEST_NAME) if keeps_words else LONGEST_NAME)
    for number, (key, width) in enumerate(zip(rows[0], whole, strict=True)):
        how = {"no_wrap": keeps_names and number == 0, "min_width": width if keeps_words else None}
        printed.add_column(plain(key), overflow="fold", **how)
    for row in cells:
        printed.add_row(*map(plain, row))
    console.print(printed)


# --- what is under way ----------------------------------------------------------------------------


@dataclass(eq=False)
class Step:
    """A piece of work under way."""

    label: str  # what the line calls it
    total: int | None = None  # how many parts it has; None: nobody knows
    most: bool = False  # whether it may be over before all of its parts are done
    done: float = 0  # how many of them are done
    note: str = ""  # a figure that is worth a look meanwhile
    _since: tuple[float, float] = field(default_factory=lambda: (0, time.monotonic()))
    _last: float = field(default_factory=time.monotonic)

    def at(self, done: float) -> None:
        """So much is done now, which a log is told now and then."""
        global _last_line
        self.done, self._last = done, time.monotonic()
        if self._last - _last_line >= SECONDS_BETWEEN_LINES and _steps and not is_watched():
            _last_line = self._last
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
_last_line = 0.0
"""When a log was told last, or the outermost step began."""


def nothing_under_way() -> bool:
    """Whether no step is: what is done now was asked for by a person, not by an outer stage."""
    return not _steps


@contextmanager
def under_way(label: str, total: int | None = None, most: bool = False) -> Iterator[Step]:
    """A step, on the line for as long as the block lasts; see `Step`."""
    global _last_line
    step, is_first = Step(label, total, most), nothing_under_way()
    line = _LiveLine() if is_first and is_watched() else nullcontext()
    _last_line = time.monotonic() if is_first else _last_line
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
    times = [f"{'at most' if s.most else 'about'} {_text(seconds)} left" for s, seconds in known]
    return " · ".join([*map(str, steps), *times[:1], *notes])  # a narrow console cuts the end


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


def _text(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
