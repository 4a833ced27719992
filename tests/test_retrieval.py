"""Whether a policy reads, on policies whose probabilities are written down."""

import numpy as np
import pytest

from lactchain.data.retrieval import BATCH, NUM_STATES, retrieval_figures
from lactchain.environments.language import language_env
from lactchain.types import Action

ENV = language_env()
ANSWERED = {"answered_rate": 1.0}
CHAINS = list(ENV.grammar.completions())


class Says:
    """Answers the text "7" by `chain_of(7)`; `likes(text, completion)` is a log-probability."""

    name = "says"

    def __init__(self, chain_of, likes):
        self.chain_of, self.likes = chain_of, likes
        self.asked = []

    def act(self, observations, seeds):
        self.asked += observations
        return [Action(self.chain_of(int(text))) for text in observations]

    def log_probs(self, observations, actions):
        assert len({action.text for action in actions}) == len(actions) <= BATCH
        return np.array([[self.likes(int(o), a.text) for a in actions] for o in observations])


def figures(policy, count=BATCH):
    return retrieval_figures(policy, ENV, [str(n) for n in range(count)], seed=0)


def test_a_policy_that_reads_finds_every_state():
    policy = Says(CHAINS.__getitem__, lambda number, text: -float(text != CHAINS[number]))
    assert figures(policy) == ANSWERED | {"retrieval_accuracy": 1.0, "retrieval_skill": 1.0}


def test_a_policy_that_does_not_read_finds_one_in_a_batch():
    policy = Says(CHAINS.__getitem__, lambda number, text: -1.0)
    found = figures(policy)
    assert found["retrieval_accuracy"] == pytest.approx(1 / 16)
    assert found["retrieval_skill"] == pytest.approx(0)


def test_equal_completions_do_not_count_against_a_policy():
    """Two chains, each said in half of the states; the wrong half prefers neither."""
    said = lambda number: CHAINS[number % 2]  # noqa: E731
    reads = Says(said, lambda number, text: -float(text != said(number)))
    assert figures(reads) == ANSWERED | {"retrieval_accuracy": 1.0, "retrieval_skill": 1.0}
    # The likeliest state of both chains is the first one: one half of the completions was said
    # there, which is no more than chance.
    found = figures(Says(said, lambda number, text: 0.0))
    assert found == ANSWERED | {"retrieval_accuracy": 0.5, "retrieval_skill": 0.0}


def test_a_policy_that_says_one_thing_to_everything_does_not_read():
    found = figures(Says(lambda number: CHAINS[0], lambda number, text: float(number)))
    assert found == ANSWERED | {"retrieval_accuracy": 1.0, "retrieval_skill": 0.0}


def test_different_observations_are_asked_once_and_those_without_a_chain_left_out():
    policy = Says(
        lambda number: CHAINS[number] if number % 2 else "hm", lambda number, text: -float(number)
    )
    texts = [str(n % 200) for n in range(1000)]
    assert retrieval_figures(policy, ENV, texts, seed=0)["retrieval_accuracy"] < 0.2
    assert len(policy.asked) == len(set(policy.asked)) == NUM_STATES
    assert retrieval_figures(policy, ENV, ["0", "1", "2", "1"], seed=0) == {"answered_rate": 1 / 3}
