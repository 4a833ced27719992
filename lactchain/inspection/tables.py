"""Tables as a page holds them: columns as JSON, compressed, as text that no HTML can break.

A column is a list, or, where its values repeat, their list under `words` and a number for each row
under `codes`. Numbers keep six significant digits; what is not finite is null.
"""

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

Columns = Mapping[str, Sequence[Any]]


def pack(columns: Columns) -> str:
    """A table as base64 of compressed JSON, the same text for the same table."""
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns: expected columns of one length, got {lengths}")
    content = {name: _column(values) for name, values in columns.items()}
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def unpack(text: str) -> dict[str, list[Any]]:
    """The columns of a packed table."""
    content = json.loads(gzip.decompress(base64.b64decode(text)))
    return {name: _values(column) for name, column in content.items()}


def as_columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, list[Any]]:
    """Rows as columns of these names; None where a row has no such entry."""
    return {name: [row.get(name) for row in rows] for name in names}


def _column(values: Sequence[Any]) -> list[Any] | dict[str, list[Any]]:
    if all(type(value) is int for value in values):
        return list(values)
    keys = [repr(value) if isinstance(value, list | tuple) else value for value in values]
    words = dict(zip(keys, values, strict=True))
    if 2 * len(words) > len(values):
        return [_plain(value) for value in values]
    numbers = {key: number for number, key in enumerate(words)}
    return {
        "words": [_plain(value) for value in words.values()],
        "codes": [numbers[key] for key in keys],
    }


def _values(column: list[Any] | dict[str, list[Any]]) -> list[Any]:
    if isinstance(column, list):
        return column
    return [column["words"][code] for code in column["codes"]]


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value
