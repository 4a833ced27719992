"""Values of tokens in parts: their losses, what they regress on, and the trees that they are read in."""  # noqa: E501

from dataclasses import replace

import families as benchmark
import family_models
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_training_rows import CUT, ENDED, TEMPLATE, TOKENIZER
from trajectories import trajectory

from lactchain import ConfigError, NonFiniteError
from lactchain.models.attention import FAMILIES
from lactchain_extras.token_values.losses import ilql_losses, monte_carlo_losses
from lactchain_extras.token_values.model import ValueHead, ValueMeaning, ValueModel
from lactchain_extras.token_values.token_view import (
    mean_return,
    monte_carlo_targets,
    one_step_targets,
    token_view,
)
from lactchain_extras.token_values.trees import prefix_trees

REFUSED = [family for family in family_models.FAMILIES if family.model_type not in FAMILIES]


@pytest.mark.parametrize("family", REFUSED, ids=lambda family: family.name)
def test_a_model_of_another_family_is_refused(family):
    bench = benchmark.Bench(family)
    with pytest.raises(ConfigError, match="docs/model_families.md"):
        ValueModel(bench.model, bench.tokenizer, ValueMeaning("mc", 1.0, "", 1, 8))


@pytest.mark.parametrize("start", [3.5e38, -1e39, float("inf"), float("nan")])
def test_a_mean_return_that_no_weight_holds_is_refused(start):
    with pytest.raises(NonFiniteError, match="mean is a float32 number"):
        ValueHead(4, 4, 1, start)
    ValueHead(4, 4, 1, 3.4e38)


def test_targets_and_target_networks_carry_no_gradient():
    names = ("q_tm1", "logsumexp_tm1", "v_tm1", "target_q_tm1", "r_t", "discount_t", "v_t")
    shapes = {"q_tm1": (2, 3), "logsumexp_tm1": (2, 3)}
    tensors = {name: torch.rand(shapes.get(name, (3,)), requires_grad=True) for name in names}
    sum(loss.sum() for loss in ilql_losses(**tensors, expectile=0.7).values()).backward()
    trained = {name for name, tensor in tensors.items() if tensor.grad is not None}
    assert trained == {"q_tm1", "logsumexp_tm1", "v_tm1"}


def test_shapes_of_losses_must_agree():
    with pytest.raises(ValueError, match="expected"):
        monte_carlo_losses(*torch.zeros(4, 2))


def test_where_the_last_text_is_no_state_the_episode_is_cut_before_it():
    infos = ({}, {}, {"shows_state": False})
    view = token_view([replace(CUT, infos=infos), ENDED], TEMPLATE, TOKENIZER)
    one_step, monte_carlo = one_step_targets(view, 0.5), monte_carlo_targets(view, 0.5)
    assert one_step.rewards.tolist() == [-4.0, -1.0, -2.0]
    assert monte_carlo.rewards[0] == -4.0 and monte_carlo.discounts[0] == 0.5
    for targets in (one_step, monte_carlo):
        assert TOKENIZER.decode(view.prompts[targets.prompt_t[0]]) == TEMPLATE.render("at 0")


def test_cut_to_their_first_tokens_decisions_are_discounted_once_each():
    view = token_view([ENDED, CUT], TEMPLATE, TOKENIZER)
    first = view.first_tokens()
    assert first.completions == [completion[:1] for completion in view.completions]
    targets = monte_carlo_targets(first, 0.5)
    assert targets.rewards.tolist() == [-1 - 0.5 * 2, -2, -4 - 0.5 * 8, -8]
    assert targets.discounts.tolist() == [0, 0, 0.25, 0.5]


def test_mean_return_is_the_mean_over_tokens():
    view = token_view([ENDED], TEMPLATE, TOKENIZER)
    first = [-2 * 0.5 ** (6 - i) - 0.5 ** (2 - i) for i in range(3)]
    second = [-2 * 0.5 ** (3 - i) for i in range(4)]
    np.testing.assert_allclose(mean_return(view, 0.5), np.mean([*first, *second]))


def test_long_episodes_do_not_underflow():
    states, completions = ["at 0"] * 3001, ["stay\n"] * 3000
    view = token_view([trajectory(states, completions)], TEMPLATE, TOKENIZER)
    targets = monte_carlo_targets(view, gamma=0.9)
    np.testing.assert_allclose(targets.rewards[0], -1 / (1 - 0.9**3))
    assert np.isfinite(targets.rewards).all()


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=9))
def test_what_sequences_share_in_one_row_is_there_once(sequences):
    trees = prefix_trees(sequences, pad_token_id=9, capacity=1000)
    distinct = {tuple(s[: n + 1]) for s in sequences for n in range(len(s))}
    assert (trees.input_ids != 9).sum() == len(distinct)
