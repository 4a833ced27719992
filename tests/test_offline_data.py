"""Offline data: who acted, where, in which words, and that it comes back from other formats."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from script_setups import run_here
from test_configs import load

from lactchain import ConfigError, Rollouts, make_language_env, read_trajectories
from lactchain.config.settings import CollectConfig, EnvironmentConfig, RunConfig
from lactchain.data.episodes import Episode, Region, all_episodes
from lactchain.environments.scripted import OptimalChains, RandomChains
from lactchain_extras.stages.make_offline_data import (
    RecordingConfig,
    behavior_policy,
    region_episodes,
    reworded,
)

MAZE, PARTIAL = load("make_offline_data/maze"), load("make_offline_data/maze_partial")
FEW = CollectConfig(num_episodes=300, num_envs=64, shard_size=150)
GOAL, START = {"row": 8, "column": 6}, {"row": 1, "column": 1}


def make(config, run_dir: Path):
    config = replace(config, run=RunConfig(run_dir=str(run_dir)), collect=FEW)
    summary = run_here("make_offline_data", config)
    return read_trajectories(run_dir / "trajectories"), summary


@pytest.fixture(scope="module")
def maze_data(tmp_path_factory):
    return make(MAZE, tmp_path_factory.mktemp("maze") / "run")[0]


def visited(trajectory):
    return [info["state"] for info in trajectory.infos]


def test_the_mazes_parts_force_stitching(maze_data):
    """No part holds both ends of the way, together they hold all of it, and they overlap."""
    regions = [Region(limits) for limits in MAZE.behavior.regions]
    env = make_language_env(MAZE.environment)
    states = env.view_states()
    assert not any(START in region and GOAL in region for region in regions)
    holders = [sum(state in region for region in regions) for state in states]
    assert min(holders) == 1 and holders.count(2) == 4
    for trajectory in maze_data:
        places = visited(trajectory)
        assert not (START in places and GOAL in places)
        assert any(all(place in r for place in places[:-1]) for r in regions)
    starts = Counter(str(visited(t)[0]) for t in maze_data)
    assert len(starts) == 25


def test_an_episode_is_cut_where_it_leaves_its_region():
    rollouts = Rollouts(MAZE.environment)
    region = Region({"row": [5, 5], "column": [3, 6]})
    start = {"row": 5, "column": 3}
    [left] = rollouts.play(OptimalChains(rollouts.env), [Episode(0, start, region)])
    assert visited(left)[-2:] == [{"row": 5, "column": 6}, {"row": 6, "column": 6}]
    assert (left.terminated, left.truncated, left.episode_return) == (False, True, -4.0)
    [home] = rollouts.play(OptimalChains(rollouts.env), [Episode(0, start)])
    assert (home.terminated, home.truncated, home.episode_return) == (True, False, -5.0)


def test_the_policies_have_their_shares(maze_data):
    assert maze_data[0].policy == "0.15 optimal, 0.85 random"
    env = make_language_env(MAZE.environment)
    text, _ = env.reset(options={"state": {"row": 1, "column": 2}})  # walls above and below
    names = ("move up\n", "move left\n", "move right\n")

    def moves(shares):
        actions = behavior_policy(env, shares).act([text] * 6000, range(6000))
        counts = Counter(action.text for action in actions)
        return [counts[name] / 6000 for name in names]

    shares = {"optimal": 0.2, "legal": 0.3, "random": 0.5}
    expected = [0.5 / 4, 0.3 / 2 + 0.5 / 4, 0.2 + 0.3 / 2 + 0.5 / 4]
    np.testing.assert_allclose(moves(shares), expected, atol=0.02)
    np.testing.assert_allclose(moves(dict(reversed(shares.items()))), expected, atol=0.02)
    assert moves({"optimal": 1.0})[2] == 1


def test_partial_data_hold_the_same_decisions_in_other_words(maze_data, tmp_path):
    partial, _ = make(PARTIAL, tmp_path / "run")
    env = make_language_env(PARTIAL.environment)
    for seen, told in zip(maze_data, partial, strict=True):
        assert (seen.actions, seen.infos, seen.rewards) == (told.actions, told.infos, told.rewards)
        assert (seen.terminated, seen.truncated) == (told.terminated, told.truncated)
    for told in partial[:20]:
        text, _ = env.reset(seed=told.seed, options={"state": visited(told)[0]})
        assert told.observations[0] == text and set(text) <= set("RLAB \n")
        for t, action in enumerate(told.actions):
            assert env.step(action.text)[0] == told.observations[t + 1]
    assert all("position" not in text for t in partial for text in t.observations)
    longest = max((text for t in partial for text in t.observations), key=len)
    assert longest.count("move ") == 3 and longest.count("\n") == PARTIAL.environment.history


def test_worlds_that_throw_dice_cannot_be_retold():
    ice = EnvironmentConfig("FrozenLake-v1", {"is_slippery": True}, max_chain_length=1)
    rollouts = Rollouts(ice)
    played = rollouts.play(RandomChains(rollouts.env.grammar), all_episodes(rollouts.env, 0))
    with pytest.raises(ConfigError, match="policy_template: expected a world in which the same"):
        for trajectory in played:
            reworded(replace(trajectory, seed=trajectory.seed + 1), rollouts.env)


def test_wordle_data_mix_words_that_fit_with_any(tmp_path):
    config = load("make_offline_data/wordle")
    trajectories, summary = make(config, tmp_path / "run")
    assert summary["num_episodes"] == 300 and summary["rollout/invalid_rate"] == 0
    assert -4.6 < summary["rollout/episode_return"] < -3.8  # 20,000 episodes: −4.22
    assert all(len(t) <= 6 and t.observations[0] == "Wordle:\n" for t in trajectories)
    assert {t.terminated for t in trajectories if t.episode_return > -6} == {True}
    firsts = Counter(t.actions[0].text for t in trajectories)
    assert len(firsts) > 150


BLIND = replace(PARTIAL, behavior=replace(PARTIAL.behavior, policy_template=None))


@pytest.mark.parametrize(("config", "message"), [
    (RecordingConfig({"best": 1.0}), "behavior.policies: expected names of .* got 'best'"),
    (RecordingConfig({"consistent": 1.0}), r"names of \['legal', .*got 'consistent'"),
    (RecordingConfig(regions=[{"x": [0, 1]}]), r"number 0: expected fields of \['column', 'r"),
    (RecordingConfig(regions=[{"row": [0, 0]}]), "number 0: no state lies in"),
    (BLIND, "optimal: template: expected a text for each state"),  # from walls alone
])  # fmt: skip
def test_behaviour_that_does_not_fit_the_world_is_named(config, message, tmp_path):
    config = replace(MAZE, behavior=config) if config is not BLIND else config
    with pytest.raises(ConfigError, match=message):
        make(config, tmp_path / "run")
    env = make_language_env(EnvironmentConfig("lactchain/Wordle-v0"))  # its states hold no numbers
    with pytest.raises(ConfigError, match=r"number 0: expected fields of \[\], got \['guesses'\]"):
        region_episodes(env, [{"guesses": [0, 1]}], 1, seed=0)


@pytest.mark.parametrize("settings", [
    {"policies": {}},
    {"policies": {"random": 0.5}},
    {"policies": {"random": 1.5, "optimal": -0.5}},
    {"regions": [{}]},
    {"regions": [{"row": [2, 1]}]},
    {"regions": [{"row": [1]}]},
])  # fmt: skip
def test_shares_and_regions_are_checked(settings):
    with pytest.raises(ValueError, match="policies: expected shares|regions: expected fields"):
        RecordingConfig(**settings)
