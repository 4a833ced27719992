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
from typing import Any, Literal

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


_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_BLOT = "\ufffd"  # in the place of each letter of an escape: no name of an action is spelled so
_DECODER = json.JSONDecoder(object_pairs_hook=list)  # pairs, of which none is lost
_FENCE = "```"
LONGEST_NAME = 1000
"""Characters of an action's name: the grammar of constrained decoding has a state for each."""
_UNSPEAKABLE = re.compile(rf'["\\\x00-\x1f\ud800-\udfff{_BLOT}]|{_FENCE}|.{{{LONGEST_NAME + 1}}}')


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

    def _chain(self, names: Sequence[str], span: tuple[int, int]) -> Chain | Rejection:
        """The chain of these actions, if they are a legal one."""
        longest = self.grammar.max_chain_length
        if not names:
            return Rejection("empty", "expected at least one action")
        if len(names) > longest:
            return Rejection("too_long", f"expected at most {longest} actions, got {len(names)}")
        if not self._numbers:
            return Chain((), span, tuple(names))
        actions = tuple(map(self._numbers.get, names))
        if None in actions:
            return Rejection("illegal_action", f"{names[actions.index(None)][:40]!r}")
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
        literal = _ESCAPE.sub(lambda escape: _BLOT * len(escape[0]), text)
        try:
            value, end = _DECODER.raw_decode(literal if self._numbers else text, start)
        except (ValueError, RecursionError):
            value = None
        moves = None if value is None else self._moves(value)
        if isinstance(moves, Rejection):
            return moves
        if not isinstance(moves, list) or not all(isinstance(name, str) for name in moves):
            return Rejection("malformed", f"expected a JSON {self._content}")
        if not _is_terminal(text, start, end):
            return Rejection("not_terminal", f"expected the {self._kind} (or its fence) at the end")
        return self._chain(moves, (start, end))

    def _moves(self, value: Any) -> Any:
        """What stands for the list of actions in a value of JSON."""
        return value


class JsonObject(JsonList):
    """The founding format: `{"explain": "why", "moves": ["move forward"]}`.

    Keys come in any order, each at most once; `explain` may be left out, any other key is
    malformed. The object may stand in a fenced block.
    """

    _opening, _separator, _closing = '{"explain": "", "moves": ["', '", "', '"]}'
    _bracket, _kind, _content = "{", "object", 'object with "explain" and "moves"'

    def _moves(self, value: Any) -> Any:
        fields = dict(value)
        if len(fields) < len(value):
            return Rejection("duplicate_key", f"expected each of {[*fields]} once")
        explained = isinstance(fields.pop("explain", ""), str)
        return fields.get("moves") if explained and fields.keys() == {"moves"} else None


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
        language, newline, lines = text[start + len(_FENCE) :].partition("\n")
        code, close, after = f"{newline}{lines}".partition(self._closing)
        if not close or (language.strip() and not language.strip().isidentifier()):
            return Rejection("malformed", "expected ``` (with a language, or none) and ``` lines")
        if after.strip():
            return Rejection("not_terminal", "expected the block at the end")
        if not code.strip():
            return Rejection("empty", "expected code")
        lines = code.removeprefix("\n")
        span = start, len(text) - len(after)
        return self._chain(lines.split("\n") if self._numbers else [lines], span)


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
        name = text.removesuffix("\n")
        return self._chain([self._spelling(name) if self._numbers else name], (0, len(name)))


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
    known = {"json_list": JsonList, "json_object": JsonObject, "code_block": CodeBlock}
    if name not in known:
        raise ValueError(f"extractor: expected one of {[*known, 'utterance']}, got {name!r}")
    return known[name](action_names, max_chain_length)


def _is_terminal(text: str, start: int, end: int) -> bool:
    """Whether only white space, or the closing fence of the chain's own block, follows `end`."""
    before = text[:start].rstrip()
    opener = before[before.rfind("\n") + 1 :].strip()
    expected = _FENCE if opener in (_FENCE, f"{_FENCE}json") else ""
    return text[end:].strip() == expected
