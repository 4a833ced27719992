"""Worlds that list what may come of an action: what completions are worth is known exactly."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from script_setups import COLLECT, PREFERENCES, SHAPE, config_of, run_here
from test_preferences import Says

from lactchain.config.settings import ActorConfig, EnvironmentConfig, RunConfig
from lactchain.data.base_models import prepare_tiny_actor
from lactchain.data.candidates import sample_candidates
from lactchain.data.episodes import RecordedText
from lactchain.data.preferences import read_pairs
from lactchain.data.rollouts import Rollouts
from lactchain.data.trajectories import read_trajectories
from lactchain.data.worth import expected_worth
from lactchain.environments.language import LanguageEnv, language_env, make_language_env
from lactchain.environments.scripted import RandomChains
from lactchain.environments.views import Outcome, shipped_view
from lactchain.errors import ConfigError
from lactchain.stages import evaluate
from lactchain.stages.evaluate import EvaluateConfig, EvaluationConfig
from lactchain.stages.train_bc import BehaviorConfig, behavior_examples
from lactchain.types import Discount
from lactchain_extras.wordle.env import CLUES_TEMPLATE, Wordle
from lactchain_extras.wordle.words import read_board

WORDS = ["level", "motto", "shirt"]
EMPTY = {"guesses": [], "feedback": []}
FEW = EnvironmentConfig("lactchain/Wordle-v0", {"words": WORDS}, extractor="utterance")
MANY = EnvironmentConfig(
    "lactchain/Wordle-v0",
    {"words": list(Wordle().tables.words[::20])},
    extractor="utterance",
    template=CLUES_TEMPLATE,
)


class TriesLeft:
    """A critic that finds each text worth the number that it begins with."""

    mode, gamma, discount_per = "value", 0.5, "action"

    def values(self, observations, actions=None):
        return np.array([float(text.split()[0]) for text in observations])


def candidates_in(rollouts, question, said, critic, gamma):
    [found] = sample_candidates(Says(*said), rollouts, [question], 3, 0, critic, gamma, "action")
    assert rollouts.tally["num_plays"] == 3  # no dice are thrown for it
    return found


def test_candidates_of_wordle_are_ranked_by_every_word_that_fits():
    said = ["l e v e l\n", "m o t t o\n", "nonsense\n"]
    rollouts = Rollouts(replace(FEW, template=CLUES_TEMPLATE))
    found = candidates_in(rollouts, EMPTY, said, TriesLeft(), 0.5)
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
    """Gymnasium's own table of FrozenLake."""
    return [
        Outcome(probability, reward, None if over else {"state": state})
        for probability, state, reward, over in env.unwrapped.P[env.unwrapped.s][action]
    ]


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
    found = candidates_in(rollouts, RecordedText("read", tuple(games)), said, None, 1.0)
    assert list(found.returns) == [-1, -1, 0]


def test_pairs_of_a_pipeline_are_asked_in_the_games_of_its_critic(tmp_path):
    preferences = replace(PREFERENCES, share_after_completion=0.75, min_margin=0.0, num_states=48)
    config = config_of("run_pipeline", tmp_path, tmp_path / "run", num_rounds=1)
    config = replace(
        config,
        environment=replace(FEW, template="brief"),
        critic=replace(config.critic, collect=replace(COLLECT, num_episodes=48)),
        simpo=replace(config.simpo, preferences=preferences),
        evaluation=replace(config.evaluation, num_episodes_per_start=8),
    )
    assert run_here("run_pipeline", config)["num_rounds"] == 1
    games = read_trajectories(tmp_path / "run/round_1/critic/trajectories")
    texts = {text for game in games for text in game.observations[1:-1]}
    prompts = [pair.prompt for pair in read_pairs(tmp_path / "run/round_1/simpo/pairs")]
    first = [prompt for prompt in prompts if prompt.startswith("6")]
    assert first and len(first) < len(prompts) and set(prompts) - set(first) <= texts


def test_a_warm_start_in_wordle_clones_words_that_fit_what_is_shown_in_other_words():
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


def test_a_world_can_be_read_in_its_own_words_whatever_it_shows():
    env = language_env(MANY.id, MANY.kwargs, template="{tries_left}", extractor="utterance")
    assert env.reset(seed=0)[0] == "6"
    env.step(env.grammar.render([7]))
    assert read_board(env.told(RandomChains(env.grammar)))[0] == [MANY.kwargs["words"][7]]


def test_a_policy_to_clone_that_the_view_does_not_hold_is_refused():
    env = make_language_env(MANY)
    view = replace(env.view, competent="clever")
    with pytest.raises(ConfigError, match="competent: expected one of .*consistent.*, got 'clev"):
        view.check(env.env)


def test_an_actor_plays_wordle_by_configuration_alone(tmp_path):
    prepare_tiny_actor(tmp_path / "actor", SHAPE, FEW)
    for decoding in ("free", "constrained", "scored"):
        job = EvaluateConfig(
            run=RunConfig(run_dir=str(tmp_path / decoding)),
            environment=FEW,
            actor=ActorConfig(str(tmp_path / "actor"), decoding=decoding, dtype="float32"),
            evaluation=EvaluationConfig(num_samples=4, num_episodes_per_start=5),
        )
        summary = evaluate.main(job)
        assert summary["num_episodes"] == 5
        assert decoding == "free" or summary["invalid_rate"] == 0
