"""The console: short tables for people. Text that a model wrote is never taken for markup."""

import logging
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

console = Console(highlight=False)


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


def show_state(env: Any, observation: str) -> None:
    """Prints the state of a language environment: its drawing, where it has one, and its text."""
    console.rule()
    if env.env.render_mode == "ansi":
        console.print(Text.from_ansi(env.env.render()))
    console.print(plain(observation), soft_wrap=True)


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints rows under the keys of the first one; floats with four significant digits."""
    printed = Table(title=plain(title), title_justify="left")
    for key in rows[0]:
        printed.add_column(plain(key))
    for row in rows:
        printed.add_row(*(plain(cell(value)) for value in row.values()))
    console.print(printed)
