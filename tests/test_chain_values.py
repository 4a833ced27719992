"""What completions are worth: exactly where outcomes are known, or by as many plays as it takes."""

import json
from collections import Counter
from dataclasses import replace
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from script_setups import PREFERENCES, Finds, Says, run_smallest

from lactchain import Action, EnvironmentConfig, FunctionPolicy, Policy, Rollouts, make_pairs
from lactchain.data.candidates import sample_candidates
from lactchain.data.chain_values import PLAYS_PER_COMPLETION, Plays, expected_worth
from lactchain.data.episodes import RecordedText
from lactchain.data.evaluations import read_values
from lactchain.data.exact_values import expected_figures
from lactchain.data.preferences import read_pairs
from lactchain.data.sources import read_trajectories
from lactchain.environments.chance import within_chains
from lactchain.environments.exact import all_chains, pad_chains, policy_values
from lactchain.environments.language import LanguageEnv, language_env, make_language_env
from lactchain.environments.scripted import RandomChains, RememberingPolicy
from lactchain.environments.views import Outcome, TextView, reset_into, shipped_view, tabular_model
from lactchain.errors import ConfigError
from lactchain.functional.random_streams import derive_seed
from lactchain.stages.train_bc import BehaviorConfig, behavior_examples
from lactchain.types import Discount
from lactchain_extras.wordle.env import CLUES_TEMPLATE, Wordle
from lactchain_extras.wordle.words import read_board

WORDS = ["level", "motto", "shirt"]
EMPTY = {"guesses": [], "feedback": []}
FEW = EnvironmentConfig("lactchain/Wordle-v0", {"words": WORDS}, extractor="utterance")
SOME = {"words": list(Wordle().tables.words[::20])}
MANY = replace(FEW, kwargs=SOME, template=CLUES_TEMPLATE)


def candidates_in(rollouts, question, said, critic):
    [found] = sample_candidates(Says(*said), rollouts, [question], 3, 0, critic)
    assert rollouts.tally["num_plays"] == 3  # no dice are thrown for it
    return found


def test_candidates_of_wordle_are_ranked_by_every_word_that_fits():
    said = ["l e v e l\n", "m o t t o\n", "nonsense\n"]
    rollouts = Rollouts(replace(FEW, template=CLUES_TEMPLATE))
    found = candidates_in(rollouts, EMPTY, said, Finds(lambda text: text.split()[0]))
    # -1 and half of the five tries that are left then, for each word but that of the guess
    worth = np.array([2 / 3 * (-1 + 2.5), 2 / 3 * (-1 + 2.5), -1 + 2.5])
    np.testing.assert_allclose(found.advantages, worth - 6)
    np.testing.assert_allclose(found.returns, [-2 / 3, -2 / 3, -1])


def outcomes(env, action, state=EMPTY):
    env.reset(options={"state": state})
    return env.view.outcomes(env.env, action)


def test_what_may_come_of_a_guess_by_hand():
    env = language_env(FEW.id, FEW.kwargs, extractor="utterance")
    found = outcomes(env, 0)  # level: motto and shirt have none of its letters
    assert [(o.probability, o.reward) for o in found] == [(2 / 3, -1), (1 / 3, 0)]
    assert found[0].state == {"guesses": ["level"], "feedback": ["bbbbb"]} and not found[1].state
    marks = {None if o.state is None else o.state["feedback"][0] for o in outcomes(env, 1)}
    assert marks == {None, "bbbbb", "bbyyb"}
    # the last try ends the game, whatever comes of it
    last = {"guesses": ["zzzzz"] * 5, "feedback": ["bbbbb"] * 5}
    assert [o.state for o in outcomes(env, 1, last)] == [None] * 3
    paid = Wordle(WORDS, reward=lambda *_: np.zeros(1))
    assert paid.text_view().outcomes is None  # whose rewards nobody has listed


def lake(env, action):
    listed = env.unwrapped.P[env.unwrapped.s][action]
    return [Outcome(p, reward, None if over else {"state": s}) for p, s, reward, over in listed]


@pytest.mark.parametrize("discount_per", ["action", "chain"])
def test_outcomes_tell_what_the_exact_model_tells(discount_per):
    world = gym.make("FrozenLake-v1")
    view = shipped_view(world.unwrapped)
    settings = {"max_chain_length": 2, "chain_cost": 0.1}
    known = LanguageEnv(world, view, **settings)
    listed = LanguageEnv(world, replace(view, model=None, outcomes=lake), **settings)
    states = [{"state": number} for number in (0, 6, 10, 14) for _ in range(3)]
    chains = [(2,), (2, 2), (1, 0)] * 4

    def values(texts):
        return np.array([len(text) + 10.0 * ("changed" in text) for text in texts])

    for critic in (values, None):
        asked = states, chains, critic, Discount(0.5, discount_per)
        np.testing.assert_allclose(expected_worth(listed, *asked), expected_worth(known, *asked))


def test_a_text_of_a_game_is_worth_the_same_by_whichever_guesses_it_came_about():
    """Neither of the first two words has a letter of the third."""
    rollouts = Rollouts(replace(FEW, kwargs={"words": ["level", "ghoul", "shirt"]}))
    games = [{"guesses": [word], "feedback": ["bbbbb"]} for word in ("level", "zzzzz")]
    said = [rollouts.env.grammar.render([number]) for number in range(3)]
    found = candidates_in(rollouts, RecordedText("read", tuple(games)), said, None)
    assert list(found.returns) == [-1, -1, 0]


def test_a_warm_start_in_wordle_clones_words_that_fit_what_is_shown_and_no_unknown_policy():
    rollouts = Rollouts(MANY)
    env, words = rollouts.env, rollouts.env.env.unwrapped.tables
    examples = behavior_examples(env, BehaviorConfig(200, competent_fraction=1.0), seed=0)
    assert len(examples) == 200 and sum(text.startswith("6 tries") for text, _ in examples) > 30
    for text, action in examples:
        [guess] = env.extractor.parse(action.text).actions
        shown = [line.replace("-", "").split()[1:] for line in text.splitlines()[1:]]
        absent, elsewhere, known = shown
        word = words.words[guess]
        assert not set(word) & {letter.lower() for letter in absent}
        assert all(word[int(place) - 1] != letter for letter, place in elsewhere)
        assert all(word[int(place) - 1] == letter.lower() for letter, place in known)
    assert behavior_examples(env, BehaviorConfig(200, competent_fraction=1.0), seed=0) == examples
    with pytest.raises(ConfigError, match="competent: expected one of .*consistent.*, got 'clev"):
        replace(env.view, competent="clever")


def test_a_world_can_be_read_in_its_own_words_whatever_it_shows():
    env = language_env(MANY.id, MANY.kwargs, template="{tries_left}", extractor="utterance")
    assert env.reset(seed=0)[0] == "6"
    env.step(env.grammar.render([7]))
    assert read_board(env.text_for(RandomChains(env.grammar)))[0] == [MANY.kwargs["words"][7]]


class Lottery(gym.Env):
    """Tickets with prices: ticket i wins where the die, in [0, 1), falls below its chance.

    One decision is one die for whatever ticket, and then one for what is seen next.
    """

    observation_space = gym.spaces.Discrete(2)

    def __init__(self, chances=(0.2, 0.4, 0.6, 0.8), dice=True):
        self.chances, self.dice = chances, dice
        self.action_space = gym.spaces.Discrete(len(chances))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = (options or {}).get("state", {"seen": 0})["seen"]
        return self.seen, {}

    def step(self, action):
        die = self.np_random.random() if self.dice else 0.5
        self.seen = int(die < 0.5)
        return self.seen, float(die < self.chances[action]), False, False, {}

    def text_view(self):
        return TextView(
            action_names=tuple(f"ticket {number}" for number in range(len(self.chances))),
            template="seen {seen}{feedback}",
            bump_feedback="",
            describe=lambda env, seen, info: {"seen": seen},
            get_state=lambda env: {"seen": env.unwrapped.seen},
            set_state=reset_into,
            states=lambda env: [{"seen": 0}, {"seen": 1}],
        )


gym.register("Lottery-v0", Lottery)
gym.register("NoLottery-v0", partial(Lottery, dice=False))
LOTTERY = EnvironmentConfig("Lottery-v0", max_chain_length=1)
HERE, THERE = {"seen": 0}, {"seen": 1}
TICKETS = [f'["ticket {number}"]' for number in range(4)]


def luck(text, action=None):
    """V is 2 after a low die and 1 after a high one; Q is 2 of ticket 1."""
    return 2.0 if "1" in (action or text) else 1.0


def dice(seed, count):
    """The dice of the plays of a shard: the first is thrown by its own seed."""
    seeds = [seed, *(derive_seed(seed, "play", number) for number in range(1, count))]
    return np.array([np.random.default_rng(np.random.SeedSequence(s)).random() for s in seeds])


def test_candidates_of_a_world_with_dice_are_means_over_the_same_dice():
    """Four tickets: two plays that show dice, and two rounds of 16 · 4 / 2 for all four of them."""
    rollouts, critic, states = Rollouts(LOTTERY), Finds(luck), [HERE, THERE]
    found = sample_candidates(Says(*TICKETS), rollouts, states, 4, 0, critic)
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
    world = Lottery(chances=tuple(np.linspace(0.05, 0.95, 8)))
    rollouts.env = LanguageEnv(world, max_chain_length=1)
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


def test_without_a_model_a_second_play_tells_whether_there_are_dice():
    two = Says(TICKETS[0], TICKETS[3])

    def played(name):
        rollouts = Rollouts(EnvironmentConfig(name, max_chain_length=1))
        [found] = sample_candidates(two, rollouts, [HERE], 2, 3, Finds(luck))
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
    [found] = sample_candidates(two, rollouts, [state], 4, 0, None)
    assert found.returns == (1, 0, 1, 0)
    assert rollouts.tally["num_plays"] == 2 and rollouts.tally["num_replayed_actions"] == 0


def test_a_critic_of_chains_is_not_asked_about_dice():
    policy, critic = Says(*TICKETS), Finds(luck, "action_value")
    [found] = sample_candidates(policy, Rollouts(LOTTERY), [HERE], 4, 7, critic)
    assert found.advantages == (-0.25, 0.75, -0.25, -0.25)  # Q is 2 of ticket 1, and 1 of others
    assert list(found.returns) == sorted(found.returns)


def test_equal_completions_to_equal_states_share_their_plays():
    rollouts, states = Rollouts(LOTTERY), [HERE] * 50
    found = sample_candidates(Says(*TICKETS), rollouts, states, 4, 0, None)
    assert len({candidates.returns for candidates in found}) == 1
    assert rollouts.tally["num_plays"] == 4 * (2 + PLAYS_PER_COMPLETION)


@pytest.mark.parametrize("longest", [1, 3])
def test_improving_on_exact_values_by_pairs_ends_in_the_optimum_of_the_slippery_lake(longest):
    """Policy iteration: the policy says what was chosen, and begins with any chain at all."""
    config = EnvironmentConfig("FrozenLake-v1", template="{x} {y}", max_chain_length=longest)
    rollouts, critic = Rollouts(config), Finds(luck)
    critic.gamma = 0.99
    states, model = rollouts.env.view_states(), tabular_model(rollouts.env.env)
    texts, every = rollouts.observe(states), list(rollouts.env.grammar.completions())
    chains = pad_chains(all_chains(4, longest))
    probabilities = np.full((11, len(chains)), 1 / len(chains))
    for _ in range(5):
        known = dict(zip(texts, policy_values(model, chains, probabilities, 0.99), strict=True))
        critic.values = lambda seen, known=known: np.array([known.get(text, 0.0) for text in seen])
        policy, count = Says(*every), len(every)
        found = sample_candidates(policy, rollouts, states, count, 0, critic)
        pairs, _ = make_pairs(found)
        said = {pair.prompt: pair.chosen for pair in pairs}
        probabilities = np.eye(len(chains))[[every.index(said[text]) for text in texts]]
    figures = expected_figures(FunctionPolicy(said.__getitem__), rollouts.env)
    assert figures["of_optimum"] == pytest.approx(1.0)


def test_the_pipeline_runs_where_the_world_throws_dice(tmp_path):
    lake = EnvironmentConfig("FrozenLake-v1", template="{x} {y}", max_chain_length=2, max_chains=10)
    changes = {"critic.collect.num_episodes": 48, "environment": lake, "num_rounds": 1}
    changes["simpo.preferences"] = replace(PREFERENCES, num_states=22, min_margin=0.0)
    summary = run_smallest("run_pipeline", tmp_path, tmp_path / "run", changes)
    best = within_chains(tabular_model(make_language_env(lake).env), 10, 2)[0].mean()
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


def test_pairs_of_a_pipeline_are_asked_in_the_games_of_its_critic(tmp_path):
    preferences = replace(PREFERENCES, share_after_completion=0.75, min_margin=0.0, num_states=48)
    changes = {"critic.collect.num_episodes": 48, "evaluation.num_episodes_per_start": 8}
    changes |= {"simpo.preferences": preferences, "environment": replace(FEW, template="brief")}
    summary = run_smallest("run_pipeline", tmp_path, tmp_path / "run", changes, num_rounds=1)
    assert summary["num_rounds"] == 1
    games = read_trajectories(tmp_path / "run/round_1/critic/trajectories")
    texts = {text for game in games for text in game.observations[1:-1]}
    prompts = [pair.prompt for pair in read_pairs(tmp_path / "run/round_1/simpo/pairs")]
    first = [prompt for prompt in prompts if prompt.startswith("6")]
    assert first and len(first) < len(prompts) and set(prompts) - set(first) <= texts
