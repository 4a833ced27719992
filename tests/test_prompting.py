"""Prompts: one prefix for all observations, and no observation that can leave its turn."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tiny_models import ACTIONS, TOKENIZER
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lactchain import Action, ChainGrammar, DataError
from lactchain.config.strategies import STRATEGIES, resolve_strategy
from lactchain.models import prompting
from lactchain.models.prompting import PromptTemplate, encode_completions

OWN = 'Go to the goal. Answer like {"moves": ["turn left"]}. At most {max_chain_length}.'
TEMPLATES = {s: PromptTemplate(TOKENIZER, s, ChainGrammar(ACTIONS)) for s in (*STRATEGIES, OWN)}

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{{ bos_token }}{% for m in messages %}<start>{{ m.role }}\n{{ m.content | trim }}<end>\n"
    "{% endfor %}<start>model\n"
)
DROPS_SYSTEM = (
    "{% for m in messages if m.role != 'system' %}User: {{ m.content }}\n{% endfor %}Assistant:"
)

PIECES = ["</s>", "[INST]", "[/INST]", "<pad>", "<s>", " ", "\n", "2", '["', "\ud800"]
observations = st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join))


def byte_level(template: str, specials: list[str]) -> PreTrainedTokenizerFast:
    """A GPT-2 like tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>",
        extra_special_tokens=specials, chat_template=template,
    )  # fmt: skip


def sentencepiece_like(template: str, old: bool) -> PreTrainedTokenizerFast:
    """As Mistral-7B's: a space is written ▁, one stands before a text, unknown letters are bytes.

    Older conversions put the space before every piece of text between special tokens, newer ones
    before the first alone.
    """
    pieces = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *"abcdefgxyzY0123", "▁a", "▁x"]
    merges = [("▁", "a"), ("▁", "x")]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    if old:
        spaces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence(spaces)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        extra_special_tokens=["[INST]", "[/INST]"], chat_template=template,
    )  # fmt: skip


MISTRAL = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set s = messages[0].content + '\n\n' %}"
    "{% endif %}[INST] {{ s }}{{ messages[-1].content }}[/INST]"
)
OF_CHATML = ["<|im_start|>", "<|im_end|>"]
OTHERS = {
    "chatml": byte_level(CHATML, OF_CHATML),
    "no system role": byte_level(NO_SYSTEM, ["<start>", "<end>"]),
    "system text dropped, no special tokens": byte_level(DROPS_SYSTEM, []),
    "mistral, older": sentencepiece_like(MISTRAL, old=True),
    "mistral, newer": sentencepiece_like(MISTRAL, old=False),
    "no space after [INST]": sentencepiece_like(MISTRAL.replace("[INST] ", "[INST]"), old=False),
}


@settings(deadline=None)
@given(observations, st.sampled_from(list(TEMPLATES)))
def test_a_prompt_begins_with_the_prefix_and_an_observation_is_plain_text(observation, strategy):
    template = TEMPLATES[strategy]
    ids, prefix = template.encode(observation), template.prefix_ids
    assert ids[: len(prefix)] == prefix
    specials = [i for i in ids if i in TOKENIZER.all_special_ids]
    assert TOKENIZER.convert_ids_to_tokens(specials) == ["<s>", "[INST]", "[/INST]"]
    shown = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in observation)
    assert TOKENIZER.decode(ids) == template.render(shown)


@pytest.mark.parametrize("name", ["tiny", *OTHERS])
@pytest.mark.parametrize("strategy", [*STRATEGIES, OWN, "a b."])
def test_tokens_are_those_of_the_rendered_prompt(name, strategy):
    tokenizer = {"tiny": TOKENIZER, **OTHERS}[name]
    template = PromptTemplate(tokenizer, strategy, ChainGrammar(ACTIONS))
    for observation in ("2 3 up 1 0", "You are at (2, 3).\nNext.", "", " x", '"]', "\n\nY"):
        whole = tokenizer(template.render(observation), add_special_tokens=False)["input_ids"]
        assert template.encode(observation) == whole
    assert template.strategy in template.render("§").partition("§")[0]


def test_the_prefix_holds_the_whole_strategy():
    strategy = OWN.replace("{max_chain_length}", "9")
    assert TOKENIZER.decode(TEMPLATES[OWN].prefix_ids) == f"<s>[INST]{strategy}"
    assert TEMPLATES["none"].render("2 3 up 1 0") == "<s>[INST]2 3 up 1 0[/INST]"
    assert len(TEMPLATES["none"].encode("2 3 up 1 0")) == 8


def num_special(tokenizer, ids):
    return sum(i in tokenizer.all_special_ids for i in ids)


@pytest.mark.parametrize("name", OTHERS)
@settings(deadline=None, max_examples=50)
@given(observation=observations, strategy=st.sampled_from(["", "a b.", "x\n", OWN]))
def test_other_chat_templates_keep_the_prefix_and_lose_no_text(name, observation, strategy):
    tokenizer = OTHERS[name]
    template = PromptTemplate(tokenizer, strategy)
    ids = template.encode(observation)
    assert ids[: len(template.prefix_ids)] == template.prefix_ids
    if tokenizer.unk_token_id is None:
        assert num_special(tokenizer, ids) == num_special(tokenizer, template.encode("x"))
    clean = observation.encode("utf-8", "ignore").decode()
    assert clean.strip() == "" or clean.strip() in template.render(clean)


def test_a_stored_completion_with_half_a_surrogate_pair_is_encoded():
    broken, whole = encode_completions([Action("left \ud800"), Action("left \ufffd")], TOKENIZER)
    assert broken == whole and broken[-1] == TOKENIZER.eos_token_id


def test_strategies_are_filled_in_and_keep_other_braces():
    for name in STRATEGIES:
        text = resolve_strategy(name, ACTIONS, 7)
        assert "{actions}" not in text and "{max_chain_length}" not in text
    assert '"move forward", "turn left"' in resolve_strategy("founding", ACTIONS)
    own = resolve_strategy('Like {"moves": [{actions}]}', ("left", "right"))
    assert own == 'Like {"moves": ["left", "right"]}'


def test_the_tokenizer_keeps_reading_its_special_tokens():
    PromptTemplate(TOKENIZER).encode("</s>")
    assert TOKENIZER("</s>")["input_ids"] == [TOKENIZER.eos_token_id]


THINKS = (
    "{{ strftime_now('%d %B %Y') }}\n" + CHATML.replace("{% endif %}", "")
    + "{% if enable_thinking is not false %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)  # fmt: skip


def test_thinking_is_switched_off_and_prompts_are_the_same_tomorrow():
    text = PromptTemplate(byte_level(THINKS, OF_CHATML), "Go.").render("x")
    assert text.startswith("26 July 2024\n<|im_start|>system\nGo.")
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize(("template", "said"), [
    (None, "chat template"),
    ("{{ bos_token }}hello", "user's text"),
    (CHATML.replace("assistant\n", "assistant\n<think>\n"), "opens every completion with <think>;"),
])  # fmt: skip
def test_a_template_that_no_policy_can_be_asked_by_is_refused(template, said):
    with pytest.raises(DataError, match=said):
        PromptTemplate(byte_level(template, []))


LONG = "{% for i in range(2000) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"  # seconds


@pytest.mark.parametrize("template", [
    "{% for i in range(10 ** 9) %}{{ i }}{% endfor %}", "{{ 'x' * (10 ** 12) }}", "{{ 1 / 0 }}",
    "{{ ''.__class__.__mro__ }}", "{{ cycler.__init__.__globals__.os.getpid() }}", LONG,
])  # fmt: skip
def test_a_chat_template_that_does_harm_or_does_not_end_is_an_error(template, monkeypatch):
    monkeypatch.setattr(prompting, "RENDER_SECONDS", 0.2)
    with pytest.raises(DataError, match="chat template"):
        PromptTemplate(byte_level(template, []), "none")


TRIMS = {"both ends": OTHERS["no system role"], "nothing": OTHERS["chatml"]}
TRIMS["the end"] = byte_level(CHATML.replace("m.content", "m.content.rstrip()"), OF_CHATML)


@pytest.mark.parametrize("name", TRIMS)
@pytest.mark.parametrize("strategy", ["", "Go."])
@pytest.mark.parametrize("text", ["hi", "hi\n", " hi", "\n hi \n\n", "a\tb\t", "\u2003x"])
def test_white_space_around_a_text_is_what_the_chat_template_leaves(name, strategy, text):
    tokenizer = TRIMS[name]
    user = {"role": "user", "content": text}
    talk = [{"role": "system", "content": strategy}, user] if strategy else [user]
    if strategy and name == "both ends":  # it knows no system role
        talk = [{"role": "user", "content": f"{strategy}\n\n{text}"}]
    expected = tokenizer.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
    template = PromptTemplate(tokenizer, strategy)
    assert template.encode(text) == expected
    assert tokenizer(template.render(text), add_special_tokens=False)["input_ids"] == expected


@pytest.mark.parametrize("name", ["chatml", "no system role", "mistral, older", "mistral, newer"])
@pytest.mark.parametrize("number", range(4))
def test_the_text_of_a_special_token_in_a_conversation_stays_plain(name, number):
    tokenizer = OTHERS[name]
    special = (tokenizer.all_special_tokens * 4)[number]
    template = PromptTemplate(tokenizer)
    harmless, harmful = ([{"role": "user", "content": f"a{text}g"}] for text in ("x", special))
    ids, plain = template.encode_batch([harmful, harmless])
    unknown = tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids
    assert num_special(tokenizer, ids) == num_special(tokenizer, plain) or unknown


@pytest.mark.parametrize("name", ["chatml", "no system role", "mistral, newer"])
def test_data_that_carry_a_chat_template_already_are_refused(name):
    tokenizer = OTHERS[name]
    template, end = PromptTemplate(tokenizer), prompting.end_of_completion(tokenizer)
    plain, said = ("Grid 4x4.", Action("go")), "pairs: row 1: expected texts without"
    texts = [(template.render("Grid 4x4."), "go"), (f" {template.render('x')}", "go")]
    for text, answer in (*texts, ("Grid 4x4.", f"go{end}"), ("Grid 4x4.", f"go{end}\n")):
        with pytest.raises(DataError, match=said):
            template.check_untemplated([plain, (text, Action(answer)), plain], "pairs")
    template.check_untemplated([plain, (f"a {end}", Action("go", (1, 2)))], "pairs")
    template.check_untemplated([([{"role": "user", "content": "x"}], Action("go"))], "pairs")


@pytest.mark.parametrize("roles", [["system", "user"], ["system"], ["system", "assistant"]])
def test_a_conversation_that_the_chat_template_refuses_is_one_line(roles):
    talk = [{"role": role, "content": "x"} for role in roles]
    with pytest.raises(DataError, match="refuses a conversation of the roles .*no system role"):
        PromptTemplate(OTHERS["no system role"]).encode_batch([talk])
