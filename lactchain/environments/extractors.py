"""From the text of an answer to a chain of actions, or to a reason why there is none.

Text from a model is hostile input, so `parse` is total: it never raises, and its time is linear
in the length of the text. Prose may stand before the answer, but the first opening character (a
bracket, a brace, a fence) opens the answer, and nothing but white space may follow it. So there
is never a choice between two answers, and an illegal answer is never mended with legal words found
elsewhere: an action is played only if it stands, letter for letter, inside the accepted span.

Each extractor states the grammar it reads; constrained decoding samples from that same grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from lactchain.types import ChainGrammar

Reason = Literal[
    "no_answer",  # nothing in the text opens an answer
    "malformed",  # it opens one, but what follows is not of the format
    "duplicate_key",  # the object says the same thing twice
    "not_terminal",  # text, or another answer, follows the answer
    "empty",  # a chain without actions
    "too_long",  # more actions than a chain may have
    "illegal_action",  # something that is not the name of an action
]


@dataclass(frozen=True)
class Chain:
    """An accepted answer.

    Attributes:
        actions: action numbers, at least one; empty where actions have no names.
        span: start and end of the answer in the text.
        code: content of the code block, for extractors that read one.
        utterances: the actions as they were said, where they have no names: any text is one then.
    """

    actions: tuple[int, ...]
    span: tuple[int, int]
    code: str | None = None
    utterances: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rejection:
    """A refused answer: a stable reason code for counting, a detail for reading."""

    reason: Reason
    detail: str = ""


class Extractor(Protocol):
    """Reads an answer; total and linear in the length of the text."""

    @property
    def grammar(self) -> ChainGrammar:
        """The answers that constrained decoding may produce; all of them are accepted."""
        ...

    def parse(self, text: str) -> Chain | Rejection:
        """The chain that the text answers, or why there is none."""
        ...


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
_UNSPEAKABLE = re.compile(rf'["\\\x00-\x1f]|{_FENCE}')


class _NamedActions:
    """What the extractors share: the vocabulary, the longest chain, the final checks."""

    _opening: str
    _separator: str
    _closing: str

    def __init__(self, action_names: Sequence[str], max_chain_length: int = 9) -> None:
        if max_chain_length < 1:
            raise ValueError(f"max_chain_length: expected at least 1, got {max_chain_length}")
        self.action_names = tuple(action_names)
        self.max_chain_length = max_chain_length
        self._numbers: dict[str, int] = {}
        for number, name in enumerate(self.action_names):
            if _UNSPEAKABLE.search(name) or name != name.strip() or not name:
                raise ValueError(
                    "action_names: expected words without quotes, backslashes, control characters,"
                    f" fences and outer spaces, got {name!r}"
                )
            if self._numbers.setdefault(name, number) != number:
                raise ValueError(f"action_names: expected each name once, got {name!r} twice")

    @property
    def grammar(self) -> ChainGrammar:
        """The answers that constrained decoding may produce; all of them are accepted."""
        return ChainGrammar(
            self.action_names,
            self.max_chain_length,
            self._opening,
            self._separator,
            self._closing,
        )

    def _chain(
        self, names: Sequence[str], span: tuple[int, int], code: str | None = None
    ) -> Chain | Rejection:
        """The chain of these names, if they are a legal one."""
        if not names:
            return Rejection("empty", "expected at least one action")
        if len(names) > self.max_chain_length:
            return Rejection(
                "too_long", f"expected at most {self.max_chain_length} actions, got {len(names)}"
            )
        if not self.action_names:
            return Chain((), span, code, tuple(map(self._unescaped, names)))
        numbers = tuple(map(self._numbers.get, names))
        if None in numbers:
            return Rejection("illegal_action", f"{names[numbers.index(None)][:40]!r}")
        return Chain(numbers, span, code)

    def _unescaped(self, name: str) -> str:
        """What the letters of an action without a name stand for."""
        return name


class _JsonActions(_NamedActions):
    """Actions that are JSON strings."""

    def _unescaped(self, name: str) -> str:
        return json.loads(f'"{name}"')


class JsonList(_JsonActions):
    """A JSON list of action names at the end of the text: `["move forward", "turn left"]`.

    The list may stand in a fenced block. Names are read literally: a name spelled with escapes is
    illegal. Where actions have no names, any strings are actions.
    """

    _opening, _separator, _closing = '["', '", "', '"]'

    def parse(self, text: str) -> Chain | Rejection:
        """The chain that the text answers, or why there is none."""
        start = text.find("[")
        if start < 0:
            return Rejection("no_answer", "expected a JSON list")
        scanned = _scan_list(text, start)
        if scanned is None:
            return Rejection("malformed", "expected a JSON list of strings")
        names, end = scanned
        if not _is_terminal(text, start, end):
            return Rejection("not_terminal", "expected the list (or its fence) at the end")
        return self._chain(names, (start, end))


class JsonObject(_JsonActions):
    """The founding answer: `{"explain": "why", "moves": ["move forward"]}`.

    Keys come in any order, each at most once; `explain` may be left out, any other key is
    malformed. The object may stand in a fenced block.
    """

    _opening, _separator, _closing = '{"explain": "", "moves": ["', '", "', '"]}'

    def parse(self, text: str) -> Chain | Rejection:
        """The chain that the text answers, or why there is none."""
        start = text.find("{")
        if start < 0:
            return Rejection("no_answer", "expected a JSON object")
        scanned = _scan_object(text, start)
        if isinstance(scanned, Rejection):
            return scanned
        names, end = scanned
        if not _is_terminal(text, start, end):
            return Rejection("not_terminal", "expected the object (or its fence) at the end")
        return self._chain(names, (start, end))


class CodeBlock(_NamedActions):
    """A fenced code block at the end of the text.

    With action names, each line of the block is one of them. Without, the code itself is the
    action, for environments that run it.
    """

    _opening, _separator, _closing = f"{_FENCE}\n", "\n", f"\n{_FENCE}"

    def __init__(self, action_names: Sequence[str] = (), max_chain_length: int = 9) -> None:
        super().__init__(action_names, max_chain_length)

    def parse(self, text: str) -> Chain | Rejection:
        """The chain, or the code, that the text answers, or why there is none."""
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
        if not self.action_names:
            return Chain((), (start, end), code, (code,))
        return self._chain(code.split("\n"), (start, end), code)


class Utterance(_NamedActions):
    """The whole text is one action, ended by a line break, which may be missing: `move up`.

    Nothing may stand before or after it. Where actions have no names, any text is one.

    Args:
        action_names: the actions.
        max_chain_length: an utterance is one action whatever is given.
        spelling: brings what was said into the letters of a name, in a world that is lenient.
    """

    _opening, _separator, _closing = "", "", "\n"

    def __init__(
        self,
        action_names: Sequence[str] = (),
        max_chain_length: int = 1,
        spelling: Callable[[str], str] = str,
    ) -> None:
        super().__init__(action_names, max_chain_length=1)
        self._spelling = spelling

    def parse(self, text: str) -> Chain | Rejection:
        """The single action that the text is, or why it is none."""
        said = text.removesuffix("\n")
        name = self._spelling(said) if self.action_names else said
        return self._chain([name], (0, len(said)))


_EXTRACTORS = {
    "json_list": JsonList,
    "json_object": JsonObject,
    "code_block": CodeBlock,
    "utterance": Utterance,
}


def make_extractor(
    name: str,
    action_names: Sequence[str],
    max_chain_length: int = 9,
    spelling: Callable[[str], str] = str,
) -> JsonList | JsonObject | CodeBlock | Utterance:
    """The extractor of that name: json_list, json_object, code_block or utterance.

    Args:
        name: see above.
        action_names: the actions; none: any text is one.
        max_chain_length: longest legal chain.
        spelling: see `Utterance`; the other formats are read letter for letter.

    Raises:
        ValueError: there is no such extractor, or an action's name cannot stand in its format.
    """
    if name not in _EXTRACTORS:
        raise ValueError(f"extractor: expected one of {sorted(_EXTRACTORS)}, got {name!r}")
    if name == "utterance":
        return Utterance(action_names, max_chain_length, spelling)
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


def _scan_object(text: str, start: int) -> tuple[list[str], int] | Rejection:
    """The moves of the founding JSON object at `start`, undecoded, and where it ends."""
    malformed = Rejection("malformed", 'expected a JSON object with "explain" and "moves"')
    values: dict[str, list[str] | str] = {}
    position = start + 1
    while key := _KEY.match(text, position):
        name = key[1]
        if name in values:
            return Rejection("duplicate_key", name)
        scan = _scan_list if name == "moves" else _scan_string
        scanned = scan(text, key.end())
        if scanned is None:
            return malformed
        values[name], position = scanned
        after = _AFTER_VALUE.match(text, position)
        if after is None:
            return malformed
        position = after.end()
        if after[1] == "}":
            return (values["moves"], position) if "moves" in values else malformed
    return malformed


def _is_terminal(text: str, start: int, end: int) -> bool:
    """Whether only white space, or the closing fence of the answer's own block, follows `end`."""
    before = text[:start].rstrip()
    opener = before[before.rfind("\n") + 1 :].strip()
    expected = _FENCE if opener in (_FENCE, f"{_FENCE}json") else ""
    return text[end:].strip() == expected
