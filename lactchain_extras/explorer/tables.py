"""Tables as a page holds them: columns as JSON, compressed, as text that no HTML can break.

A column is a list, or, where its values repeat, their list under `words` and a number for each row
under `codes`. Numbers keep six significant digits; what is not finite is null.
"""

import base64
import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lactchain.environments.views import State

Row = Mapping[str, Any]
Columns = Mapping[str, Sequence[Any]]
COLUMNS = {
    "episodes": "run stage round number policy outcome terminated episode_return num_steps "
    "num_actions num_invalid num_bumps loop start_state end_state end_text",
    "steps": "state prompt completion tokens probabilities cut executed rewards reward bumped way "
    "invalid",
    "answers": "round state text completion tokens probabilities probability reward invalid way "
    "success num_actions return value q advantage optimal policy_value shortest",
    "candidates": "run round state completion tokens probabilities probability count reward q "
    "invalid chosen rejected",
    "pairs": "run stage round state prompt chosen rejected margin chosen_advantage "
    "rejected_advantage chosen_return rejected_return chosen_logprob rejected_logprob "
    "chosen_after rejected_after chosen_way rejected_way",
    "dropped": "stage round reason count",
    "results": "run round state success num_chains shortest",
    "values": "run round state value policy_value gamma discount_per",
    "tokens": "stage episode chosen return decision state prompt completion tokens q v reward",
    "curves": "run stage key steps values",
    "stages": "run stage state minutes summary",
    "members": "generation id parent mutation change fitness num_env_steps tunables",
    "states": "state agent marks group",
}
"""What the page's script reads, by table: each of a row's numbers, texts and lists."""


def as_columns(table: str, rows: Iterable[Row]) -> dict[str, list[Any]]:
    """Rows as the columns of a table; None where a row has no such entry."""
    rows = list(rows)
    return {name: [row.get(name) for row in rows] for name in COLUMNS[table].split()}


def key(state: State | None) -> str:
    """What a state is known by: its JSON text, the fields in the order of the alphabet."""
    return json.dumps(state, sort_keys=True)


def as_utf8(value: Any) -> Any:
    """Texts, in lists too, with half a surrogate pair as its number: no other table can hold it."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    return [as_utf8(part) for part in value] if isinstance(value, list | tuple) else value


def pack(columns: Columns) -> str:
    """A table as base64 of compressed JSON, the same text for the same table."""
    content = {name: _column(values) for name, values in columns.items()}
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _column(values: Sequence[Any]) -> list[Any] | dict[str, list[Any]]:
    if all(type(value) is int for value in values):
        return list(values)
    keys = [repr(value) if isinstance(value, list | tuple) else value for value in values]
    words = dict(zip(keys, values, strict=True))
    if 2 * len(words) > len(values):
        return [_plain(value) for value in values]
    numbers = {key: number for number, key in enumerate(words)}
    plain = [_plain(value) for value in words.values()]
    return {"words": plain, "codes": [numbers[key] for key in keys]}


def _plain(value: Any) -> Any:
    """A value as JSON has it; what is true or false as 1 or 0."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value
