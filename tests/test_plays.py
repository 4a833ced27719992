"""Candidates where the world throws dice: means over plays, as many as the ranking needs."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from dice_worlds import lottery
from script_setups import COLLECT, PREFERENCES, config_of, run_here
from test_preferences import Says

from lactchain import Action, FunctionPolicy, Policy, PreferenceConfig
from lactchain.config.settings import EnvironmentConfig
from lactchain.data.candidates import sample_candidates
from lactchain.data.evaluations import read_values
from lactchain.data.exact_values import expected_figures
from lactchain.data.preferences import make_pairs
from lactchain.data.rollouts import Rollouts
from lactchain.data.worth import PLAYS_PER_COMPLETION, Plays
from lactchain.environments.chance import best_within
from lactchain.environments.exact import all_chains, pad_chains, policy_values
from lactchain.environments.language import make_language_env
from lactchain.environments.scripted import RememberingPolicy
from lactchain.environments.views import tabular_model
from lactchain.functional.random_streams import derive_seed
from lactchain.stages.make_preferences import make_preferences

LOTTERY = EnvironmentConfig("Lottery-v0", max_chain_length=1)
HERE, THERE = {"seen": 0}, {"seen": 1}
TICKETS = [f'["ticket {number}"]' for number in range(4)]


class Values:
    """V is 2 after a low die and 1 after a high one; remembers what it was asked."""

    gamma, discount_per = 0.5, "action"

    def __init__(self, mode="value"):
        self.mode, self.asked = mode, Counter()

    def values(self, observations, actions=None):
        self.asked.update(observations)
        return np.array([2.0 if "1" in text else 1.0 for text in actions or observations])


def dice(seed, count):
    """The dice of the plays of a shard: the first is thrown by its own seed."""
    seeds = [seed, *(derive_seed(seed, "play", number) for number in range(1, count))]
    return np.array([np.random.default_rng(np.random.SeedSequence(s)).random() for s in seeds])


def test_candidates_of_a_world_with_dice_are_means_over_the_same_dice():
    """Four tickets: two plays that show dice, and two rounds of 16 · 4 / 2 for all four of them."""
    rollouts, critic, states = Rollouts(LOTTERY), Values(), [HERE, THERE]
    found = sample_candidates(Says(*TICKETS), rollouts, states, 4, 0, critic, 0.5, "action")
    thrown = dice(0, 2 + 2 * PLAYS_PER_COMPLETION // 2)
    for candidates, before in zip(found, (1.0, 2.0), strict=True):
        wins = [float(np.mean(thrown < chance)) for chance in (0.2, 0.4, 0.6, 0.8)]
        np.testing.assert_allclose(candidates.returns, wins)
        after = np.mean(np.where(thrown < 0.5, 2.0, 1.0))
        np.testing.assert_allclose(candidates.advantages, np.array(wins) + 0.5 * after - before)
    assert rollouts.tally["num_plays"] == 2 * 4 * len(thrown)
    assert rollouts.tally["num_replayed_actions"] == 2 * 4 * (len(thrown) - 1)
    assert set(critic.asked.values()) == {1}  # V of each text once


def test_the_completions_in_the_middle_are_played_less_often_than_both_ends():
    """Eight tickets, three rounds: 8 are left, then 4 + 4 of them, then 2 + 2."""
    tickets = [Action(f'["ticket {number}"]') for number in range(8)]
    rollouts = Rollouts(LOTTERY)
    rollouts.env = lottery(chances=tuple(np.linspace(0.05, 0.95, 8)))
    plays, played = Plays(rollouts, [HERE] * 8, tickets, 0), Counter(range(8))

    def worth(outcomes):
        numbers = [int(outcome.actions[0].text[9]) for outcome in outcomes]
        played.update(numbers)
        return np.stack([numbers, numbers], axis=1).astype(float)

    means = plays.means(8, worth)
    np.testing.assert_allclose(means[:, 0], range(8))
    per_round = PLAYS_PER_COMPLETION * 8 // 3
    two, four = 2 * (per_round // 8), 2 * (per_round // 8) + per_round // 4
    # once beforehand, and once more since the counter began with one of each
    assert played == {n: 2 + (four if n in (0, 1, 6, 7) else two) for n in range(8)}


def test_halving_finds_both_ends_more_often_than_equally_many_plays_for_all():
    """Noise of its own for each play; 40 states with sixteen completions each."""
    rng, num_states, num_arms = np.random.default_rng(0), 40, 16
    arms = np.linspace(0, 1, num_arms)
    states = [{"seen": 0, "copy": copy} for copy in range(num_states) for _ in range(num_arms)]
    actions = [Action(f'["ticket {number}"]') for number in range(num_arms)] * num_states
    rollouts = Rollouts(LOTTERY)
    rollouts.env = lottery(chances=tuple(arms))

    def worth(outcomes):
        means = np.array([arms[int(o.actions[0].text[9:-2])] for o in outcomes])
        noisy = means + rng.normal(0, 0.3, len(means))
        return np.stack([means, noisy], axis=1)

    scores = Plays(rollouts, states, actions, 0).means(num_arms, worth)[:, 1]
    scores = scores.reshape(num_states, num_arms)
    per_arm = rollouts.tally["num_plays"] / scores.size
    equal = arms + rng.normal(0, 0.3 / np.sqrt(per_arm), scores.shape)
    right = {
        name: np.mean((rows.argmax(1) == num_arms - 1) & (rows.argmin(1) == 0))
        for name, rows in {"halving": scores, "equal": equal}.items()
    }
    assert right["halving"] > right["equal"] + 0.05
    assert per_arm <= PLAYS_PER_COMPLETION + 1


def test_without_a_model_a_second_play_tells_whether_there_are_dice():
    two = Says(TICKETS[0], TICKETS[3])

    def played(name):
        rollouts = Rollouts(EnvironmentConfig(name, max_chain_length=1))
        [found] = sample_candidates(two, rollouts, [HERE], 2, 3, Values(), 0.5, "action")
        assert rollouts.deterministic is None
        return found, rollouts.tally["num_plays"]

    found, num_plays = played("NoLottery-v0")  # the die always falls on .5
    assert found.returns == (0, 1) and num_plays == 2 * 2
    assert found.advantages == (0 + 0.5 * 1 - 1, 1 + 0.5 * 1 - 1)
    found, num_plays = played("Lottery-v0")
    assert 0 < found.returns[0] < found.returns[1] < 1 and num_plays > 2 * PLAYS_PER_COMPLETION


def test_where_the_model_has_no_dice_each_completion_is_played_once():
    rollouts = Rollouts(EnvironmentConfig(kwargs={"size": 2}))
    state = {"x": 0, "y": 1, "orientation": 0, "goal_x": 0, "goal_y": 0}
    two = Says('["move forward"]', '["turn left"]')
    [found] = sample_candidates(two, rollouts, [state], 4, 0, None, 0.5, "action")
    assert found.returns == (1, 0, 1, 0)
    assert rollouts.tally["num_plays"] == 2 and rollouts.tally["num_replayed_actions"] == 0


def test_a_critic_of_chains_is_not_asked_about_dice():
    policy, critic = Says(*TICKETS), Values("action_value")
    [found] = sample_candidates(policy, Rollouts(LOTTERY), [HERE], 4, 7, critic, 0.5, "action")
    assert found.advantages == (-0.25, 0.75, -0.25, -0.25)  # Q is 2 of ticket 1, and 1 of others
    assert list(found.returns) == sorted(found.returns)


def test_equal_completions_to_equal_states_share_their_plays():
    rollouts, states = Rollouts(LOTTERY), [HERE] * 50
    found = sample_candidates(Says(*TICKETS), rollouts, states, 4, 0, None, 0.5, "action")
    assert len({candidates.returns for candidates in found}) == 1
    assert rollouts.tally["num_plays"] == 4 * (2 + PLAYS_PER_COMPLETION)


def test_pairs_of_a_world_with_dice_prefer_the_better_ticket_and_say_how_often_was_played():
    policy = FunctionPolicy(lambda text, seed: TICKETS[seed % 4], draws=True)
    settings = PreferenceConfig(num_states=40, num_candidates=6, states_per_shard=20)
    pairs, figures = make_preferences(policy, None, LOTTERY, settings)
    numbers = [(int(pair.chosen[9]), int(pair.rejected[9])) for pair in pairs]
    assert len(pairs) > 30 and all(best > worst for best, worst in numbers)
    assert figures["pairs/plays_per_state"] == figures["pairs/num_plays"] / 40
    assert figures["num_env_steps"] > 40 * 6
    assert figures["pairs/num_plays"] > 2 * 4 * PLAYS_PER_COMPLETION


@pytest.mark.parametrize("longest", [1, 3])
def test_improving_on_exact_values_by_pairs_ends_in_the_optimum_of_the_slippery_lake(longest):
    """Policy iteration: the policy says what was chosen, and begins with any chain at all."""
    config = EnvironmentConfig("FrozenLake-v1", template="{x} {y}", max_chain_length=longest)
    rollouts, critic = Rollouts(config), Values()
    critic.gamma = 0.99
    states, model = rollouts.env.view_states(), tabular_model(rollouts.env.env)
    texts, every = rollouts.observe(states), list(rollouts.env.grammar.completions())
    chains = pad_chains(all_chains(4, longest))
    probabilities = np.full((11, len(chains)), 1 / len(chains))
    for _ in range(5):
        known = dict(zip(texts, policy_values(model, chains, probabilities, 0.99), strict=True))
        critic.values = lambda seen, known=known: np.array([known.get(text, 0.0) for text in seen])
        policy, count = Says(*every), len(every)
        found = sample_candidates(policy, rollouts, states, count, 0, critic, 0.99, "action")
        pairs, _ = make_pairs(found)
        said = {pair.prompt: pair.chosen for pair in pairs}
        probabilities = np.eye(len(chains))[[every.index(said[text]) for text in texts]]
    figures = expected_figures(FunctionPolicy(said.__getitem__), rollouts.env)
    assert figures["of_optimum"] == pytest.approx(1.0)


def test_the_pipeline_runs_where_the_world_throws_dice(tmp_path):
    lake = EnvironmentConfig("FrozenLake-v1", template="{x} {y}", max_chain_length=2, max_chains=10)
    config = config_of("run_pipeline", tmp_path, tmp_path / "run", environment=lake, num_rounds=1)
    preferences = replace(PREFERENCES, num_states=22, min_margin=0.0)
    config = replace(
        config,
        critic=replace(config.critic, collect=replace(COLLECT, num_episodes=48)),
        simpo=replace(config.simpo, preferences=preferences),
    )
    summary = run_here("run_pipeline", config)
    best = best_within(tabular_model(make_language_env(lake).env), 10, 2)[0].mean()
    assert summary["optimum_success"] == pytest.approx(best)
    assert 0 <= summary["of_optimum"] == summary["rounds"][-1]["of_optimum"] <= 1
    assert summary["num_cloned_chains"] > 0 and len(read_values(tmp_path / "run/values.json").exact)
    evaluation = json.loads((tmp_path / "run/round_1/evaluation/summary.json").read_text())
    assert evaluation["num_episodes"] == 46 * 11  # the first multiple of 11 from 500 on
    assert evaluation["actions_over_shortest"] is None
    error = 4 * np.sqrt(best * (1 - best) / 506)
    assert evaluation["success_rate"] == pytest.approx(evaluation["expected_success"], abs=error)


def test_a_greedy_policy_is_asked_once_about_each_text():
    asked = []
    policy = FunctionPolicy(lambda text: asked.append(text) or text.upper(), name="loud")
    remembering = RememberingPolicy(policy)
    assert isinstance(remembering, Policy) and remembering.name == "loud"
    for _ in range(2):
        acted = remembering.act(["a", "b", "a"], [0, 1, 2])
        assert [action.text for action in acted] == ["A", "B", "A"]
    assert asked == ["a", "b"]
