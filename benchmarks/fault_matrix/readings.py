"""What a completion means, read a second time: by the `json` module and by lines, not by patterns.

Each reading gives the words of the chain and its span, or None where there is no chain.
"""

import json
from collections.abc import Callable

FENCE = "```"
Reading = tuple[list[str], tuple[int, int]]
Read = Callable[[str], Reading | None]


def json_list(text: str) -> Reading | None:
    """A JSON list of strings that ends the text, or ends its fenced block."""
    found, span = _json_value(text, "[")
    is_list = isinstance(found, list) and all(isinstance(word, str) for word in found)
    return (found, span) if is_list and _ends(text, *span) else None


def json_object(text: str) -> Reading | None:
    """A JSON object with `moves`, and `explain` or not, each once."""
    pairs, span = _json_value(text, "{")
    if not isinstance(pairs, _Pairs) or not _ends(text, *span):
        return None
    keys = sorted(key for key, _ in pairs)
    if keys not in (["moves"], ["explain", "moves"]):
        return None
    values = dict(pairs)
    moves, explain = values["moves"], values.get("explain", "")
    # A list of pairs is an object within.
    is_list = isinstance(moves, list) and not isinstance(moves, _Pairs)
    if not is_list or not all(isinstance(part, str) for part in [*moves, explain]):
        return None
    return moves, span


def code_lines(text: str) -> Reading | None:
    """The lines of a fenced block that ends the text."""
    found = code(text)
    return found and (found[0][0].split("\n"), found[1])


def code(text: str) -> Reading | None:
    """The content of a fenced block that ends the text."""
    start = text.find(FENCE)
    first, newline, body = text[start:].partition("\n")
    language = first.removeprefix(FENCE).strip()
    if start < 0 or not newline or (language and not language.isidentifier()):
        return None
    content, close, behind = f"\n{body}".partition(f"\n{FENCE}")
    if not close or behind.strip() or not content.strip():
        return None
    return [content[1:]], (start, len(text) - len(behind))


def utterance(text: str) -> Reading:
    """The text itself, without one line break at its end."""
    said = text[:-1] if text[-1:] == "\n" else text
    return [said], (0, len(said))


class _Pairs(list):
    """An object of JSON."""


_DECODER = json.JSONDecoder(object_pairs_hook=_Pairs)


def _json_value(text: str, opening: str) -> tuple[object, tuple[int, int]]:
    start = text.find(opening)
    if start < 0:
        return None, (0, 0)
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, (0, 0)
    return value, (start, end)


def _ends(text: str, start: int, end: int) -> bool:
    """Whether the text ends here, but for white space and the fence of a block that holds it."""
    lines = text[:start].rstrip().split("\n")
    in_block = lines[-1].strip() in (FENCE, f"{FENCE}json")
    return text[end:].strip() == (FENCE if in_block else "")
