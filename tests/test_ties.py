"""Equals are told apart by rule, the shortest first, whatever the last bits of their scores are."""

import numpy as np
import pytest

from lactchain.data.preferences import Candidates, has_spread, make_pairs
from lactchain.functional.ties import best_of
from lactchain.types import Action

ROUNDING = 3e-7


@pytest.mark.parametrize("rounding", [0.0, ROUNDING, -ROUNDING])
def test_the_best_is_the_greatest_and_of_equals_the_shortest_and_of_those_the_first(rounding):
    lengths = np.array([9, 4, 4, 1])
    scores = np.array([[2.0 + rounding, 2.0, 2.0 + rounding, 1.0], [1.0, 1.0, 1.1, 1.0]])
    assert best_of(scores, lengths).tolist() == [1, 2]
    assert best_of(scores, np.stack([lengths[::-1], lengths])).tolist() == [0, 2]
    assert best_of(1000 * scores, lengths).tolist() == [1, 2]
    assert best_of(np.full((1, 3), -np.inf), np.array([3, 2, 2])).tolist() == [1]


def test_a_pair_does_not_depend_on_the_last_bit_of_a_mean():
    texts, scores = ("goal and on",) * 3 + ("goal", "nowhere"), (0.1,) * 4 + (0.0,)
    assert np.mean(scores[:3]) > scores[3]  # by rounding
    actions = tuple(map(Action, texts))
    (pair,), _ = make_pairs([Candidates("where?", actions, scores, scores)])
    assert (pair.chosen, pair.rejected) == ("goal", "nowhere")
    equals = Candidates("where?", actions[:4], scores[:4], scores[:4])
    assert make_pairs([equals]) == ([], {"tie": 1})
    assert not has_spread(equals)
