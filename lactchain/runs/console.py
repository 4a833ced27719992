"""The console: short tables for people. Text that a model wrote is never taken for markup."""

import logging
import os
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

console = Console(highlight=False)
MOST_SHOWN = 2000
"""Characters of a line on the console: what is wrong may hold a whole file."""


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
    """Prints names and values, one a line; values within values are left out."""
    plain_values = {k: v for k, v in values.items() if not isinstance(v, Mapping | list | tuple)}
    table(title, [{"figure": name, "value": value} for name, value in plain_values.items()])


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
    for key in rows[0]:
        printed.add_column(plain(key), overflow="fold")
    for row in rows:
        printed.add_row(*(plain(cell(value)) for value in row.values()))
    console.print(printed)
