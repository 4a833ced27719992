"""Texts into the extractors: what they accept is legal and stands there, in linear time.

A million texts for each extractor: any Unicode, heaps of fragments, legal answers cut and spliced,
deep nesting, special tokens and surrogates, illegal answers amid legal words, long ones. What an
extractor says is compared with a second implementation (`readings.py`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from random import Random

from fault_matrix import readings
from fault_matrix.cases import Case, Verdict
from lactchain.environments.extractors import Chain, Extractor, make_extractor

TITLE = "texts into the extractors"
TEXTS_A_CASE, CASES_OF_EACH = 5_000, 200
LONG, MOST_SECONDS = 200_000, 1.0  # a quadratic reader would need a minute
GRID = ("move forward", "turn left", "turn right", "stop")
TRAPS = ("a", "a b", "[a]", "{", "left, right", "移动", "]", "'a'", "a\ud800")
WORDS = ("crane", "slate", "audio", "c r a n e")


@dataclass(frozen=True)
class Reader:
    """An extractor beside the second implementation of it."""

    extractor: Extractor
    read: readings.Read
    names: Sequence[str]
    spelling: Callable[[str], str] = str


def _together(said: str) -> str:
    return said.strip().replace(" ", "")


def _reader(name: str, read: readings.Read, names: Sequence[str], longest: int = 9, **kwargs):
    return Reader(make_extractor(name, names, longest, **kwargs), read, names, **kwargs)


READERS = {
    "json_list": _reader("json_list", readings.json_list, GRID),
    "json_list, odd names": _reader("json_list", readings.json_list, TRAPS, 3),
    "json_list, any action": _reader("json_list", readings.json_list, (), 3),
    "json_object": _reader("json_object", readings.json_object, GRID),
    "json_object, odd names": _reader("json_object", readings.json_object, TRAPS, 1),
    "json_object, any action": _reader("json_object", readings.json_object, ()),
    "code_block": _reader("code_block", readings.code_lines, GRID),
    "code_block, any action": _reader("code_block", readings.code, ()),
    "utterance": _reader("utterance", readings.utterance, GRID),
    "utterance, lenient": _reader("utterance", readings.utterance, WORDS, spelling=_together),
    "utterance, any action": _reader("utterance", readings.utterance, ()),
}

FRAGMENTS = (
    [*'[]{}",:`\\ \n\t0', '"move forward"', '"turn left"', "stop", '", "', "```", "```json\n", "a"]
    + ['["', '"]', '{"explain": "', '", "moves": ["', '"moves": ', "\\u0022", "\ud800", "[[", "]]"]
    + [
        "\n```",
        "crane",
        "null",
        "NaN",
        "\x00",
        "\u2028",
        "\xa0",
        '\\"',
        "'",
        '"moves"',
        "]}",
        '"]}',
    ]
)
SPECIAL = (
    ["<|im_end|>", "<|endoftext|>", "</s>", "<s>", "[INST]", "<unk>", "[/move forward]", "$x$"]
    + ["\x1b[31m", "\x1b]0;x\x07", "\x00", "\ud83d", "\udc00\ud800", "</script><script>", "\ufeff"]
    + [
        "\u202e",
        "&lt;",
        "[bold]",
        "[link=file:///etc]",
        "\r",
        "\x85",
        "{{7*7}}",
        "%s",
        "../..",
        "`",
    ]
)
PROSE = [
    "I think that ",
    "move forward",
    "turn left and stop. ",
    "crane, or slate? ",
    "",
    "\n",
    " ",
]


def cases(shared: Path, scale: float) -> Iterator[Case]:
    """Batches of texts, each from a seed of its own."""
    number = max(1, round(CASES_OF_EACH * scale))
    for seed in range(number):
        for name, reader in READERS.items():
            row, kind = _kind(seed, reader)
            texts = max(1, round(TEXTS_A_CASE * min(1.0, scale * CASES_OF_EACH)))
            strike = partial(read_all, reader, kind, f"{name} {seed}", texts)
            yield Case(row, name, f"{name}-{seed}", strike)
    patterns = max(1, round(len(ENDLESS) * min(1.0, 20 * scale)))
    for name, reader in READERS.items():
        for pattern in range(patterns):
            strike = partial(read_long, reader, pattern)
            yield Case(19, name, f"{name}-long-{pattern}", strike)


def _kind(seed: int, reader: Reader) -> tuple[int, str]:
    """Of ten batches one is of illegal answers, and one of special tokens."""
    if seed % 10 == 1 and reader.names:
        return 17, "illegal"
    return (18, "special") if seed % 10 == 2 else (16, "any")


def read_all(reader: Reader, kind: str, seed: str, count: int, folder: Path) -> Verdict:
    """What became of so many texts, the first bad one in words."""
    chance, kinds = Random(seed), cycle(KINDS[kind])
    for make in islice(kinds, count):
        text = make(chance, reader)
        if fault := fault_of(reader, text, kind == "illegal"):
            return Verdict(False, fault[0], f"{fault[1]}: {text[:200]!r}")
    return Verdict(True, f"{count:,} texts read or refused rightly")


def fault_of(reader: Reader, text: str, is_illegal: bool = False) -> tuple[str, str] | None:
    """What an extractor did wrong with a text: a word, and what was seen."""
    try:
        found = reader.extractor.parse(text)
    except Exception as error:  # noqa: BLE001  - it must raise nothing at all
        return "raised", repr(error)
    expected = _meaning(reader, text)
    if not isinstance(found, Chain):
        # Names are read letter for letter: escapes in an answer make it another one.
        legal = expected is not None and "\\" not in text
        return ("refused a legal answer", found.reason) if legal else None
    if is_illegal or expected is None:
        return "accepted an illegal answer", str(found)
    words, span = expected
    said = [reader.names[action] for action in found.actions] or list(found.utterances)
    if said != words or found.span != span:
        return "accepted another answer", f"{said} at {found.span}, and not {words} at {span}"
    if reader.names and reader.spelling is str and not _stands(words, text[slice(*span)]):
        return "accepted what does not stand there", str(said)
    return None


def _meaning(reader: Reader, text: str) -> readings.Reading | None:
    """The words of a legal chain by the second implementation, and where they stand."""
    read = reader.read(text)
    if read is None:
        return None
    words = list(map(reader.spelling, read[0])) if reader.names else read[0]
    legal = not reader.names or set(words) <= set(reader.names)
    fits = 1 <= len(words) <= reader.extractor.grammar.max_chain_length
    return (words, read[1]) if legal and fits else None


def _stands(words: Sequence[str], span: str) -> bool:
    """Whether the words stand in the span, letter for letter, one behind the other."""
    place = 0
    for word in words:
        place = span.find(word, place)
        if place < 0:
            return False
        place += len(word)
    return True


# --- texts -----------------------------------------------------------------------------------


def legal(chance: Random, reader: Reader) -> str:
    """A legal answer behind some prose."""
    grammar = reader.extractor.grammar
    words = reader.names or ["print(1)", "anything", "x"]
    length = chance.randint(1, grammar.max_chain_length)
    chain = [chance.choice(words) for _ in range(length)]
    return f"{grammar.opening}{grammar.separator.join(chain)}{grammar.closing}"


def any_unicode(chance: Random, reader: Reader) -> str:
    """Characters from the whole of Unicode, lone surrogates and controls among them."""
    highest = chance.choice([0x7F, 0x2FF, 0xFFFF, 0x10FFFF])
    return "".join(chr(chance.randint(0, highest)) for _ in range(chance.randint(0, 40)))


def heap(chance: Random, reader: Reader) -> str:
    """Pieces of answers in any order."""
    return "".join(chance.choices(FRAGMENTS, k=chance.randint(0, 14)))


def spliced(chance: Random, reader: Reader) -> str:
    """Legal answers, one or several, with a few places cut or overwritten."""
    text = "".join(legal(chance, reader) for _ in range(chance.choice([1, 1, 1, 2, 3])))
    for _ in range(chance.randint(0, 3)):
        start = chance.randint(0, len(text))
        end = min(len(text), start + chance.randint(0, 4))
        text = text[:start] + chance.choice(FRAGMENTS) + text[end:]
    return chance.choice(PROSE) + text + chance.choice(["", "", " ", "\n", "\n\n", "."])


def fenced(chance: Random, reader: Reader) -> str:
    """An answer in a block of its own, whose fences may not fit."""
    first = chance.choice(["```", "```json", "``` json", "```python", "````", "text ```"])
    last = chance.choice(["```", "```", "``", "```\n", "``` \n.", ""])
    return f"{chance.choice(PROSE)}{first}\n{legal(chance, reader)}\n{last}"


def nested(chance: Random, reader: Reader) -> str:
    """Brackets and braces in each other, as deep as a stack."""
    depth = chance.choice([3, 50, 1100])
    inner = chance.choice(["", legal(chance, reader), '"stop"'])
    left, right = chance.choice([("[", "]"), ('{"moves":', "}"), ("[{", "}]"), ('["', '"]')])
    return left * depth + inner + right * chance.choice([depth, depth - 1, 0])


def special(chance: Random, reader: Reader) -> str:
    """Special tokens, controls, markup and surrogates before, in and behind a legal answer."""
    text = legal(chance, reader)
    place = chance.choice([0, 0, len(text), chance.randint(0, len(text))])
    return text[:place] + "".join(chance.choices(SPECIAL, k=chance.randint(1, 4))) + text[place:]


def illegal(chance: Random, reader: Reader) -> str:
    """An answer with a word that is no action, amid words that are."""
    grammar = reader.extractor.grammar
    words = chance.choices(reader.names, k=chance.randint(1, grammar.max_chain_length))
    words[chance.randrange(len(words))] = no_name(chance, reader)
    answer = f"{grammar.opening}{grammar.separator.join(words)}{grammar.closing}"
    before = "".join(
        chance.choices([*PROSE, *PROSE, legal(chance, reader)], k=chance.randint(0, 4))
    )
    meant = [f" I mean {chance.choice(reader.names)}", f"\n{legal(chance, reader)}"]
    return before + answer + chance.choice(["", "", "\n", *meant])


def no_name(chance: Random, reader: Reader) -> str:
    """Close to the name of an action, and none, however it is spelled."""
    name = chance.choice(reader.names)
    tried = [name.upper(), f"{name}s", name[1:], f"{name}.", f"{name}, {name}", "fly", f"x{name}"]
    tried += [f"{name}\\u0020", name.replace("o", "0"), f"{name} now", f"{name}\u200b", "\ud800"]
    known = {*reader.names, *map(reader.spelling, reader.names)}
    return chance.choice([word for word in tried if reader.spelling(word) not in known and word])


KINDS = {
    "any": [any_unicode, heap, spliced, spliced, fenced, heap, spliced, legal] + [nested],
    "special": [special],
    "illegal": [illegal],
}

ENDLESS = ["[", "[ ", '["a', '["move forward", ', '["stop",', '{"explain": "\\\\', '{"moves":   ']
ENDLESS += [
    '{"moves": ["a",',
    "```",
    "```\n",
    "```\n``",
    " \n",
    "```\nstop",
    "\ud800",
    '{"a":',
    "x",
]


def read_long(reader: Reader, pattern: int, folder: Path) -> Verdict:
    """The time that an endless text takes, as it is, and before and behind a legal answer."""
    start = ENDLESS[pattern]
    text, chain = start + start[-1] * LONG, legal(Random(pattern), reader)
    forms = (text, start * LONG, text + chain, chain + text)
    slowest = max(_seconds(reader, form) for form in forms)
    ok = slowest < MOST_SECONDS
    return Verdict(ok, "linear" if ok else "slow", "" if ok else f"{slowest:.1f} s: {text[:40]!r}")


def _seconds(reader: Reader, text: str) -> float:
    begin = time.process_time()
    reader.extractor.parse(text)
    return time.process_time() - begin
