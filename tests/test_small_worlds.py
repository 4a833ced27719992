"""Small worlds of every kind: measured, cloned where there is a way, judged by what pays."""

import json
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from other_worlds import Played, rooms
from script_setups import Says, build_weights, run_smallest

from lactchain import ConfigError, EnvironmentConfig, LanguageEnv, OptimalChains, open_run
from lactchain.data.episodes import all_episodes
from lactchain.data.exact_values import greedy_share
from lactchain.data.rollouts import Rollouts, collect, episode_results
from lactchain.environments.exact import TabularModel, goes_by_reward, optimal_chains
from lactchain.environments.language import make_language_env
from lactchain.environments.scripted import RandomChains
from lactchain.environments.views import tabular_model
from lactchain.stages.sizing import target_of
from lactchain.stages.train_bc import BehaviorConfig, behavior_examples
from lactchain.stages.world_facts import BY_PLAY, measure_world


@pytest.fixture
def world(monkeypatch):
    """Registers a world of rooms, and gives its configuration."""

    def register(**kinds):
        spec = gym.envs.registration.EnvSpec("rooms/Rooms-v0", lambda: Played(rooms(**kinds)))
        monkeypatch.setitem(gym.registry, "rooms/Rooms-v0", spec)
        return EnvironmentConfig("rooms/Rooms-v0", max_chain_length=4)

    return register


def test_states_without_a_way_are_left_out_of_what_is_cloned_alone(world):
    env = make_language_env(world(pit=2))
    lost = [{"at": [cell, 0]} for cell in (0, 1, 2)]
    assert OptimalChains(env).lost == lost
    examples = behavior_examples(env, BehaviorConfig(num_chains=64, competent_fraction=1.0), 0)
    said = {text: action.text for text, action in examples}
    assert said == {"Cell 3, coin 0.": '["right", "right"]', "Cell 4, coin 0.": '["right"]'}
    assert len(examples) == 64
    rollouts = Rollouts(world(pit=2))
    played = rollouts.play(OptimalChains(rollouts.env), all_episodes(rollouts.env, 0))
    assert len(played) == 5 and len(episode_results(rollouts.env, played)) == 2


def test_the_size_and_the_target_of_a_world_with_dead_ends_are_of_what_can_be_solved(world):
    size = measure_world(world(pit=2))
    assert (size.num_states, size.longest_path, size.by_reward) == (5, 2, False)
    assert target_of(size)[0]["success_rate"] == 0.99


@pytest.mark.parametrize(
    "nested", [{"at": [1, 2]}, {"at": [[1], [2]], "n": 3}, {"at": {"x": 1}}, {"at": None, "t": "a"}]
)
def test_a_state_of_any_json_has_a_row(nested):
    other = dict.fromkeys(nested, 0)
    zeros, never = np.zeros((2, 1, 1)), np.zeros(2, bool)
    table = TabularModel(zeros.astype(int), zeros + 1, zeros, never, never, (nested, other))
    assert (table.row(nested), table.row(other)) == (0, 1)
    with pytest.raises(ValueError, match="expected a non-terminal state"):
        table.row(dict.fromkeys(nested, 7))


def test_optimal_means_what_earns_most(world):
    """From cell 2 the coin is two steps back: 5 for it, and 1 for the end seven steps later."""
    env = make_language_env(replace(world(coin=5), max_chain_length=9))
    table = tabular_model(env.env, env.view)
    assert goes_by_reward(table) and not goes_by_reward(tabular_model(Played(rooms())))
    states = map(json.dumps, table.non_terminal_states)
    chains = dict(zip(states, optimal_chains(table, 9), strict=True))
    assert chains['{"at": [2, 0]}'] == (0, 0, 2, 1, 1, 1, 1, 1)
    assert chains['{"at": [2, 1]}'] == (1, 1, 1)


def test_a_coin_beside_the_way_decides_the_target_and_what_rounds_are_compared_by(world):
    config = replace(world(coin=5), max_chain_length=9)
    size = measure_world(config)
    assert size.by_reward and set(target_of(size)[0]) == {"of_optimum", "sampled_invalid_rate"}
    rollouts = Rollouts(config)
    played = rollouts.play(OptimalChains(rollouts.env), all_episodes(rollouts.env, 0))
    assert greedy_share(rollouts.env, lambda: played)["of_optimum"] == pytest.approx(1.0)
    ignoring = rollouts.play(Says('["right"]'), all_episodes(rollouts.env, 0))
    share = greedy_share(rollouts.env, lambda: ignoring)
    assert all(episode.infos[-1]["success"] for episode in ignoring) and share["of_optimum"] < 0.6
    shortest = Rollouts(world())
    played = shortest.play(OptimalChains(shortest.env), all_episodes(shortest.env, 0))
    assert greedy_share(shortest.env, lambda: played) == {}


@pytest.mark.parametrize(
    "env_id", ["lactchain/GridWorld-v0", "CliffWalking-v1", "Taxi-v4", "lactchain/Maze-v0"]
)
def test_in_shipped_worlds_the_shortest_path_is_best(env_id):
    env = make_language_env(EnvironmentConfig(env_id))
    assert not goes_by_reward(tabular_model(env.env, env.view))


@pytest.mark.parametrize("tells", ["states", "nothing"])
def test_play_measures_a_world_as_its_model_does(world, tells):
    """Neither luck nor what is said of the last completion makes it another."""
    known, played = measure_world(world()), measure_world(world(tells=tells))
    assert played.source == BY_PLAY and not played.has_chance
    assert (played.num_states, played.longest_path) == (known.num_states, known.longest_path)
    assert played.path_length == pytest.approx(known.path_length)
    assert target_of(played)[0] == {"success_rate": 0.99, "sampled_invalid_rate": 0.003}


@pytest.mark.parametrize("wind", [0.1, 0.5])
def test_chance_shows_by_what_the_same_action_leads_to(world, wind):
    size = measure_world(world(tells="states", wind=wind))
    assert size.has_chance and target_of(size)[0] == {}


def test_without_a_model_random_chains_are_cloned(world, caplog):
    env = make_language_env(world(tells="states"))
    examples = behavior_examples(env, BehaviorConfig(num_chains=40), 0)
    assert len(examples) == 40 and "random chains are cloned" in caplog.text
    assert all(env.extractor.parse(action.text).actions for _, action in examples)


@pytest.mark.parametrize("names", [("左へ", "右へ", "取る"), ("à gauche", "à droite", "prends")])
def test_a_history_remembers_letters_of_any_language(names):
    played = Played(rooms())
    words = "Zelle südlich {words}.{feedback}"
    own = replace(played.text_view(), action_names=names, template=words)
    env = LanguageEnv(played, own, extractor="json_list", history=3)
    env.reset(seed=0)
    completion = json.dumps([names[0]], ensure_ascii=False)
    text, *_ = env.step(completion)
    assert completion in text and "?" not in text
    assert text in env.observation_space and completion in env.action_space


BLACKJACK = EnvironmentConfig("others/Blackjack-v0", max_chain_length=2)
"""The example of the README: no states, no success, a hidden card, and dice."""


def test_a_state_is_the_seed_and_what_was_played_since():
    env = make_language_env(BLACKJACK)
    episodes = collect(RandomChains(env.grammar), BLACKJACK, 60)
    assert len({episode.infos[0]["state"]["seed"] for episode in episodes}) == 60
    longer = [episode for episode in episodes if len(episode) > 1]
    assert len(longer) > 5
    for episode in longer:
        state = episode.infos[1]["state"]
        assert (state["seed"], state["played"][0]) == (episode.seed, 1)
        assert env.reset(options={"state": state})[0] == episode.observations[1]
        text, reward, terminated, _, info = env.step(episode.actions[1].text)
        assert (text, reward) == (episode.observations[2], episode.rewards[1])
    assert env.start_states()[7] == {"seed": 7, "played": []}


def test_hidden_cards_and_dice_are_chance_and_texts_are_what_is_counted():
    size = measure_world(BLACKJACK)
    assert size.has_chance and not size.tells_success and target_of(size)[0] == {}
    # 4 to 21 in the hand (those below 12 with less than an ace), 1 to 10 on the table
    assert 100 < size.num_states < 300 and size.num_actions == 2


def test_a_world_whose_dice_know_no_seed_is_refused(world, monkeypatch):
    config = world(tells="nothing", wind=0.5)
    rolls = np.random.default_rng(0)
    monkeypatch.setattr(Played, "np_random", property(lambda _: rolls))
    with pytest.raises(ConfigError, match="expected a world that can be put back where it was"):
        measure_world(config)


def test_a_place_to_go_on_from_must_lie_within_an_episode():
    env = make_language_env(BLACKJACK)
    with pytest.raises(ValueError, match="expected one in which no episode is over"):
        env.env.reset(options={"state": {"seed": 0, "played": [0]}})
    with pytest.raises(ValueError, match="state: expected a seed, and what was played"):
        env.reset(options={"state": {}})


def test_pairs_are_asked_at_texts_of_episodes_where_no_states_are_listed(world, tmp_path):
    weights = build_weights(tmp_path / "weights")
    few = {"num_rounds": 1, "evaluation.num_starts": 20}
    run_smallest("run_pipeline", weights, tmp_path / "run", few, environment=world(tells="nothing"))
    pairs = open_run(tmp_path / "run" / "round_1" / "simpo").pairs
    assert any(pair.state["played"] for pair in pairs)
    assert len(open_run(tmp_path / "run").episodes["after"]) == 20
