"""Scripted policies: the protocol, their distributions, and that the optimal one is optimal."""

import numpy as np
import pytest

from lactchain import Mixture, OptimalChains, Policy, RandomChains, language_env
from lactchain.environments.exact import shortest_paths
from lactchain.environments.views import tabular_model

SHORT = "{x} {y} {orientation} {goal_x} {goal_y}"


@pytest.fixture(scope="module")
def env():
    return language_env(max_chain_length=5)


def lengths_of(env, completions):
    return np.array([len(env.extractor.parse(said.text).actions) for said in completions])


def test_a_row_depends_on_its_own_seed_alone(env):
    observations = [env.reset(seed=seed)[0] for seed in range(20)]
    optimal, random = OptimalChains(env), RandomChains(env.grammar)
    for policy in (optimal, random, Mixture(optimal, random, 0.3)):
        assert isinstance(policy, Policy)
        together = policy.act(observations, range(20))
        alone = [policy.act([text], [seed])[0] for seed, text in enumerate(observations)]
        assert together == alone
        assert policy.act(observations[::-1], range(19, -1, -1)) == together[::-1]
        assert policy.act([], []) == []


@pytest.mark.parametrize(("env_id", "kwargs", "template"), [
    ("lactchain/GridWorld-v0", {}, None), ("CliffWalking-v1", {}, None),
    ("lactchain/GridWorld-v0", {"size": 5, "walls": [(2, 2), (1, 3)]}, SHORT),
    ("FrozenLake-v1", {"is_slippery": False}, None),
])  # fmt: skip
def test_optimal_chains_take_the_shortest_path_from_every_state(env_id, kwargs, template):
    env = language_env(env_id, kwargs, template=template, max_chain_length=4)
    policy = OptimalChains(env)
    distances = shortest_paths(tabular_model(env.env))
    for state, distance in zip(env.view_states(), distances, strict=True):
        text, _ = env.reset(options={"state": state})
        taken, terminated = 0, False
        while not terminated:
            [action] = policy.act([text], [0])
            text, _, terminated, truncated, info = env.step(action.text)
            assert not truncated and not info["invalid_action"]
            taken += len(info["executed"])
        assert taken == distance and info["success"]


def test_the_optimal_policy_understands_feedback(env):
    policy = OptimalChains(env)
    state = {"x": 0, "y": 0, "orientation": 0, "goal_x": 0, "goal_y": 1}
    plain, _ = env.reset(options={"state": state})
    invalid = env.step("what?")[0]
    bumped = env.step('["move forward"]')[0]
    assert len({plain, invalid, bumped}) == 3
    completions = {action.text for action in policy.act([plain, invalid, bumped], [0, 1, 2])}
    assert completions == {'["turn left", "turn left", "move forward"]'}


def test_a_text_that_hides_the_state_is_refused():
    with pytest.raises(ValueError, match="template: expected a text for each state"):
        OptimalChains(language_env(template="{x} {y}"))
    with pytest.raises(ValueError, match="observation: expected a state"):
        OptimalChains(language_env()).act(["somewhere"], [0])


def test_random_chains_are_uniform_in_length_and_action(env):
    completions = RandomChains(env.grammar).act([""] * 5000, range(5000))
    chains = [env.extractor.parse(completion.text).actions for completion in completions]
    lengths = np.bincount([len(chain) for chain in chains])
    np.testing.assert_allclose(lengths, [0, *[1000] * 5], atol=130)  # 4.5 standard deviations
    assert abs(np.mean([a for chain in chains for a in chain]) - 0.5) < 0.02
    short = RandomChains(env.grammar, 2).act([""] * 50, range(50))
    assert {*lengths_of(env, short)} == {1, 2}


def test_the_coin_of_a_mixture_does_not_sort_the_random_chains(env):
    """Random rows of a mixture have the distribution of random chains."""
    mixture = Mixture(RandomChains(env.grammar, 1), RandomChains(env.grammar), 0.5)
    lengths = lengths_of(env, mixture.act([""] * 4000, range(4000)))
    long = lengths[lengths > 1]
    np.testing.assert_allclose(np.bincount(long)[2:] / len(long), 0.25, atol=0.05)
    with pytest.raises(ValueError, match="competent_fraction"):
        Mixture(RandomChains(env.grammar), RandomChains(env.grammar), 1.5)
