"""Settings that follow from the world: what is measured, the rules, and what a run keeps."""

import json
from dataclasses import replace
from functools import cache

import gymnasium as gym
import numpy as np
import other_worlds  # noqa: F401  (registers them)
import pytest
from script_setups import SHAPE, config_of, run_here

from lactchain import (
    ConfigError,
    EnvironmentConfig,
    OptimalChains,
    Rollouts,
    language_env,
    make_language_env,
)
from lactchain.config.parsing import parse, with_values
from lactchain.data.base_models import corpus
from lactchain.environments.exact import TabularModel, shortest_paths, solution_lengths
from lactchain.environments.views import tabular_model
from lactchain.models.loading import load_own_tokenizer
from lactchain.models.tiny import build_tiny_tokenizer
from lactchain.stages import run_pipeline
from lactchain.stages.pipeline_config import RunPipelineConfig
from lactchain.stages.sizing import RULES, fill, is_null
from lactchain.stages.train_bc import BehaviorConfig
from lactchain.stages.world_facts import (
    BY_PLAY,
    gamma_of,
    measure_world,
    num_unseen_and_seen,
    size_by_play,
    size_of_model,
)
from lactchain.storage.manifests import write_with_manifest
from lactchain.worlds.gridworld import GridWorld
from lactchain_extras.stages import play, prepare_weights
from lactchain_extras.stages.play import PlayConfig
from lactchain_extras.stages.prepare_weights import PrepareWeightsConfig

GRID = EnvironmentConfig("lactchain/GridWorld-v0", max_chain_length=None)


def preset(*arguments):
    return parse(RunPipelineConfig, ["--config", "configs/run_pipeline/tiny.yaml", *arguments])


def coin(p):
    """From its only state an action ends the episode with probability p, at -2 a throw."""
    after, chance = np.array([[[1, 0]], [[1, 1]]]), np.array([[[p, 1 - p]], [[1.0, 0.0]]])
    reward, over = np.array([[[-2.0, -2.0]], [[0.0, 0.0]]]), np.array([False, True])
    states = {"state": 0}, {"state": 1}
    ends = {"terminal": over, "goal": over.copy()}
    return TabularModel(next_state=after, probability=chance, reward=reward, **ends, states=states)


@pytest.mark.parametrize("env_id", ["lactchain/GridWorld-v0", "CliffWalking-v1", "Taxi-v4"])
def test_without_dice_a_solution_is_as_long_as_the_shortest_path(env_id):
    env = language_env(env_id)
    model = tabular_model(env.env, env.view)
    np.testing.assert_allclose(solution_lengths(model, 0.99), shortest_paths(model))


def test_the_size_of_a_coin_that_takes_one_over_p_throws_or_for_ever():
    assert solution_lengths(coin(0.25), 0.99) == pytest.approx([4.0])
    assert np.isinf(solution_lengths(coin(0.0), 0.9)).all()
    size = size_of_model(coin(0.25))
    # V = -2 + gamma (1 - p) V, with gamma = 1 - 1 / (4 x 4), to three digits.
    assert size.reward_scale == pytest.approx(2 / (1 - 0.938 * 0.75))
    assert (size.num_states, size.path_length, size.longest_path) == (1, pytest.approx(4.0), 4)
    assert size.worst_reward == -2.0 and size.has_chance


def test_a_horizon_is_as_long_as_a_solved_episode():
    assert [gamma_of(length) for length in (1, 4.6, 10, 1000)] == [0.8, 0.8, 0.9, 0.99]
    assert gamma_of(5, has_chance=True) == 0.95


def test_unseen_states_are_estimated_by_those_seen_once_and_twice():
    # 5 different ones, of which 3 once and 1 twice: 5 + 9 / 2.
    assert num_unseen_and_seen(["a", "b", "c", "d", "d", "e", "e", "e"]) == 9


def test_without_a_model_a_world_is_measured_by_random_play():
    config = EnvironmentConfig("lactchain/GridWorld-v0", {"size": 2}, max_chain_length=3)
    size = size_by_play(Rollouts(config), seed=0)
    assert size.source == BY_PLAY
    assert size.num_states == 48  # of two cells and a direction, as the view lists them
    assert 1 <= size.path_length <= 2
    assert 0.1 < size.reward_scale < 1  # random play earns less than a good player
    assert size.worst_reward == 0.0


@cache
def shortest():
    return OptimalChains(language_env())


class Guided(GridWorld):
    """A grid that knows who plays it well, in chains of several actions, and has no model."""

    def text_view(self):
        named = {"policies": {"best": lambda _: shortest()}, "competent": "best", "model": None}
        return replace(super().text_view(), **named)


gym.register("sizing/Guided-v0", entry_point=Guided)


@pytest.mark.parametrize("history", [1, 2])
@pytest.mark.parametrize("length", [None, 9])
def test_where_the_view_names_a_competent_policy_its_returns_are_the_scale(length, history):
    told = {"max_chain_length": length, "invalid_penalty": None, "chain_cost": None}
    exact = measure_world(EnvironmentConfig("lactchain/GridWorld-v0", **told))
    guided = EnvironmentConfig("sizing/Guided-v0", template="brief", history=history, **told)
    size, costs = measure_world(guided), {"invalid_penalty": 0.0, "chain_cost": 0.0}
    by_chance = size_by_play(Rollouts(replace(guided, **costs, max_chain_length=1)), seed=0)
    assert size.source == BY_PLAY
    assert 0.8 * exact.reward_scale < size.reward_scale < 1.5 * exact.reward_scale
    assert by_chance.reward_scale < 0.5 * exact.reward_scale


def test_a_null_that_no_rule_stands_for_is_refused_in_every_script(weights, tmp_path):
    epochs, length = "critic.training.num_epochs", "environment.max_chain_length"
    critic = config_of("train_critic", weights, tmp_path / "critic", {"critic.gamma": None})
    pipeline = config_of("run_pipeline", tmp_path, tmp_path / "run", {epochs: None})
    unfilled = with_values(preset("--run.run_dir", str(tmp_path / "run")), {epochs: None})
    for key, refuse in (
        (epochs, lambda: run_pipeline.sized(unfilled)),
        (epochs, lambda: run_pipeline.sized(pipeline)),
        (length, lambda: play.main(PlayConfig(GRID))),
        (length, lambda: prepare_weights.main(PrepareWeightsConfig(str(tmp_path), SHAPE, GRID))),
        ("critic.gamma", lambda: run_here("train_critic", critic)),
    ):
        with pytest.raises(ConfigError, match=f"{key}: expected a number"):
            refuse()


def test_the_words_of_the_longest_chain_of_a_maze_find_room():
    maze = replace(GRID, id="lactchain/Maze-v0", template="brief")
    filled, _ = fill(replace(preset(), environment=maze), measure_world(maze), processes=1)
    env = make_language_env(filled.environment)
    tokenizer = build_tiny_tokenizer(corpus(filled.environment), preset().tiny.vocab_size)
    longest = env.grammar.render([0] * env.grammar.max_chain_length)
    assert len(tokenizer(longest)["input_ids"]) < filled.actor.max_new_tokens


def test_a_chain_finds_room_by_the_tokenizer_of_a_model_that_is_there(weights, tmp_path):
    words = {"environment.action_names": ["go on, straight on", "about"]}
    given = with_values(replace(preset(), tiny=None), words)
    filled = [
        fill(with_values(given, {"actor.model": model}), measure_world(GRID), 1)[0].actor
        for model in (str(weights / "actor"), str(tmp_path / "none"))
    ]
    tokenizer = load_own_tokenizer(filled[0])
    chain = "[" + ", ".join(['"go on, straight on"'] * 9) + "]"
    assert filled[0].max_new_tokens == 1 + len(tokenizer.tokenize(chain))
    assert filled[0].max_new_tokens > 25 == filled[1].max_new_tokens


def test_the_preset_leaves_no_number_to_the_world_that_no_rule_fills():
    filled, chosen = fill(preset(), measure_world(GRID), processes=1)
    assert [*chosen] == [*RULES] and not any(is_null(filled, key) for key in RULES)
    assert filled.environment.max_chain_length == 9 and filled.critic.config.gamma == 0.8
    # Of returns of .522: twice and 4 % of them, to one digit.
    assert (filled.environment.invalid_penalty, filled.environment.chain_cost) == (-1.0, 0.02)
    assert filled.warm_start.behavior == BehaviorConfig(25_600, competent_fraction=0.1)
    assert filled.simpo.preferences.num_states == 3840
    assert filled.simpo.training.num_epochs == 14  # 53,760 rows


@pytest.mark.parametrize(("world", "num_ways", "num_chains", "share"), [
    ("LightsOut", 511, 102_200, 1.0),  # no two states share a way
    ("Box", 101, 25_600, 0.2),  # and 105 states have none
    ("Ladder", 0, 25_600, 0.1),  # dice: a way is not known beforehand
    ("Jugs", 0, 25_600, 0.1),  # no model
])  # fmt: skip
def test_the_more_ways_differ_the_more_of_them_are_cloned(world, num_ways, num_chains, share):
    size = measure_world(replace(GRID, id=f"others/{world}-v0"))
    behavior = fill(preset(), size, processes=1)[0].warm_start.behavior
    found = size.num_ways, behavior.num_chains, behavior.competent_fraction
    assert found == (num_ways, num_chains, share)
    speaking = with_values(preset(), {"environment.template": None})
    assert fill(speaking, size, processes=1)[0].warm_start.behavior.competent_fraction == 1.0


def test_dice_of_which_no_model_tells_want_the_most_episodes():
    known = replace(measure_world(GRID), has_chance=True)
    episodes = [
        fill(preset(), replace(known, source=source), 1)[0].critic.collect.num_episodes
        for source in (known.source, BY_PLAY)
    ]
    assert episodes == [5_760, 16_384]


def test_a_number_says_which_half_of_its_rule_it_comes_from():
    grid = measure_world(GRID)
    worlds = (grid, replace(grid, num_states=20_000), replace(grid, num_states=10))
    filled = [fill(preset(), world, processes=1) for world in worlds]
    assert [chosen["simpo.preferences.num_states"] for _, chosen in filled] == [
        (3_840, "each state four times"),
        (50_000, "the most for such a world; each state four times would be 80,000"),
        (1_024, "the least for such a world; each state four times would be 40"),
    ]
    assert filled[1][0].critic.collect.num_episodes == 40_000  # two from each of so many
    unknown = fill(preset(), replace(grid, source=BY_PLAY, num_ways=0), processes=1)[1]
    assert "(none is known beforehand) would be 0" in unknown["warm_start.behavior.num_chains"][1]
    assert "all are random" in unknown["warm_start.behavior.competent_fraction"][1]
    chance = fill(preset(), replace(grid, has_chance=True), processes=1)[1]
    assert chance["environment.chain_cost"][1].startswith("none")
    assert chance["environment.max_chain_length"][0] == 1
    assert "chance" in chance["environment.max_chain_length"][1]
    assert set(chance["target"][0]) == {"of_optimum", "sampled_invalid_rate"}


def test_what_is_given_is_kept_and_counts_in_what_follows():
    given = preset("--critic.config.gamma", "0.5", "--simpo.preferences.num_states", "100")
    filled, chosen = fill(given, measure_world(GRID), processes=1)
    assert filled.critic.config.gamma == 0.5 and filled.simpo.training.num_epochs == 532
    assert "critic.config.gamma" not in chosen


def test_an_update_has_the_same_rows_on_any_number_of_processes():
    size = measure_world(GRID)
    one, two = (fill(preset(), size, n)[0] for n in (1, 2))
    for key in ("warm_start", "critic", "simpo"):
        single, each = (getattr(config, key).training.batch_size for config in (one, two))
        assert single == 2 * each


def test_silence_is_worse_than_any_reward():
    taxi = measure_world(replace(GRID, id="Taxi-v4"))
    filled, _ = fill(preset(), taxi, processes=1)
    assert filled.environment.invalid_penalty <= taxi.worst_reward == -10


def test_a_run_goes_on_with_the_numbers_that_it_began_with(tmp_path):
    config = replace(preset(), run=replace(preset().run, run_dir=str(tmp_path)))
    with run_pipeline.Run.of(config) as run:
        first = run_pipeline.sized(config, run)
        kept = json.loads((tmp_path / "sizes.json").read_text())
        assert kept["why"].keys() == kept["settings"].keys()
        assert kept["why"]["critic.collect.num_episodes"] == "six from each state"
        kept["settings"]["critic.config.gamma"] = 0.5
        write_with_manifest(tmp_path / "sizes.json", json.dumps(kept).encode(), {})
        again = run_pipeline.sized(config, run)
    assert first.critic.config.gamma == 0.8
    assert again == with_values(first, {"critic.config.gamma": 0.5})
