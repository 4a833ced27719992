"""What trainers read: rows of tokens, what is left out, and the view of single tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from training_setups import STATES, chain_of, make_cloning
from trajectories import trajectory

from lactchain import Action, ActorConfig, DataError, PreferencePair
from lactchain.models.loading import load_actor
from lactchain.models.prompting import PromptTemplate, encode_completions
from lactchain.models.tiny import build_tiny_tokenizer
from lactchain.trainers.behavior_cloning import cloning_rows
from lactchain.trainers.simpo import drop_reason, preference_rows
from lactchain_extras.token_values.token_view import token_view


@pytest.fixture(scope="module")
def tokenizer(tiny):
    return load_actor(ActorConfig(str(tiny / "actor")))[1]


def test_sampled_ids_are_kept_and_texts_are_encoded_with_an_end(tokenizer):
    letters = [tokenizer.convert_tokens_to_ids(c) for c in "move"]
    sampled = Action("move", token_ids=(*letters, tokenizer.eos_token_id))
    said = [sampled, Action("move"), Action(chain_of(2)), Action("")]
    kept, encoded, chain, empty = encode_completions(said, tokenizer)
    assert kept == [*letters, tokenizer.eos_token_id] != encoded
    assert tokenizer.decode(chain[:-1]) == chain_of(2)
    assert chain[-1] == tokenizer.eos_token_id and empty == []


def test_special_tokens_in_a_text_are_plain_characters(tokenizer):
    [ids] = encode_completions([Action("</s>[INST]")], tokenizer)
    assert not set(ids[:-1]) & set(tokenizer.all_special_ids)
    assert tokenizer.decode(ids[:-1]) == "</s>[INST]"


def test_pairs_that_cannot_be_trained_on_are_dropped_and_counted(tokenizer):
    template = PromptTemplate(tokenizer)
    good = PreferencePair(STATES[0], chain_of(2), chain_of(1))
    other = {"chosen": ""}, {"chosen": chain_of(1)}, {"prompt": STATES[0] * 50}
    bad = [replace(good, **change) for change in other]
    rows, dropped = preference_rows([good, *bad], template, tokenizer, max_length=60)
    assert len(rows) == 1
    assert dropped == {"empty completion": 1, "equal completions": 1, "over-long": 1}
    with pytest.raises(DataError, match="all 3 pairs were dropped.*over-long"):
        preference_rows(bad, template, tokenizer, max_length=60)
    nothing = {"prompt_ids": [], "chosen_ids": [1], "rejected_ids": [2]}
    assert drop_reason(nothing) == "empty prompt"  # no token to predict from


def test_pairs_and_examples_of_another_tokenizer_are_refused(tokenizer):
    other = build_tiny_tokenizer(["quite another corpus, with words of its own"] * 2)
    template = PromptTemplate(tokenizer)

    def sampled(text, by):
        return tuple(encode_completions([Action(text)], by)[0])

    def rows(by, *rejected):
        pair = PreferencePair(STATES[0], chain_of(2), chain_of(1), sampled(chain_of(2), by), ())
        pairs = [pair, pair, replace(pair, rejected_token_ids=rejected)]
        return preference_rows(pairs, template, tokenizer)[0]

    rejected, foreign = sampled(chain_of(1), tokenizer), sampled(chain_of(1), other)
    (*_, row) = rows(tokenizer, *rejected)
    assert row["rejected_ids"] == list(rejected)
    with pytest.raises(DataError, match=r"pairs: row 2, rejected completion: its tokens read .*, "
                       r"its text is '\[.*make the data anew"):  # fmt: skip
        rows(tokenizer, *foreign)
    with pytest.raises(DataError, match="pairs: row 0, chosen completion: its tokens read"):
        rows(other)
    beyond = (*rejected[:-1], len(tokenizer) + 7)  # such as the other's end of sequence
    with pytest.raises(DataError, match=f"its token {beyond[-1]} is none of the {len(tokenizer)} "):
        rows(tokenizer, *beyond)
    examples = [(STATES[0], Action(chain_of(1), ids)) for ids in ((), foreign)]
    with pytest.raises(DataError, match="examples: row 1: its tokens read"):
        cloning_rows(examples, template, tokenizer)


def test_sampled_ids_that_read_as_half_a_character_are_kept(tokenizer):
    bytes_of = tokenizer("é漢", add_special_tokens=False)["input_ids"]
    for cut in range(1, len(bytes_of)):
        ids = tuple(bytes_of[:cut])
        action = Action(tokenizer.decode(ids), ids, stop_reason="length")
        assert encode_completions([action], tokenizer) == [list(ids)]
    special = (tokenizer.bos_token_id, *bytes_of, tokenizer.eos_token_id)
    action = Action(tokenizer.decode(special[:-1]), special)
    assert encode_completions([action], tokenizer) == [list(special)]


def test_cloning_learns_completions_only(tokenizer):
    template = PromptTemplate(tokenizer)
    examples = [(STATES[0], Action(chain_of(1))), (STATES[1], Action(""))]
    rows, dropped = cloning_rows(examples, template, tokenizer)
    (row,) = rows
    prompt = template.encode(STATES[0])
    completion = encode_completions([Action(chain_of(1))], tokenizer)[0]
    assert row["input_ids"] == prompt + completion
    assert row["labels"] == [-100] * len(prompt) + completion
    assert dropped == {"empty completion": 1}


def test_the_cloning_loss_is_that_of_each_completion_by_itself(tiny, run):
    trainer = make_cloning(tiny, run, lora=False)
    trainer.model.eval()
    rows = [*trainer.train_dataset]
    assert len({len(row["input_ids"]) for row in rows}) > 1
    logps = []
    for row in rows:
        logits = trainer.model(torch.tensor([row["input_ids"]])).logits[0].log_softmax(-1)
        labels = enumerate(row["labels"])
        logps += [logits[i - 1, label].item() for i, label in labels if label != -100]
    batch = trainer.data_collator(rows)
    assert len(batch["logits_to_keep"]) < batch["input_ids"].shape[1]
    loss = trainer.compute_loss(trainer.model, batch).item()
    np.testing.assert_allclose(loss, -np.mean(logps), rtol=1e-5)


TOKENIZER = build_tiny_tokenizer(["at 0", "at 1", "at 2", "go left\n", "stay\n"] * 2)
TEMPLATE = PromptTemplate(TOKENIZER)
EOS = TOKENIZER.eos_token_id
STAY = tuple(TOKENIZER.encode("stay", add_special_tokens=False))
LETTERS = [TOKENIZER.encode(c, add_special_tokens=False)[0] for c in "stay\n"]


# `stay` has 3 tokens with its line break and the end of sequence, `go left` has 4.
ENDED = trajectory(["at 0", "at 1", "at 2"], ["stay\n", "go left\n"], [-1.0, -2.0])
CUT = trajectory(["at 1", "at 0", "at 2"], ["go left\n", "stay\n"], [-4.0, -8.0], terminated=False)


def test_decisions_are_prompts_and_exactly_the_tokens_of_the_agent():
    view = token_view([ENDED, CUT], TEMPLATE, TOKENIZER)
    decisions = [(t.observations[i], a) for t in (ENDED, CUT) for i, a in enumerate(t.actions)]
    for row, (observation, completion) in enumerate(decisions):
        prompt = view.prompts[view.prompt_tm1[row]]
        agent = view.completions[view.completion_tm1[row]]
        assert TOKENIZER.decode(prompt) == TEMPLATE.render(observation)
        assert TOKENIZER.decode(agent) == completion.text + TOKENIZER.eos_token
        assert agent.count(EOS) == 1


@pytest.mark.parametrize(("completion", "expected"), [
    (Action("stay\n", (*LETTERS, EOS)), [*LETTERS, EOS]),  # though the text has other tokens
    (Action("stay", STAY, stop_reason="length"), [*STAY]),  # cut: no end of sequence
    (Action(""), [EOS]),
])  # fmt: skip
def test_sampled_tokens_are_kept_and_nothing_said_is_the_end_of_sequence(completion, expected):
    view = token_view([trajectory(["at 0", "at 1"], [completion], [0.0])], TEMPLATE, TOKENIZER)
    assert view.completions == [expected] and view.num_tokens.tolist() == [len(expected)]


def test_other_tokens_more_than_the_context_and_no_decision_are_refused():
    other = trajectory(["at 0", "at 1"], [Action("go left\n", (*STAY, EOS))])
    long = trajectory(["at 0", "at 1", "at 2 " * 50], ["stay\n", "stay\n"])
    nothing = trajectory(["at 0"], [], terminated=False)
    for episodes, said in (
        ([ENDED, other], "episode 1, decision 0.*'stay.*'go left"),
        ([ENDED, long], "episode 1, decision 1.*the model reads 32"),
        ([nothing], "expected decisions"),
    ):
        with pytest.raises(DataError, match=said):
            token_view(episodes, TEMPLATE, TOKENIZER, max_length=32)
