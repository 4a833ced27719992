"""Texts that remember: asked again in the middle of episodes, for what they hide on average."""

from dataclasses import replace

import numpy as np
import pytest
from script_setups import run_smallest

from lactchain import Action, PreferenceConfig, Rollouts, collect, make_preferences, read_pairs
from lactchain.config.settings import EnvironmentConfig, HeldBackConfig
from lactchain.data.candidates import sample_candidates
from lactchain.data.episodes import RecordedText, recorded_texts
from lactchain.data.sources import read_trajectories
from lactchain.environments.scripted import OptimalChains, RandomChains
from lactchain.errors import ConfigError, DataError
from lactchain.stages.train_bc import BehaviorConfig, played_examples
from lactchain.stages.train_simpo import TrainSimPOConfig
from lactchain.stages.world_facts import measure_world

# The goal is in the middle: the cells beside it look alike, and so do the ends but for a wall.
CORRIDOR = {"layout": ["00000"], "goal": [0, 2]}
MAZE = EnvironmentConfig(
    "lactchain/Maze-v0", CORRIDOR, template="{sides}\n", extractor="utterance", history=3
)
NEAR_LEFT, NEAR_RIGHT = {"row": 0, "column": 1}, {"row": 0, "column": 3}
MOVES = ("move up\n", "move down\n", "move left\n", "move right\n")
ENDS = {"L A B\n": "move right\n", "R A B\n": "move left\n"}


@pytest.fixture
def rollouts():
    return Rollouts(MAZE)


def episodes_of(rollouts, count=20):
    return collect(RandomChains(rollouts.env.grammar), rollouts, count, seed=3)


def test_an_episode_goes_on_in_the_middle_as_it_went(rollouts):
    for episode in episodes_of(rollouts):
        for t, (action, info) in enumerate(zip(episode.actions, episode.infos, strict=False)):
            options = {name: info[name] for name in ("state", "remembered")}
            again, _ = rollouts.env.reset(options=options)
            assert again == episode.observations[t] == "".join(info["remembered"])
            after, reward, *_ = rollouts.env.step(action.text)
            assert (after, reward) == (episode.observations[t + 1], episode.rewards[t])


def test_questions_are_the_different_texts_with_the_states_as_often_as_met(rollouts):
    episodes = episodes_of(rollouts)
    met = [
        (text, tuple(info["state"].values()))
        for episode in episodes
        for text, info in zip(episode.observations[:-1], episode.infos[:-1], strict=True)
    ]
    questions = recorded_texts(episodes, rollouts.env)
    assert [question.text for question in questions] == list(dict.fromkeys(t for t, _ in met))
    told = [(q.text, tuple(state.values())) for q in questions for state in q.states]
    assert sorted(told) == sorted(met)
    hidden = {question.text for question in questions if question.hides_the_state}
    assert "A B\n" in hidden and "L A B\n" not in hidden


def test_episodes_that_do_not_tell_what_was_remembered_are_refused(rollouts):
    [episode] = episodes_of(rollouts, 1)
    infos = tuple({"state": info["state"]} for info in episode.infos)
    with pytest.raises(DataError, match="episode 0: expected infos with 'remembered'"):
        recorded_texts([replace(episode, infos=infos)], rollouts.env)


def test_a_completion_is_worth_the_mean_over_what_its_text_hides(rollouts):
    """From the left the goal is to the right: three times in four."""
    question = RecordedText("A B\n", (NEAR_LEFT, NEAR_LEFT, NEAR_RIGHT, NEAR_LEFT), ("A B\n",))
    policy = RandomChains(rollouts.env.grammar)
    [found] = sample_candidates(policy, rollouts, [question], 64, 5, None)
    returns = {a.text: r for a, r in zip(found.actions, found.returns, strict=True)}
    np.testing.assert_allclose([returns[move] for move in MOVES], [-1, -1, -0.75, -0.25], atol=0.1)
    assert found.observation == "A B\n" and found.state == NEAR_LEFT


def test_plays_go_on_with_what_was_remembered(rollouts):
    remembered = ("L A B\n", "move right\n", "A B\n")
    question = RecordedText("".join(remembered), (NEAR_LEFT,), remembered)
    [outcome] = rollouts.outcomes([question], [Action("move left\n")], 0)
    assert outcome.observations == (question.text, "A B\nmove left\nL A B\n")


def test_pairs_ask_each_text_of_the_episodes_as_often(rollouts):
    asked = recorded_texts(episodes_of(rollouts), rollouts.env)
    policy = RandomChains(rollouts.env.grammar)
    settings = PreferenceConfig(num_states=2 * len(asked), num_candidates=24, min_margin=0.2)
    pairs, _ = make_preferences(policy, None, rollouts, settings, asked=asked)
    chosen = {pair.prompt: pair.chosen for pair in pairs}
    # The wall that was seen to the left two items ago tells where one is.
    assert chosen["L A B\nmove right\nA B\n"] == "move right\n"
    assert chosen["R A B\nmove left\nA B\n"] == "move left\n"
    assert set(chosen) < {question.text for question in asked}


def test_where_no_episode_has_a_second_decision_states_are_asked_alone():
    lake = Rollouts(EnvironmentConfig("FrozenLake-v1", {"is_slippery": False}))
    policy = RandomChains(lake.env.grammar)
    settings = PreferenceConfig(num_states=11, share_after_completion=0.5, min_margin=0.0)
    pairs, _ = make_preferences(policy, None, lake, settings, asked=[])
    assert pairs and {pair.prompt for pair in pairs} <= set(lake.observe(lake.env.view_states()))


def test_whole_episodes_are_cloned_where_texts_remember():
    """Behaviour that sees the cell goes straight to the goal: two cells of one move, two of two."""
    env, told = Rollouts(MAZE).env, Rollouts(replace(MAZE, template=None, history=1)).env
    config = BehaviorConfig(num_chains=60, competent_fraction=1.0)
    examples = played_examples(env, OptimalChains(told), config, seed=0)
    assert len(examples) == 60
    texts = [text for text, _ in examples]
    behind = {f"{end}{move}A B\n": move for end, move in ENDS.items()}
    assert set(texts) == {"A B\n", *ENDS, *behind}
    assert all((ENDS | behind).get(text, action.text) == action.text for text, action in examples)
    assert 25 <= texts.count("A B\n") + sum(map(texts.count, ENDS)) <= 45


def test_what_is_corrected_leads_on_by_chance_and_is_learnt_of_the_competent():
    """Random chains stay between the ends and repeat; the way to the goal is all that is learnt."""
    env, told = Rollouts(MAZE).env, Rollouts(replace(MAZE, template=None, history=1)).env
    played = BehaviorConfig(num_chains=60, competent_fraction=0.0, max_random_length=1)
    corrected = replace(played, corrected=True)
    (drawn, learnt) = (played_examples(env, OptimalChains(told), c, 0) for c in (played, corrected))
    assert [text for text, _ in drawn] == [text for text, _ in learnt]
    for end, move in ENDS.items():
        assert {action.text for text, action in learnt if text.endswith(end)} == {move}
    assert len({action.text for _, action in drawn}) > 2


def test_with_a_history_the_texts_are_what_a_world_counts():
    assert measure_world(replace(MAZE, history=1)).num_states == 4
    remembers = measure_world(MAZE)
    # An observation alone, of three kinds, and each with one of four moves behind it.
    assert remembers.num_states == 3 + 3 * 4 and remembers.path_length == 1.5


def test_a_pipeline_asks_its_pairs_what_the_critic_s_episodes_were_asked(tmp_path):
    few = {"num_rounds": 1, "evaluation.num_samples": 10}
    short = replace(MAZE, max_chains=6)
    summary = run_smallest("run_pipeline", tmp_path, tmp_path / "run", few, environment=short)
    assert summary["num_pairs"] > 0 and summary["round_1/critic_r2"] is None
    episodes = read_trajectories(tmp_path / "run/round_1/critic/trajectories")
    asked = {text for episode in episodes for text in episode.observations[:-1]}
    prompts = {pair.prompt for pair in read_pairs(tmp_path / "run/round_1/simpo/pairs")}
    assert prompts <= asked and any(prompt.count("\n") == 3 for prompt in prompts)


def test_cloned_episodes_start_where_one_may_practise_and_end_though_the_usual_start_is_held_back():
    cliff = EnvironmentConfig("CliffWalking-v1", history=3, max_chain_length=4)
    told = Rollouts(replace(cliff, history=1)).env
    env = Rollouts(replace(cliff, held_back=HeldBackConfig(share=0.5))).env
    assert told.reset()[1]["state"] in env.held_back
    behavior = BehaviorConfig(num_chains=100, competent_fraction=1.0)
    texts = {text for text, _ in played_examples(env, OptimalChains(told), behavior, seed=1)}
    starts = [state for state in env.start_states() if state not in env.held_back]
    assert texts >= {env.reset(options={"state": state})[0] for state in starts}


def test_states_that_follow_a_completion_are_refused_where_texts_remember(rollouts):
    policy = RandomChains(rollouts.env.grammar)
    settings = PreferenceConfig(num_states=4, share_after_completion=0.5)
    with pytest.raises(ConfigError, match="a history of 3 items, which it would forget"):
        make_preferences(policy, None, rollouts, settings)


def test_pairs_that_are_read_ask_no_episodes():
    with pytest.raises(ValueError, match="trajectories: expected null beside `pairs`"):
        TrainSimPOConfig(pairs="pairs", trajectories="episodes")
