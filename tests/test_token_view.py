"""The token view of episodes: which tokens are the agent's, and what their values regress on."""

from dataclasses import replace

import numpy as np
import pytest

from lactchain.data.token_view import mean_return, monte_carlo_targets, one_step_targets, token_view
from lactchain.errors import DataError
from lactchain.models.prompting import PromptTemplate
from lactchain.models.tiny import build_tiny_tokenizer
from lactchain.types import Action, Trajectory

TOKENIZER = build_tiny_tokenizer(["at 0", "at 1", "at 2", "go left\n", "stay\n"] * 2)
TEMPLATE = PromptTemplate(TOKENIZER)
EOS = TOKENIZER.eos_token_id
STAY = tuple(TOKENIZER.encode("stay", add_special_tokens=False))
LETTERS = [TOKENIZER.encode(c, add_special_tokens=False)[0] for c in "stay\n"]


def episode(states, completions, rewards, terminated=True) -> Trajectory:
    said = tuple(a if isinstance(a, Action) else Action(a) for a in completions)
    return Trajectory(
        "test/Env-v0", 0, tuple(states), said, tuple(rewards), ({},) * len(states),
        terminated, not terminated,
    )  # fmt: skip


# `stay` has 3 tokens with its line break and the end of sequence, `go left` has 4.
ENDED = episode(["at 0", "at 1", "at 2"], ["stay\n", "go left\n"], [-1.0, -2.0], True)
CUT = episode(["at 1", "at 0", "at 2"], ["go left\n", "stay\n"], [-4.0, -8.0], False)


def test_the_mask_covers_exactly_the_tokens_of_the_agent():
    view = token_view([ENDED, CUT], TEMPLATE, TOKENIZER)
    decisions = [(t.observations[i], a) for t in (ENDED, CUT) for i, a in enumerate(t.actions)]
    for row, (observation, completion) in enumerate(decisions):
        ids, mask = view.mask(row)
        agent, rest = np.array(ids)[mask], np.array(ids)[~mask]
        assert TOKENIZER.decode(rest) == TEMPLATE.render(observation)
        assert TOKENIZER.decode(agent) == completion.text + TOKENIZER.eos_token
        assert agent.tolist().count(EOS) == 1


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (Action("stay\n", (*LETTERS, EOS)), [*LETTERS, EOS]),  # though the text has other tokens
        (Action("stay", STAY, stop_reason="length"), [*STAY]),  # cut: no end of sequence
        (Action(""), [EOS]),
    ],
)
def test_sampled_tokens_are_kept_and_nothing_said_is_the_end_of_sequence(completion, expected):
    view = token_view([episode(["at 0", "at 1"], [completion], [0.0])], TEMPLATE, TOKENIZER)
    assert view.completions == [expected]
    assert view.num_tokens.tolist() == [len(expected)]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            episode(["at 0", "at 1"], [Action("go left\n", (*STAY, EOS))], [0.0]),
            "episode 1, decision 0.*'stay.*'go left",
        ),
        (
            episode(["at 0", "at 1", "at 2 " * 50], ["stay\n", "stay\n"], [0.0, 0.0]),
            "episode 1, decision 1.*the model reads 32",
        ),
    ],
)
def test_tokens_of_another_text_and_more_than_the_context_are_named(wrong, said):
    with pytest.raises(DataError, match=said):
        token_view([ENDED, wrong], TEMPLATE, TOKENIZER, max_length=32)


def test_no_decision_is_an_error():
    with pytest.raises(DataError, match="expected decisions"):
        token_view([episode(["at 0"], [], [], False)], TEMPLATE, TOKENIZER)


def test_where_the_last_text_is_no_state_the_episode_is_cut_before_it():
    infos = ({}, {}, {"shows_state": False})
    view = token_view([replace(CUT, infos=infos), ENDED], TEMPLATE, TOKENIZER)
    one_step, monte_carlo = one_step_targets(view, 0.5), monte_carlo_targets(view, 0.5)
    assert one_step.reward.tolist() == [-4.0, -1.0, -2.0]
    assert monte_carlo.reward[0] == -4.0 and monte_carlo.discount[0] == 0.5
    for targets in (one_step, monte_carlo):
        assert TOKENIZER.decode(view.prompts[targets.after[0]]) == TEMPLATE.render("at 0")


def test_cut_to_their_first_tokens_decisions_are_discounted_once_each():
    view = token_view([ENDED, CUT], TEMPLATE, TOKENIZER)
    first = view.first_tokens()
    for row in range(len(view)):
        ids, mask = view.mask(row)
        assert first.mask(row)[0] == ids[: mask.argmax() + 1]
    targets = monte_carlo_targets(first, 0.5)
    assert targets.reward.tolist() == [-1 - 0.5 * 2, -2, -4 - 0.5 * 8, -8]
    assert targets.discount.tolist() == [0, 0, 0.25, 0.5]


def test_mean_return_is_the_mean_over_tokens():
    view = token_view([ENDED], TEMPLATE, TOKENIZER)
    first = [-2 * 0.5 ** (6 - i) - 0.5 ** (2 - i) for i in range(3)]
    second = [-2 * 0.5 ** (3 - i) for i in range(4)]
    np.testing.assert_allclose(mean_return(view, 0.5), np.mean([*first, *second]))


def test_long_episodes_do_not_underflow():
    states, completions = ["at 0"] * 3001, ["stay\n"] * 3000
    view = token_view([episode(states, completions, [-1.0] * 3000, True)], TEMPLATE, TOKENIZER)
    targets = monte_carlo_targets(view, gamma=0.9)
    np.testing.assert_allclose(targets.reward[0], -1 / (1 - 0.9**3))
    assert np.isfinite(targets.reward).all()
