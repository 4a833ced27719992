"""HTML that cannot be broken out of: whatever is not `Markup` already is escaped.

Control characters and lone surrogates, which HTML cannot hold, show as backslash escapes.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lactchain.console import plain

# Nothing may run and nothing may be fetched: styles and pictures are in the page itself.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


class Markup(str):
    """Text that is HTML already; a notebook displays it."""

    def _repr_html_(self) -> str:
        return element("div", STYLE, self, class_="lactchain")


def escape(value: object) -> Markup:
    """A value as HTML: numbers with four digits, `Markup` as it is, anything else as its text."""
    if isinstance(value, Markup):
        return value
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return Markup("–")
    if isinstance(value, float):
        return Markup(f"{value:.4g}".replace("-", "−"))
    return Markup(html.escape(plain(str(value)).plain))


def element(name: str, *content: object, **attributes: object) -> Markup:
    """An HTML or SVG element; `class_` and `text_anchor` give class and text-anchor."""
    opening = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{opening}>{join(content)}</{name}>")


def join(parts: Iterable[object]) -> Markup:
    """Parts one after another."""
    return Markup("".join(map(escape, parts)))


def table(headers: Sequence[object], rows: Iterable[Sequence[object]]) -> Markup:
    """A table; columns of numbers are set to the right."""
    rows = list(rows)
    classes = [
        "number" if all(_is_number(value) for value in column) else None
        for column in zip(*rows, strict=True)
    ] or [None] * len(headers)

    def line(tag: str, values: Sequence[object]) -> Markup:
        cells = zip(values, classes, strict=True)
        return element("tr", *(element(tag, value, class_=kind) for value, kind in cells))

    body = element("tbody", *(line("td", row) for row in rows))
    return element("table", element("thead", line("th", headers)), body)


def fields(values: Mapping[str, Any]) -> Markup:
    """A table of names and values."""
    rows = (element("tr", element("th", name), element("td", v)) for name, v in values.items())
    return element("table", *rows, class_="fields")


def details(summary: object, *content: object, is_open: bool = False) -> Markup:
    """Content that folds away under a line."""
    return element(
        "details", element("summary", summary), *content, open="open" if is_open else None
    )


def gallery(pictures: Iterable[Markup]) -> Markup:
    """Pictures side by side."""
    return element("div", *pictures, class_="gallery")


def page(title: str, *content: object) -> str:
    """A whole page that needs nothing but itself."""
    policy = f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">'
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{policy}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>{STYLE}</head>\n"
        f'<body class="lactchain page">{join(content)}</body></html>\n'
    )


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


# Everything under one class, so that a notebook that shows a piece keeps its own looks.
STYLE = Markup(
    """<style>
.lactchain { color-scheme: light; color: #1f2933; background: #fff; padding: 4px;
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", sans-serif;
  &.page { max-width: 1120px; margin: 0 auto; padding: 24px; }
  h1 { font-size: 24px; margin: 0 0 4px; }
  h2 { font-size: 18px; margin: 36px 0 8px; padding-bottom: 4px; border-bottom: 1px solid #d9e2ec; }
  h3 { font-size: 15px; margin: 20px 0 6px; }
  p { margin: 6px 0; max-width: 80ch; }
  table { border-collapse: collapse; margin: 8px 0; }
  th, td { text-align: left; vertical-align: top; padding: 3px 10px; background: #fff;
    border-bottom: 1px solid #e4e7eb; color: #1f2933; }
  thead th { border-bottom: 2px solid #9fb3c8; font-weight: 600; }
  .fields th { font-weight: 400; color: #486581; }
  .number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
  code, pre { font: 12.5px/1.4 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
  pre, code.text { white-space: pre-wrap; overflow-wrap: anywhere; color: #1f2933; }
  pre { background: #f5f7fa; padding: 8px 10px; margin: 6px 0; max-height: 320px; overflow: auto; }
  details { margin: 8px 0; }
  summary { cursor: pointer; color: #334e68; }
  .gallery { display: flex; flex-wrap: wrap; gap: 12px 20px; align-items: flex-start; }
  .beside { display: flex; gap: 20px; align-items: flex-start; }
  .beside > svg { flex: none; }
  .card { border: 1px solid #d9e2ec; border-radius: 6px; padding: 10px 14px; margin: 10px 0; }
  .muted { color: #627d98; }
  .good { color: #147d64; font-weight: 600; }
  .bad { color: #ba2525; font-weight: 600; }
  svg { display: block; max-width: 100%; height: auto; }
  svg text { font-family: system-ui, sans-serif; }
}
</style>"""
)
