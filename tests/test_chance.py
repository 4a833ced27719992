"""Optima over chains in worlds with chance, against numbers by hand and against play."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

from lactchain import EnvironmentConfig, FunctionPolicy, Rollouts, evaluate, language_env
from lactchain.data.chain_values import expected_worth
from lactchain.data.episodes import all_episodes
from lactchain.data.exact_values import expected_figures
from lactchain.environments import exact
from lactchain.environments.chance import best_chains, best_values, within_chains
from lactchain.environments.scripted import OptimalChains
from lactchain.environments.views import tabular_model
from lactchain.types import Discount

AT_A, AT_B, GOAL, HOLE = range(4)
CAREFUL, BOLD = range(2)


def bridge():
    """From A careful steps lead to B every other time, a bold one to the goal every fourth time.

    From B a bold step leads to the goal, a careful one into the hole. What is left leads nowhere
    (careful) or into the hole (bold).
    """
    next_state = np.array([[[AT_A, AT_B], [GOAL, HOLE]], [[HOLE, HOLE], [GOAL, GOAL]]])
    ended = np.broadcast_to(np.arange(2, 4)[:, None, None], (2, 2, 2))
    probability = np.full((4, 2, 2), 0.5)
    probability[AT_A, BOLD] = 0.25, 0.75
    next_state = np.concatenate([next_state, ended])
    reward = (next_state == GOAL).astype(float)
    reward[2:] = 0.0
    over = np.arange(4) >= GOAL
    states = tuple({"place": place} for place in range(4))
    return exact.TabularModel(next_state, probability, reward, over, np.arange(4) == GOAL, states)


@pytest.mark.parametrize(("longest", "discount_per", "cost", "values", "chains"), [
    # V(A) = .9 (.5 + .5 V(A)): it is best to be careful until B is reached
    (1, "action", 0.0, (0.45 / 0.55, 1.0), [(CAREFUL,), (BOLD,)]),
    (2, "action", 0.0, (0.45 / 0.55, 1.0), [(CAREFUL,), (BOLD,)]),
    # each chain costs .3: V(A) = -.3 + .9 (.5 * .7 + .5 V(A))
    (1, "action", 0.3, (0.015 / 0.55, 0.7), [(CAREFUL,), (BOLD,)]),
    # both at once: from B, where half of the careful steps led, and a quarter of the other half
    (2, "action", 0.3, (0.9 * 0.625 - 0.3, 0.7), [(CAREFUL, BOLD), (BOLD,)]),
    (2, "chain", 0.3, (0.625 - 0.3, 0.7), [(CAREFUL, BOLD), (BOLD,)]),
])  # fmt: skip
def test_the_best_chains_by_hand(longest, discount_per, cost, values, chains):
    found = best_chains(bridge(), longest, 0.9, discount_per, cost)
    np.testing.assert_allclose(found[0], values)
    assert list(found[1]) == chains


def test_the_most_that_so_many_chains_can_reach_by_hand():
    # alone a bold step; then a careful one before it; then two
    for num_chains, success in ((1, 0.25), (2, 0.625), (3, 0.8125)):
        np.testing.assert_allclose(within_chains(bridge(), num_chains, 1)[0], (success, 1.0))
    # two actions at once: careful, bold
    np.testing.assert_allclose(within_chains(bridge(), 1, 2)[0], (0.625, 1.0))
    _, returns = within_chains(bridge(), 2, 1, chain_cost=0.3)
    # two chains if the first leads to A or B, which then is worth .7 at B and .25 - .3 at A
    np.testing.assert_allclose(returns, (-0.3 + 0.5 * 0.7 + 0.5 * -0.05, 0.7))


def test_chain_values_equal_values_of_a_policy_of_that_chain():
    """Second implementation: the linear system of `policy_values`, one chain for all states."""
    model, longest = tabular_model(gym.make("FrozenLake-v1")), 3
    chains = exact.pad_chains(exact.all_chains(4, longest))
    for discount_per in ("action", "chain"):
        for number in (0, 3, 7, 19, 20, 50, 83):
            always = np.eye(len(chains))[[number] * 11]
            values = np.zeros(16)
            known = exact.policy_values(model, chains, always, 0.9, discount_per)
            values[model.non_terminal] = known
            again = exact.chain_values(model, values, longest, 0.9, discount_per)[number]
            np.testing.assert_allclose(again, values, atol=1e-12)


def test_without_a_cost_the_best_chain_is_a_single_action():
    model = tabular_model(gym.make("FrozenLake-v1"))
    values, chains = best_chains(model, 3, 0.99)
    np.testing.assert_allclose(values, exact.optimal_values(model, 0.99), rtol=1e-9)
    assert {len(chain) for chain in chains} == {1}
    # the well-known chance within Gymnasium's limit of a hundred steps
    assert within_chains(model, 100, 1)[0][0] == pytest.approx(0.7442, abs=1e-4)


@pytest.mark.parametrize("discount_per", ["action", "chain"])
@pytest.mark.parametrize("cost", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("longest", [1, 2, 4])
def test_without_dice_the_best_values_are_those_of_the_best_chains(longest, cost, discount_per):
    for env_id, kwargs in (("FrozenLake-v1", {"is_slippery": False}), ("CliffWalking-v1", {})):
        model = tabular_model(gym.make(env_id, **kwargs))
        one_by_one, _ = best_chains(model, longest, 0.9, discount_per, cost)
        found = best_values(model, longest, 0.9, discount_per, cost)
        np.testing.assert_allclose(found, one_by_one, atol=1e-9)


def test_best_values_are_found_where_there_are_too_many_chains():
    """5,460 chains: from the start of the lake six actions are a chain, and one more is enough."""
    model = tabular_model(gym.make("FrozenLake-v1", is_slippery=False))
    found = best_values(model, 6, 0.8, chain_cost=0.02)
    assert found[0] == pytest.approx(0.8**5 - 0.02)
    expected = max(0.8**5 - 0.02 - 0.02 * 0.8**n for n in range(1, 6))
    assert best_values(model, 5, 0.8, chain_cost=0.02)[0] == pytest.approx(expected)


def answers(text):
    """What is said depends on the state, on a bump, and on a refusal."""
    if "changed" in text:
        return '["left"]'
    if "(1, 0)" in text and "not a legal" not in text:
        return "well"
    return '["right", "down"]'


@pytest.mark.parametrize("template", [None, "{x} {y}"])
def test_expected_figures_are_those_of_play(template):
    """Within four standard errors of 1,100 episodes."""
    config = EnvironmentConfig(
        "FrozenLake-v1", template=template, max_chain_length=2, max_chains=12,
        invalid_penalty=-0.3, chain_cost=0.02,
    )  # fmt: skip
    rollouts, policy = Rollouts(config, num_envs=1), FunctionPolicy(answers)
    figures = expected_figures(policy, rollouts.env)
    _, played = evaluate(policy, rollouts, num_per_start=100)
    error = np.sqrt(0.1 * 0.9 / 1100)
    assert figures["expected_success"] == pytest.approx(played["success_rate"], abs=4 * error)
    assert figures["expected_return"] == pytest.approx(played["episode_return"], abs=8 * error)
    model = tabular_model(rollouts.env.env)
    success, returns = within_chains(model, 12, 2, chain_cost=0.02)
    assert figures["optimum_success"] == pytest.approx(success.mean())
    assert figures["optimum_return"] == pytest.approx(returns.mean())
    values, _ = best_chains(model, 2, 0.99, chain_cost=0.02)
    assert figures["optimum_value"] == pytest.approx(values.mean())
    # without a limit, and discounted: each of 300 completions is worth .99 of the one before
    rollouts = Rollouts(replace(config, max_chains=90), num_envs=1)
    episodes = all_episodes(rollouts.env, 1, 50)
    returns = [trajectory.returns(0.99)[0] for trajectory in rollouts.play(policy, episodes)]
    error = np.std(returns) / np.sqrt(len(returns))
    assert figures["expected_value"] == pytest.approx(np.mean(returns), abs=4 * error + 0.02)


def test_expected_figures_end_where_gymnasium_ends_an_episode():
    """A hundred actions on the lake, however many completions an episode may have."""
    policy = FunctionPolicy(lambda text: '["down"]')
    lakes = [language_env("FrozenLake-v1", max_chain_length=1, max_chains=n) for n in (100, 300)]
    figures = [expected_figures(policy, lake) for lake in lakes]
    assert figures[0] == figures[1]
    longer = {"max_episode_steps": 300}
    lake = language_env("FrozenLake-v1", longer, max_chain_length=1, max_chains=300)
    assert expected_figures(policy, lake)["optimum_success"] > figures[1]["optimum_success"] + 0.05


@pytest.mark.parametrize("penalty", [0.0, -200.0])
def test_silence_is_no_way_to_the_optimum_where_steps_cost(penalty):
    kwargs = {"is_slippery": True}
    env = language_env("CliffWalking-v1", kwargs, max_chain_length=1, invalid_penalty=penalty)
    texts = [env.reset(options={"state": state})[0] for state in env.view_states()]
    best = [action.text for action in OptimalChains(env).act(texts, range(len(texts)))]
    said = dict(zip(texts, best, strict=True)) | dict.fromkeys(texts[1::2], "")
    half = expected_figures(FunctionPolicy(lambda text: said.get(text, "")), env)
    silent = expected_figures(FunctionPolicy(lambda text: ""), env)
    # for ever at -100, the worst that a step can cost, or at the penalty
    assert silent["expected_value"] == pytest.approx(min(-100, penalty) / (1 - 0.99))
    assert silent["expected_return"] == pytest.approx(penalty * env.max_chains)  # as it is played
    assert 0 < silent["of_optimum"] < half["of_optimum"] < 0.1


def test_what_chains_are_worth_by_hand():
    """Beside the goal, above, right: a third each slips down (a bump), to the goal, and up."""
    env = language_env("FrozenLake-v1", max_chain_length=2, chain_cost=0.1)
    state = {"state": 14}

    def values(texts):
        return np.array([2.0 if "changed" in text else 1.0 for text in texts])

    for discount_per, discount in (("action", 0.25), ("chain", 0.5)):
        decisions = [state] * 2, [(2,), (2, 2)]
        worth = expected_worth(env, *decisions, values, Discount(0.5, discount_per))
        np.testing.assert_allclose(worth[0], (1 / 3 - 0.1, 1 / 3 - 0.1 + 0.5 * (2 + 1) / 3))
        # the second step, from 14 (bumped already) and from 10, whose neighbours are 14, 11 (a
        # hole) and 6: a ninth each to the goal and, bumped, to 14 and 10; and to 14 and 6
        second = 1 / 9 * (0.5 if discount_per == "action" else 1.0)
        after = discount * (2 * 2 / 9 + 2 * 1 / 9)
        np.testing.assert_allclose(worth[1], (1 / 3 + second - 0.1,) * 2 + np.array((0, after)))


@pytest.mark.parametrize(("env_id", "changes"), [
    ("FrozenLake-v1", {"kwargs": {"is_slippery": False}}),
    ("FrozenLake-v1", {"max_chain_length": 9}),
    ("FrozenLake-v1", {"history": 3}),
    ("Taxi-v4", {"kwargs": {"fickle_passenger": True}}),
])  # fmt: skip
def test_what_cannot_be_computed_or_is_no_chance_has_no_expected_figures(env_id, changes):
    config = EnvironmentConfig(env_id, **{"max_chain_length": 2} | changes)
    assert expected_figures(FunctionPolicy(answers), Rollouts(config).env) == {}
