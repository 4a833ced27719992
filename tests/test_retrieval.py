"""Whether a policy reads, on policies whose probabilities are written down."""

import numpy as np
import pytest

from lactchain.data.samples import BATCH, NUM_STATES, retrieval_figures
from lactchain.environments.language import language_env
from lactchain.types import Action

ENV = language_env()
CHAINS = list(ENV.grammar.completions())


def half(number):
    """One of two chains."""
    return CHAINS[number % 2]


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


@pytest.mark.parametrize(
    ("chain_of", "likes", "accuracy", "skill"),
    [
        (CHAINS.__getitem__, lambda number, text: -float(text != CHAINS[number]), 1, 1),  # reads
        (CHAINS.__getitem__, lambda number, text: -1.0, 1 / 16, 0),  # one in a batch by chance
        # Two chains, each said in half of the states; the wrong half prefers neither.
        (half, lambda number, text: -float(text != half(number)), 1, 1),
        # The likeliest state of both is the first: one half of the completions was said there.
        (half, lambda number, text: 0.0, 1 / 2, 0),
        (lambda number: CHAINS[0], lambda number, text: float(number), 1, 0),  # says one thing
    ],
)
def test_a_policy_reads_as_far_as_its_completions_tell_the_states_apart(
    chain_of, likes, accuracy, skill
):
    found = retrieval_figures(Says(chain_of, likes), ENV, [str(n) for n in range(BATCH)], seed=0)
    figures = {"answered_rate": 1.0, "retrieval_accuracy": accuracy, "retrieval_skill": skill}
    assert found == pytest.approx(figures)


def test_different_observations_are_asked_once_and_those_without_a_chain_left_out():
    chain_of = lambda number: CHAINS[number] if number % 2 else "hm"  # noqa: E731
    policy = Says(chain_of, lambda number, text: -float(number))
    texts = [str(n % 200) for n in range(1000)]
    assert retrieval_figures(policy, ENV, texts, seed=0)["retrieval_accuracy"] < 0.2
    assert len(policy.asked) == len(set(policy.asked)) == NUM_STATES
    assert retrieval_figures(policy, ENV, ["0", "1", "2", "1"], seed=0) == {"answered_rate": 1 / 3}
