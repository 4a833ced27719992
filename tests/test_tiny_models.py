"""The models of a fresh machine: what their tokens are, and that they load as any other model."""

import json
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from lactchain.config.weights import TinyModelConfig
from lactchain.models.runtime import quiet
from lactchain.models.tiny import build_tiny_actor, build_tiny_encoder, build_tiny_tokenizer

ACTIONS = ("move forward", "turn left")
SMALL = TinyModelConfig(hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1,
                        intermediate_size=48)  # fmt: skip


def corpus() -> list[str]:
    draw = random.Random(0)
    chains = [json.dumps(draw.choices(ACTIONS, k=draw.randint(1, 9))) for _ in range(200)]
    states = [
        f"{draw.randrange(10)} {draw.randrange(10)} {draw.choice(['up', 'right', 'down', 'left'])} "
        f"{draw.randrange(10)} {draw.randrange(10)}"
        for _ in range(200)
    ]
    return chains + states


TOKENIZER = build_tiny_tokenizer(corpus())


def build_small(folder: Path) -> Path:
    """Writes what the fixture `small` promises."""
    for name, texts, seed in (("", corpus(), 0), ("other-", corpus(), 1)):
        build_tiny_actor(folder / f"{name}actor", texts, SMALL, seed=seed)
        build_tiny_encoder(folder / f"{name}encoder", folder / f"{name}actor")
    build_tiny_actor(folder / "other-tokenizer", corpus()[::2], SMALL)
    return folder


def tokens(text: str) -> list[str]:
    return TOKENIZER.convert_ids_to_tokens(TOKENIZER(text)["input_ids"])


@pytest.mark.parametrize(("text", "expected"), [
    ('["move forward", "turn left"]', ["[", '"moveĠforward",Ġ', '"turnĠleft"]']),
    ("2 3 up 1 0", ["2", "Ġ3", "Ġup", "Ġ1", "Ġ0"]),
    ("12 345 4x4", ["1", "2", "Ġ3", "4", "5", "Ġ4", "x", "4"]),
])  # fmt: skip
def test_actions_fields_of_a_state_and_digits_are_one_token_each(text, expected):
    assert tokens(text) == expected


@settings(deadline=None)
@given(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=9))
def test_a_chain_costs_its_length_and_two_with_the_end_of_sequence(chain):
    assert len(tokens(json.dumps(chain) + "</s>")) == len(chain) + 2


def test_a_square_is_one_token_and_a_name_with_a_number_is_not():
    tokenizer = build_tiny_tokenizer(["A1 h2 x25 ab3"] * 3)
    ids = tokenizer("A1 h2 x25 ab3")["input_ids"]
    said = ["A1", "Ġh2", "Ġx", "2", "5", "Ġab", "3"]
    assert tokenizer.convert_ids_to_tokens(ids) == said


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_comes_back_verbatim(text):
    ids = TOKENIZER(text, split_special_tokens=True)["input_ids"]
    assert TOKENIZER.decode(ids) == text and not set(ids) & set(TOKENIZER.all_special_ids)


def test_the_chat_template_opens_with_the_system_text_and_closes_the_assistant_turn():
    turns = [("system", "Go."), ("user", "2 3"), ("assistant", "[]"), ("user", "1 0")]
    messages = [{"role": role, "content": content} for role, content in turns]
    text = TOKENIZER.apply_chat_template(messages, tokenize=False)
    assert text == "<s>[INST]Go.\n\n2 3[/INST][]</s>[INST]1 0[/INST]"
    assert TOKENIZER.apply_chat_template(messages[1:2], tokenize=False) == "<s>[INST]2 3[/INST]"


def test_the_actor_loads_as_any_causal_model(small):
    folder = small / "actor"
    with quiet():
        model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == TOKENIZER.chat_template
    assert tokenizer.padding_side == "left" and len(set(tokenizer.all_special_ids)) == 5
    assert model.config.vocab_size == len(tokenizer)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id


def test_the_encoder_starts_from_the_trunk_of_the_actor(small):
    with quiet():
        actor = AutoModelForCausalLM.from_pretrained(small / "actor")
        critic, info = AutoModelForSequenceClassification.from_pretrained(
            small / "encoder", num_labels=1, output_loading_info=True
        )
    assert info["missing_keys"] == {"score.weight"}
    trunk = critic.model.state_dict()
    assert all(torch.equal(w, trunk[name]) for name, w in actor.model.state_dict().items())
    texts = {(small / name / "tokenizer.json").read_text() for name in ("actor", "encoder")}
    assert len({json.dumps(json.loads(text), sort_keys=True) for text in texts}) == 1


@pytest.mark.parametrize("field", ["num_heads", "num_kv_heads", "vocab_size"])
def test_impossible_shapes_are_refused(field):
    with pytest.raises(ValueError, match="expected"):
        TinyModelConfig(**{field: 3})
