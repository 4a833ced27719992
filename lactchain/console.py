"""The console: short tables for people. Text that a model wrote is never taken for markup."""

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
        cells = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values())
        printed.add_row(*(plain(cell) for cell in cells))
    console.print(printed)
