"""From the text of a completion to a chain of actions, or to a reason why there is none.

Text from a model is hostile input, so `parse` is total: it never raises, and its time is linear
in the length of the text. Prose may stand before the chain, but the first opening character (a
bracket, a brace, a fence) opens it, and nothing but white space may follow it. So there is never a
choice between two chains, and an illegal chain is never mended with legal words found elsewhere: an
    action is played only if it stands, letter for letter, inside the accepted span.

Each extractor states the grammar it reads; constrained decoding samples from that same grammar.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from lactchain.types import ChainGrammar

Reason = Literal[
    "no_answer",  # nothing in the text opens a chain
    "malformed",  # it opens one, but what follows is not of the format
    "duplicate_key",  # the object says the same thing twice
    "not_terminal",  # text, or another chain, follows the chain
    "empty",  # a chain without actions
    "too_long",  # more actions than a chain may have
    "illegal_action",  # something that is not the name of an action
]


@dataclass(frozen=True)
class Chain:
    """A legal chain, as it was read from a completion.

    Attributes:
        actions: action numbers, at least one; empty where actions have no names.
        span: start and end of the chain in the text.
        utterances: the actions as they were said, where they have no names: any text is one then.
    """

    actions: tuple[int, ...]
    span: tuple[int, int]
    utterances: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rejection:
    """A refused completion: a stable reason code for counting, a detail for reading."""

    reason: Reason
    detail: str = ""


# JSON's own white space and strings (RFC 8259). Loops are unrolled so that a failing match
# costs one pass.
_SPACE = r"[ \t\r\n]*"
_PLAIN = r'[^"\\\x00-\x1f]*'
_STRING = rf'"({_PLAIN}(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{{4}}){_PLAIN})*)"'
_TEXT = re.compile(_STRING)
_ITEM = re.compile(rf"{_SPACE}{_STRING}{_SPACE}([,\]])")
_EMPTY_LIST = re.compile(rf"\[{_SPACE}\]")
_KEY = re.compile(rf'{_SPACE}"(explain|moves)"{_SPACE}:{_SPACE}')
_AFTER_VALUE = re.compile(rf"{_SPACE}([,}}])")
_FENCE = "```"
LONGEST_NAME = 1000
"""Characters of an action's name: the grammar of constrained decoding has a state for each."""
_UNSPEAKABLE = re.compile(rf'["\\\x00-\x1f\ud800-\udfff]|{_FENCE}|.{{{LONGEST_NAME + 1}}}')


class Extractor(ABC):
    """Reads completions of one format; a subclass knows which.

    It accepts all those of its `grammar`, which constrained decoding may produce.
    """

    _opening: str
    _separator: str
    _closing: str

    def __init__(self, action_names: Sequence[str], max_chain_length: int) -> None:
        self._numbers: dict[str, int] = {}
        for number, name in enumerate(action_names):
            if _UNSPEAKABLE.search(name) or name != name.strip() or not name:
                raise ValueError(
                    f"action_names: expected words of at most {LONGEST_NAME} characters without"
                    " quotes, backslashes, control characters, halves of characters, fences and"
                    f" outer spaces, got {name[:LONGEST_NAME]!r}"
                )
            if self._numbers.setdefault(name, number) != number:
                raise ValueError(f"action_names: expected each name once, got {name!r} twice")
        self.grammar = ChainGrammar(
            tuple(action_names), max_chain_length, self._opening, self._separator, self._closing
        )

    @abstractmethod
    def parse(self, text: str) -> Chain | Rejection:
        """The chain that the text holds, or why there is none."""

    def _chain(self, said: Sequence[str], span: tuple[int, int]) -> Chain | Rejection:
        """The chain of these actions, if they are a legal one."""
        longest = self.grammar.max_chain_length
        if not said:
            return Rejection("empty", "expected at least one action")
        if len(said) > longest:
            return Rejection("too_long", f"expected at most {longest} actions, got {len(said)}")
        if not self._numbers:
            return Chain((), span, tuple(said))
        actions = tuple(map(self._numbers.get, said))
        if None in actions:
            return Rejection("illegal_action", f"{said[actions.index(None)][:40]!r}")
        return Chain(actions, span)


class JsonList(Extractor):
    """A JSON list of action names at the end of the text: `["move forward", "turn left"]`.

    The list may stand in a fenced block. Names are read literally: a name spelled with escapes is
    illegal. Where actions have no names, any strings are actions.
    """

    _opening, _separator, _closing = '["', '", "', '"]'
    _bracket, _kind, _content = "[", "list", "list of strings"

    def parse(self, text: str) -> Chain | Rejection:
        """The chain that the text holds, or why there is none."""
        start = text.find(self._bracket)
        if start < 0:
            return Rejection("no_answer", f"expected a JSON {self._kind}")
        scanned = self._scan(text, start)
        if scanned is None:
            return Rejection("malformed", f"expected a JSON {self._content}")
        if isinstance(scanned, Rejection):
            return scanned
        strings, end = scanned
        if not _is_terminal(text, start, end):
            return Rejection("not_terminal", f"expected the {self._kind} (or its fence) at the end")
        if not self._numbers:
            strings = [json.loads(f'"{string}"') for string in strings]
        return self._chain(strings, (start, end))

    def _scan(self, text: str, start: int) -> tuple[list[str], int] | Rejection | None:
        """The strings of the list or object at `start`, undecoded, and where it ends."""
        return _scan_list(text, start)


class JsonObject(JsonList):
    """The founding format: `{"explain": "why", "moves": ["move forward"]}`.

    Keys come in any order, each at most once; `explain` may be left out, any other key is
    malformed. The object may stand in a fenced block.
    """

    _opening, _separator, _closing = '{"explain": "", "moves": ["', '", "', '"]}'
    _bracket, _kind, _content = "{", "object", 'object with "explain" and "moves"'

    def _scan(self, text: str, start: int) -> tuple[list[str], int] | Rejection | None:
        values: dict[str, list[str] | str] = {}
        position = start + 1
        while key := _KEY.match(text, position):
            name = key[1]
            if name in values:
                return Rejection("duplicate_key", name)
            scan = _scan_list if name == "moves" else _scan_string
            scanned = scan(text, key.end())
            if scanned is None:
                return None
            values[name], position = scanned
            after = _AFTER_VALUE.match(text, position)
            if after is None:
                return None
            position = after.end()
            if after[1] == "}":
                return (values["moves"], position) if "moves" in values else None
        return None


class CodeBlock(Extractor):
    """A fenced code block at the end of the text.

    With action names, each line of the block is one of them. Without, the code itself is the
    action, for environments that run it.
    """

    _opening, _separator, _closing = f"{_FENCE}\n", "\n", f"\n{_FENCE}"

    def parse(self, text: str) -> Chain | Rejection:
        """The chain, or the code, that the text holds, or why there is none."""
        start = text.find(_FENCE)
        if start < 0:
            return Rejection("no_answer", "expected a fenced code block")
        newline = text.find("\n", start)
        language = text[start + len(_FENCE) : newline].strip()
        close = text.find(f"\n{_FENCE}", newline) if newline >= 0 else -1
        if close < 0 or (language and not language.isidentifier()):
            return Rejection("malformed", "expected ``` (with a language, or none) and ``` lines")
        end = close + 1 + len(_FENCE)
        if text[end:].strip():
            return Rejection("not_terminal", "expected the block at the end")
        code = text[newline + 1 : close]
        if not code.strip():
            return Rejection("empty", "expected code")
        return self._chain(code.split("\n") if self._numbers else [code], (start, end))


class Utterance(Extractor):
    """The whole text is one action, ended by a line break, which may be missing: `move up`.

    Nothing may stand before or after it. Where actions have no names, any text is one. In a world
    that is lenient, `spelling` brings what was said into the letters of a name.
    """

    _opening, _separator, _closing = "", "", "\n"

    def __init__(self, action_names: Sequence[str], spelling: Callable[[str], str]) -> None:
        super().__init__(action_names, max_chain_length=1)
        self._spelling = spelling

    def parse(self, text: str) -> Chain | Rejection:
        """The single action that the text is, or why it is none."""
        said = text.removesuffix("\n")
        return self._chain([self._spelling(said) if self._numbers else said], (0, len(said)))


_EXTRACTORS = {"json_list": JsonList, "json_object": JsonObject, "code_block": CodeBlock}


def make_extractor(
    name: str,
    action_names: Sequence[str],
    max_chain_length: int = 9,
    spelling: Callable[[str], str] = str,
) -> Extractor:
    """The extractor of that name: json_list, json_object, code_block or utterance.

    Args:
        action_names: the actions; none: any text is one.
        max_chain_length: longest legal chain; an utterance is one action whatever is given.
        spelling: see `Utterance`; the other formats are read letter for letter.

    Raises:
        ValueError: there is no such extractor, or an action's name cannot stand in its format.
    """
    if name == "utterance":
        return Utterance(action_names, spelling)
    if name not in _EXTRACTORS:
        known = sorted([*_EXTRACTORS, "utterance"])
        raise ValueError(f"extractor: expected one of {known}, got {name!r}")
    return _EXTRACTORS[name](action_names, max_chain_length)


def _scan_list(text: str, start: int) -> tuple[list[str], int] | None:
    """The strings of the JSON list at `start`, undecoded, and where it ends; None if malformed."""
    if empty := _EMPTY_LIST.match(text, start):
        return [], empty.end()
    if not text.startswith("[", start):
        return None
    names: list[str] = []
    position = start + 1
    while item := _ITEM.match(text, position):
        names.append(item[1])
        position = item.end()
        if item[2] == "]":
            return names, position
    return None


def _scan_string(text: str, start: int) -> tuple[str, int] | None:
    """The JSON string at `start`, undecoded, and where it ends; None if malformed."""
    string = _TEXT.match(text, start)
    return (string[1], string.end()) if string else None


def _is_terminal(text: str, start: int, end: int) -> bool:
    """Whether only white space, or the closing fence of the chain's own block, follows `end`."""
    before = text[:start].rstrip()
    opener = before[before.rfind("\n") + 1 :].strip()
    expected = _FENCE if opener in (_FENCE, f"{_FENCE}json") else ""
    return text[end:].strip() == expected
