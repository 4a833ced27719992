"""Extractors: what they accept and refuse, and that no text at all can break them."""

import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lactchain.environments.extractors import Chain, Rejection, make_extractor

NAMES = ("move forward", "turn left")
LIST = make_extractor("json_list", NAMES, 4)
OBJECT = make_extractor("json_object", NAMES, 4)
CODE = make_extractor("code_block", NAMES, 4)
EXTRACTORS = (LIST, OBJECT, CODE)


@pytest.mark.parametrize(("extractor", "text", "actions"), [
    (LIST, '  [ "turn left" ,\n"move forward" ]\n', (1, 0)),
    (LIST, 'I go straight on: ["move forward", "move forward"]', (0, 0)),
    (LIST, '```json\n["turn left"]\n```', (1,)),
    (OBJECT, '{"explain": "", "moves": ["turn left"]}', (1,)),
    (OBJECT, '{"moves": ["turn left"], "explain": "a \\"quote\\" and ]}"}', (1,)),
    (OBJECT, 'So: {"moves": ["turn left", "move forward"]} ', (1, 0)),
    (CODE, "```\nmove forward\nturn left\n```", (0, 1)),
    (CODE, "Here:\n```text\nturn left\n```\n", (1,)),
])  # fmt: skip
def test_legal_completions_are_accepted(extractor, text, actions):
    assert extractor.parse(text).actions == actions


def test_a_code_block_without_action_names_is_the_action():
    extractor = make_extractor("code_block", ())
    reading = extractor.parse("```python\nprint(1)\n\nprint(2)\n```")
    assert reading == Chain((), (0, 32), ("print(1)\n\nprint(2)",))
    assert extractor.grammar.action_names == ()


REFUSED = {
    "no_answer": [(LIST, ""), (LIST, "move forward"), (OBJECT, '["move forward"]'),
                  (CODE, "move forward")],
    "empty": [(LIST, "[]"), (OBJECT, '{"moves": []}'), (CODE, "```\n```")],
    "malformed": [
        (LIST, "["), (LIST, '["move forward"'), (LIST, '["move forward",]'),
        (LIST, "['move forward']"), (LIST, '[["move forward"]]'), (LIST, "[0, 1]"),
        (LIST, 'maybe [sic] ["move forward"]'),
        (OBJECT, "{}"), (OBJECT, '{"explain": "nothing"}'), (OBJECT, '{"moves": "move forward"}'),
        (OBJECT, '{"moves": ["move forward"], "speed": "1"}'),
        (OBJECT, '{"explain": "\\x", "moves": ["move forward"]}'),
        (OBJECT, '{"explain": "a\nb", "moves": ["move forward"]}'),
        (CODE, "```move forward```"), (CODE, "```\nmove forward"),
    ],
    "not_terminal": [
        (LIST, '["move forward"] ["turn left"]'), (LIST, '["move forward"] and so on'),
        (LIST, '```json\n["move forward"]'), (LIST, '["move forward"]\n```'),
        (LIST, '["fly"] I mean ["move forward"]'),
        (LIST, 'move forward\n["move forward", "fly"]\nmove forward'),
        (LIST, '["move forward"]\nSorry, that was wrong: ["fly"]'),
        (OBJECT, '{"moves": ["turn left"]} {"moves": ["turn left"]}'),
        (CODE, "```\nmove forward\n```\n```\nturn left\n```"),
    ],
    "illegal_action": [
        (LIST, '["Move forward"]'), (LIST, '["move forward "]'), (LIST, '["jump"]'),
        (LIST, '["move\\u0020forward"]'), (CODE, "```\nmove forward\n\nturn left\n```"),
        (LIST, 'I would move forward, then turn left: ["fly", "turn left"]'),
    ],
    "duplicate_key": [
        (OBJECT, '{"moves": ["move forward"], "moves": ["turn left"]}'),
        (OBJECT, '{"explain": "a", "explain": "b", "moves": ["turn left"]}'),
    ],
    "too_long": [(LIST, json.dumps(["turn left"] * 5))],
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_other_completions_are_refused_with_a_stable_reason(reason):
    """None is mended with legal words nearby."""
    found = {text: extractor.parse(text) for extractor, text in REFUSED[reason]}
    assert all(isinstance(reading, Rejection) for reading in found.values()), found
    assert {reading.reason for reading in found.values()} == {reason}, found


def test_names_that_no_completion_can_carry_are_refused():
    for name in ('say "hi"', "back\\slash", "two\nlines", " outer space", "", "a```"):
        with pytest.raises(ValueError, match="action_names"):
            make_extractor("json_list", [name])
    with pytest.raises(ValueError, match="action_names: expected each name once, got 'a' twice"):
        make_extractor("utterance", ["a", "b", "a"])
    assert make_extractor("utterance", ["a", "A"]).parse("A") == Chain((1,), (0, 1))
    with pytest.raises(ValueError, match=r"extractor: expected one of .*json_list"):
        make_extractor("yaml", NAMES)


ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates included
FRAGMENTS = st.sampled_from(
    [*'[]{}",:`\\ \n', '"move forward"', '"turn left"', "move forward", '", "', "```", "```json\n"]
    + ['["', '"]', '{"explain": "', '", "moves": ["', '"moves": ', "\\u0022", "\ud800", "[[", "]]"]
)
CHAINS = st.lists(st.sampled_from(range(len(NAMES))), min_size=1, max_size=4)
VALID = st.builds(lambda e, chain: e.grammar.render(chain), st.sampled_from(EXTRACTORS), CHAINS)


@st.composite
def near_misses(draw):
    """Valid completions, several of them at times, cut and spliced at random places."""
    text = "".join(draw(st.lists(VALID, min_size=1, max_size=3)))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 4)))
        text = text[:start] + draw(st.one_of(FRAGMENTS, ANY_TEXT)) + text[end:]
    return text


def check_parse(text):
    """What must hold of any text, for every extractor."""
    for extractor in EXTRACTORS:
        reading = extractor.parse(text)
        if isinstance(reading, Rejection):
            continue
        start, end = reading.span
        span = text[start:end]
        names = [NAMES[action] for action in reading.actions]
        assert 1 <= len(names) <= extractor.grammar.max_chain_length
        assert all(name in span for name in names)
        assert text[end:].strip() in ("", "```")
        if extractor is CODE:
            assert span.split("\n")[1:-1] == names
        else:
            pairs = json.loads(span, object_pairs_hook=list)
            keys = [key for key, _ in pairs] if extractor is OBJECT else []
            assert len(keys) == len(set(keys))
            assert (dict(pairs)["moves"] if extractor is OBJECT else pairs) == names


MANY = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
TEXTS = {"any Unicode": ANY_TEXT, "near misses": near_misses()}
TEXTS["a heap of fragments"] = st.lists(FRAGMENTS, max_size=12).map("".join)


@pytest.mark.parametrize("num_examples", [250, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS)
def test_any_text_is_accepted_rightly_or_refused(texts, num_examples):
    settings(max_examples=num_examples, **MANY)(given(texts)(check_parse))()


PROSE = st.text(st.characters(exclude_characters='[{`"', exclude_categories=()), max_size=30)


@settings(max_examples=300, **MANY)
@given(st.sampled_from(EXTRACTORS), CHAINS, PROSE, st.text(" \n\t", max_size=3))
def test_every_completion_of_the_grammar_is_accepted_after_prose(extractor, chain, prose, space):
    reading = extractor.parse(f"{prose}\n{extractor.grammar.render(chain)}{space}")
    assert isinstance(reading, Chain)
    assert reading.actions == tuple(chain)


LONG = 100_000


@pytest.mark.parametrize("text", [
    "[" * LONG, "[" + " " * LONG, '["' + "a" * LONG, '["move forward", ' * LONG,
    "[" + '"move forward",' * LONG,
    '{"explain": "' + "\\\\" * LONG, '{"explain": "' + "\\" * LONG,
    '{"moves":' + " " * LONG + "x", '{"moves": [' + '"a",' * LONG,
    "```" * LONG, "```\n" * LONG, "```\n" + "``\n" * LONG,
    " \n" * LONG + '["move forward"]' + " \n" * LONG + "x",
], ids=lambda text: repr(text[:16]))  # fmt: skip
def test_parsing_takes_linear_time(text):
    begin = time.process_time()
    for extractor in EXTRACTORS:
        extractor.parse(text)
    assert time.process_time() - begin < 5  # a quadratic parser would need many minutes
