"""Whether a policy reads: on probabilities that are written down, and as the end of a cloning."""

from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from script_setups import BEHAVIOR, config_of, run_here

from lactchain import Action, ConfigError, language_env
from lactchain.data.samples import BATCH, NUM_STATES, retrieval_figures
from lactchain.runs.run import read_metrics
from lactchain.stages.train_bc import require_reading
from lactchain.trainers.behavior_cloning import NUM_LOOKS

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


@pytest.mark.parametrize(("chain_of", "likes", "accuracy", "skill"), [
    (CHAINS.__getitem__, lambda number, text: -float(text != CHAINS[number]), 1, 1),  # reads
    (CHAINS.__getitem__, lambda number, text: -1.0, 1 / 16, 0),  # one in a batch by chance
    # Two chains, each said in half of the states; the wrong half prefers neither.
    (half, lambda number, text: -float(text != half(number)), 1, 1),
    # The likeliest state of both is the first: one half of the completions was said there.
    (half, lambda number, text: 0.0, 1 / 2, 0),
    (lambda number: CHAINS[0], lambda number, text: float(number), 1, 0),  # says one thing
])  # fmt: skip
def test_a_policy_reads_as_far_as_it_tells_states_apart(chain_of, likes, accuracy, skill):
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


def cloning(weights, run_dir, **changes):
    """Shortest paths on the 2x2 grid: learnt in some 60 updates."""
    behavior = replace(BEHAVIOR, num_chains=9600, competent_fraction=1.0)
    values = {"behavior": behavior, "training.learning_rate": 2e-2, "training.batch_size": 32}
    return config_of("train_bc", weights, run_dir, values, **changes)


def test_the_cloning_ends_once_the_actor_reads_and_is_then_finished(weights, tmp_path, monkeypatch):
    config = cloning(weights, tmp_path / "run", target_skill=0.05)
    look = Mock(wraps=retrieval_figures)
    monkeypatch.setattr("lactchain.trainers.behavior_cloning.retrieval_figures", look)
    summary = run_here("train_bc", config)
    updates = summary["num_examples"] // config.training.batch_size
    assert look.call_count == updates // (300 // NUM_LOOKS)  # the last one is not repeated
    assert summary["retrieval_skill"] >= 0.05 and summary["answered_rate"] >= 0.9
    assert 0 < summary["num_examples"] < 9600
    looks = [r for r in read_metrics(tmp_path / "run") if "reading/answered_rate" in r]
    assert looks
    trained = (tmp_path / "run/actor/model.safetensors").read_bytes()
    (tmp_path / "run/summary.json").unlink()
    again = run_here("train_bc", config)
    assert again["num_examples"] == summary["num_examples"]
    assert again["retrieval_skill"] == summary["retrieval_skill"]
    assert (tmp_path / "run/actor/model.safetensors").read_bytes() == trained


def test_an_actor_that_does_not_read_is_an_error_that_says_what_to_do(weights, tmp_path):
    config = cloning(weights, tmp_path / "run", target_skill=0.9)
    few = replace(config, behavior=replace(config.behavior, num_chains=64))
    said = r"target_skill: .* skill of 0.2 .* after 64 chains: .* clone longer"
    with pytest.raises(ConfigError, match=said):
        run_here("train_bc", few)
    assert (tmp_path / "run/actor/model.safetensors").is_file()
    assert not (tmp_path / "run/summary.json").exists()


@pytest.mark.parametrize(("skill", "answered", "goes_on"), [
    (0.85, 1.0, True), (0.76, 1.0, True), (0.21, 1.0, True), (0.19, 1.0, False), (0.76, 0.8, False),
])  # fmt: skip
def test_an_actor_below_its_target_goes_on_if_it_reads(skill, answered, goes_on, weights, tmp_path):
    config = cloning(weights, tmp_path / "run", target_skill=0.8)
    figures = {"retrieval_skill": skill, "answered_rate": answered}
    with nullcontext() if goes_on else pytest.raises(ConfigError, match="after 5120 chains"):
        assert require_reading(figures, config, 5120) == figures
