"""Sequences laid out as trees: every one is there, and a model reads it as it does alone."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_tiny_models import SMALL, TOKENIZER
from transformers import MistralForCausalLM

from lactchain.models.families import additive_mask
from lactchain.models.generation.prefix_trees import common_prefix, prefix_trees
from lactchain.models.tiny import mistral_config
from lactchain.models.values import seen_in_tree

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=9)


@given(SEQUENCES, st.sampled_from([None, 1, 10, 1000]))
def test_the_places_of_a_sequence_hold_its_tokens_and_see_only_them(sequences, capacity):
    trees = prefix_trees(sequences, pad_token_id=9, capacity=capacity)
    width = trees.input_ids.shape[1]
    for sequence, places in zip(sequences, trees.places, strict=True):
        assert trees.input_ids.ravel()[places].tolist() == sequence
        assert trees.position_ids.ravel()[places].tolist() == list(range(len(sequence)))
        row, last = places[0] // width, places[-1] % width
        ends = trees.subtree_ends[row]
        seen = (np.arange(width) <= last) & (last < ends)
        assert np.flatnonzero(seen).tolist() == (places % width).tolist()
    used = {place for places in trees.places for place in places}
    assert used == set(np.flatnonzero(trees.input_ids.ravel() != 9))


@given(SEQUENCES)
def test_what_sequences_share_in_one_row_is_there_once(sequences):
    trees = prefix_trees(sequences, pad_token_id=9, capacity=1000)
    distinct = {tuple(s[: n + 1]) for s in sequences for n in range(len(s))}
    assert (trees.input_ids != 9).sum() == len(distinct)


@given(st.lists(st.integers(0, 1), max_size=12), st.lists(st.integers(0, 1), max_size=12))
def test_common_prefix_is_that_of_a_loop(one, other):
    expected = 0
    while expected < min(len(one), len(other)) and one[expected] == other[expected]:
        expected += 1
    assert common_prefix(one, other) == expected


def test_hidden_states_in_a_tree_are_those_of_the_sequence_alone():
    torch.manual_seed(0)
    model = MistralForCausalLM(mistral_config(SMALL, TOKENIZER)).eval().get_decoder()
    generator = np.random.default_rng(0)
    shared = generator.integers(5, 200, 12).tolist()
    sequences = [
        shared[: generator.integers(1, 12)] + generator.integers(5, 200, 6).tolist()
        for _ in range(10)
    ]
    trees = prefix_trees(sequences, pad_token_id=0)
    assert trees.input_ids.size < 0.8 * sum(map(len, sequences))
    tensors = {n: torch.from_numpy(getattr(trees, n)) for n in ("input_ids", "position_ids")}
    bias = additive_mask(seen_in_tree(torch.from_numpy(trees.subtree_ends)), torch.float32)
    with torch.no_grad():
        hidden = model(**tensors, attention_mask=bias).last_hidden_state.flatten(0, 1)
        for sequence, places in zip(sequences, trees.places, strict=True):
            alone = model(input_ids=torch.tensor([sequence])).last_hidden_state[0]
            torch.testing.assert_close(hidden[places], alone, atol=1e-5, rtol=1e-5)
