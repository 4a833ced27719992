"""Rollouts: results depend on seeds alone, files survive whatever happens, figures are right."""

import json
import threading
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
from script_setups import GRID, Finds, Says

from lactchain import Action, FunctionPolicy, LanguageActor, make_language_env, read_trajectories
from lactchain.config.settings import ActorConfig, EnvironmentConfig
from lactchain.data import rollouts as module
from lactchain.data.candidates import sample_candidates
from lactchain.data.episodes import Episode, all_episodes, sampled_episodes, sampled_states
from lactchain.data.evaluations import EpisodeResult, collection_metrics, summarize, time_metrics
from lactchain.data.rollouts import Rollouts, episode_results, evaluate
from lactchain.data.samples import invalid_rate, sample_completions
from lactchain.environments.scripted import OptimalChains, RandomChains
from lactchain.errors import ConfigError, EnvironmentFault, ServerError
from lactchain.functional.random_streams import derive_seed
from lactchain.storage.manifests import manifest_beside

NEAR = {"x": 0, "y": 1, "orientation": 0, "goal_x": 0, "goal_y": 0}
FAR = NEAR | {"orientation": 2}


@pytest.fixture(scope="module")
def actor(weights):
    """An untrained model that samples legal chains."""
    config = ActorConfig(str(weights / "actor"), max_new_tokens=8, decoding="constrained")
    return LanguageActor.from_config(config, make_language_env(GRID).grammar)


def heard(played):
    """What must not depend on how the work was cut: all but the last bits of probabilities."""
    return [replace(t, actions=tuple(replace(a, logprobs=()) for a in t.actions)) for t in played]


def test_episodes_depend_neither_on_neighbours_nor_on_shards(actor, tmp_path):
    episodes = sampled_episodes(make_language_env(GRID), 20, seed=3)
    one_by_one = Rollouts(GRID, num_envs=1).play(actor, episodes)
    assert Rollouts(GRID, num_envs=1).play(actor, episodes) == one_by_one  # to the last bit
    for num_envs, shard_size in ((7, 20), (16, 16), (20, 7)):
        folder = tmp_path / f"{num_envs}-{shard_size}"
        found, _ = Rollouts(GRID, num_envs).collect(actor, episodes, folder, shard_size)
        assert heard(found) == heard(one_by_one)
        assert len(list(folder.glob("*.parquet"))) == -(-20 // shard_size)
    logprobs = [[a.logprobs for t in ts for a in t.actions] for ts in (found, one_by_one)]
    for ours, theirs in zip(*logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    other = sampled_episodes(make_language_env(GRID), 20, seed=4)
    assert heard(Rollouts(GRID).play(actor, other)) != heard(one_by_one)
    assert Rollouts(GRID).play(actor, []) == []


def test_idle_places_are_refilled_at_once():
    """A third of the episodes last one completion, the others four; no place is idle."""
    env = make_language_env(GRID)
    episodes = [Episode(i, NEAR if i % 3 == 0 else FAR) for i in range(12)]
    policy, rollouts = Says(env.grammar.render([0])), Rollouts(GRID, num_envs=4)
    played = rollouts.play(policy, episodes)
    assert [len(t) for t in played] == [1, 4, 4] * 4
    assert [t.seed for t in played] == list(range(12))
    assert [t.infos[0]["state"] for t in played] == [e.state for e in episodes]
    assert sum(policy.batches) == rollouts.tally["num_chains"] == 36
    assert policy.batches[:8] == [4] * 8


class Unhurried:
    """Answers row by row, each in a time of its own; the first one late."""

    name = "random"

    def __init__(self, grammar):
        self.policy, self.asked = RandomChains(grammar), 0

    def act(self, observations, seeds):
        raise AssertionError("it can be asked row by row")

    def submit(self, observation, seed):
        future, (answer,) = Future(), self.policy.act([observation], [seed])
        self.asked += 1
        wait = 0.4 if self.asked == 1 else seed % 7 / 2000
        threading.Timer(wait, lambda: future.set_result(answer)).start()
        return future


def test_episodes_go_on_when_their_answers_come_and_are_the_same():
    env = make_language_env(GRID)
    episodes, policy = sampled_episodes(env, 24, seed=2), Unhurried(env.grammar)
    rollouts, start = Rollouts(GRID, num_envs=6), time.monotonic()
    played = rollouts.play(policy, episodes)
    assert time.monotonic() - start < 0.8  # twice the first answer: nobody else waited for it
    together = Rollouts(GRID, num_envs=6).play(policy.policy, episodes)
    assert [replace(t, policy="") for t in played] == [replace(t, policy="") for t in together]
    assert rollouts.tally["num_chains"] == sum(map(len, played)) == policy.asked


class Broken(Unhurried):
    """Answers the first row with an error, and none of the others."""

    def __init__(self, grammar):
        super().__init__(grammar)
        self.futures = []

    def submit(self, observation, seed):
        self.futures.append(Future())
        if len(self.futures) == 1:
            self.futures[0].set_exception(ServerError("no answer"))
        return self.futures[-1]


def test_nothing_is_asked_any_more_once_an_error_has_ended_a_rollout():
    env = make_language_env(GRID)
    policy = Broken(env.grammar)
    with pytest.raises(ServerError):
        Rollouts(GRID, num_envs=4).play(policy, sampled_episodes(env, 4, seed=2))
    assert [future.cancelled() for future in policy.futures[1:]] == [True] * 3


def test_start_states_are_uniform_to_within_one():
    env = make_language_env(GRID)
    states = sampled_states(env, 100, seed=0)
    counts = Counter(map(str, states))
    assert len(counts) == 48 and set(counts.values()) == {2, 3}
    assert states == sampled_states(env, 100, seed=0) != sampled_states(env, 100, seed=1)
    assert sampled_states(env, 48, seed=0) == states[:48]


def test_an_environment_whose_states_are_not_listed_starts_by_itself():
    env = make_language_env(GRID)
    env.view = replace(env.view, states=None)
    assert [e.state for e in sampled_episodes(env, 5, seed=0)] == [None] * 5
    with pytest.raises(ConfigError, match="states"):
        all_episodes(env, seed=0)


def test_a_restart_keeps_whole_shards_and_their_tally_and_mends_the_others(tmp_path, caplog):
    env = make_language_env(GRID)
    episodes = sampled_episodes(env, 40, seed=0)
    policy = RandomChains(env.grammar)
    first, tally = Rollouts(GRID).collect(policy, episodes, tmp_path, shard_size=8)
    paths = sorted(tmp_path.glob("*.parquet"))
    assert len(paths) == 5
    content = paths[1].read_bytes()
    paths[1].write_bytes(content[:-9] + bytes([content[-9] ^ 4]) + content[-8:])
    manifest_beside(paths[2]).write_text("{")
    paths[3].unlink()
    kept = {path: path.stat().st_mtime_ns for path in (paths[0], paths[4])}
    rollouts = Rollouts(GRID)
    second, tally_again = rollouts.collect(policy, episodes, tmp_path, shard_size=8)
    assert second == first and kept == {path: path.stat().st_mtime_ns for path in kept}
    assert f"{paths[1]}: is made again" in caplog.text
    assert f"{paths[2]}: is made again ({manifest_beside(paths[2])}" in caplog.text
    assert tally_again["num_chains"] == tally["num_chains"] == sum(map(len, first))
    assert rollouts.tally["num_chains"] == sum(map(len, first[8:32]))


def test_garbage_is_all_invalid_and_never_succeeds(tmp_path):
    rollouts = Rollouts(GRID)
    policy = Says("move forward, please \ud800</s>")
    results, figures = evaluate(policy, rollouts, seed=0, folder=tmp_path)
    assert figures["invalid_rate"] == 1
    assert figures["success_rate"] == figures["mean_chain_length"] == 0
    assert np.isnan(figures["actions_over_shortest"])
    assert all(r.num_chains == GRID.max_chains and r.num_actions == 0 for r in results)
    assert invalid_rate(sample_completions(policy, rollouts, 100, seed=0)) == 1
    best = OptimalChains(rollouts.env)
    assert invalid_rate(sample_completions(best, rollouts, 100, seed=0)) == 0


@pytest.mark.parametrize("kwargs", [{"is_slippery": True}, {"is_slippery": False}])
def test_where_nobody_knows_shortest_paths_they_are_left_out(kwargs, tmp_path):
    rollouts = Rollouts(EnvironmentConfig("FrozenLake-v1", kwargs, max_chains=30))
    if not kwargs["is_slippery"]:
        rollouts.env.view = replace(rollouts.env.view, model=None)
    policy = RandomChains(rollouts.env.grammar)
    results, figures = evaluate(policy, rollouts, seed=1, folder=tmp_path)
    assert len(results) == 11 and all(result.shortest is None for result in results)
    assert np.isnan(figures["actions_over_shortest"])


def test_figures_match_hand_computed_numbers():
    """From (0, 1) looking up the goal (0, 0) is one step away; looking down, three."""
    rollouts = Rollouts(replace(GRID, invalid_penalty=-0.5, chain_cost=0.25))
    completions = {
        0: ['["turn left", "turn left"]', '["turn left", "turn left"]', '["move forward"]'],
        1: ["no"] * 4,
        2: ['["move forward"]', '["turn left", "turn left", "move forward"]'],
    }
    owner = {derive_seed(seed, k): seed for seed in range(3) for k in range(4)}
    scripted = FunctionPolicy(lambda _, seed: completions[owner[seed]].pop(0), draws=True)
    trajectories = rollouts.play(scripted, [Episode(0, NEAR), Episode(1, NEAR), Episode(2, FAR)])
    results = episode_results(rollouts.env, trajectories)
    assert results == [
        EpisodeResult(NEAR, success=True, num_chains=3, num_actions=5, shortest=1),
        EpisodeResult(NEAR, success=False, num_chains=4, num_actions=0, shortest=1),
        EpisodeResult(FAR, success=True, num_chains=2, num_actions=4, shortest=3),
    ]
    figures = summarize(results, trajectories)
    assert figures == pytest.approx({
        "num_episodes": 3, "success_rate": 2 / 3, "success_within_2_chains": 1 / 3,
        "mean_chain_length": (2 + 2 + 1 + 1 + 3) / 5,
        "actions_over_shortest": (5 + 4) / (1 + 3),
        "invalid_rate": 4 / 9,
        "episode_return": (1 - 0.75 - 4 * 0.75 + 1 - 0.5) / 3,
        "bump_rate": 1 / 9,  # looking down, into the edge
        "revisit_rate": 1 / 9,  # two turns left, and two more
        "loop_rate": 1 / 3,
    })  # fmt: skip
    collected = collection_metrics(trajectories)
    assert collected["num_chains"] == 9
    for name in ("success_rate", "invalid_rate"):
        assert collected[f"rollout/{name}"] == figures[name]
    assert collected["rollout/chain_length"] == figures["mean_chain_length"]


def test_time_is_told_by_kind_of_work():
    tally = {"num_chains": 30, "generate_seconds": 2.0, "environment_seconds": 1.0}
    times = {"generate_seconds": 2.0, "environment_seconds": 1.0, "chains_per_second": 10.0}
    assert time_metrics(tally) == {f"time/{name}": value for name, value in times.items()}


def test_samples_are_kept_in_files_that_a_killed_run_goes_on_with(tmp_path):
    rollouts = Rollouts(GRID, num_envs=7)
    policy = FunctionPolicy(lambda _, seed: '["turn left"]' if seed % 3 else "no", draws=True)
    alone = sample_completions(policy, rollouts, num_samples=50, seed=0)
    assert 0.1 < invalid_rate(alone) < 0.6
    kept = sample_completions(policy, rollouts, 50, 0, tmp_path)
    files = sorted(tmp_path.glob("*.parquet"))
    assert kept == alone and len(files) == 2  # of 28 each at most
    files[0].unlink()
    manifest_beside(files[1]).unlink()
    assert sample_completions(policy, rollouts, 50, 0, tmp_path) == alone
    assert all(sample.state in rollouts.env.view_states() for sample in alone)


def test_a_model_may_emit_anything_at_all(weights, tmp_path):
    """Bytes, broken UTF-8, special tokens: an untrained model that decodes freely."""
    config = ActorConfig(str(weights / "actor"), max_new_tokens=24, temperature=2.0)
    rollouts = Rollouts(GRID)
    actor = LanguageActor.from_config(config, rollouts.env.grammar)
    episodes = sampled_episodes(rollouts.env, 64, seed=0)
    played, _ = rollouts.collect(actor, episodes, tmp_path / "trajectories")
    texts = [action.text for t in played for action in t.actions]
    assert len(texts) == 64 * GRID.max_chains and len(set(texts)) > 200
    assert not all(text.isascii() for text in texts)
    assert read_trajectories(tmp_path / "trajectories") == played
    assert collection_metrics(played)["rollout/invalid_rate"] == 1
    json.dumps([t.infos for t in played], allow_nan=False)


def test_an_environment_that_breaks_the_rules_leaves_no_shard(tmp_path, monkeypatch):
    rollouts = Rollouts(GRID, num_envs=4)
    world = type(rollouts.env.env.unwrapped)
    step = world.step

    def break_at_goal(env, action):
        observation, reward, *ended = step(env, action)
        return observation, float("inf") if reward > 0 else reward, *ended

    monkeypatch.setattr(world, "step", break_at_goal)
    policy = RandomChains(rollouts.env.grammar)
    episodes = sampled_episodes(rollouts.env, 48, seed=0)
    with pytest.raises(EnvironmentFault, match="a reward is a finite number; got inf") as fault:
        rollouts.collect(policy, episodes, tmp_path, shard_size=48)
    assert fault.value.exit_code == 6 and not list(tmp_path.glob("*.parquet"))


def test_outcomes_are_single_decisions_and_equal_completions_are_played_once(monkeypatch):
    rollouts, begun, begin = Rollouts(GRID), [], module._Place.begin
    monkeypatch.setattr(
        module._Place, "begin", lambda *args: (begun.append(args[2].state), begin(*args))
    )
    forward, turn = Action('["move forward"]', (1,)), Action('["turn left"]', (2,))
    outcomes = rollouts.outcomes([NEAR, NEAR, NEAR, FAR], [forward, turn, forward, forward], 0)
    assert [o.episode_return for o in outcomes] == [1, 0, 1, 0]
    assert [o.terminated for o in outcomes] == [True, False, True, False]
    assert [o.truncated for o in outcomes] == [False, True, False, True]
    assert begun == [NEAR, NEAR, FAR]


def test_candidates_are_ranked_by_the_advantage_of_hand_computed_values():
    """V is 0.5 in states in which the agent looks up, else 0.25; gamma 0.5 per action."""

    critic = Finds(lambda text: 0.5 if " up " in text else 0.25)
    said = ['["move forward"]', '["turn left"]', '["turn left", "move forward"]', "no"]
    alternates, rollouts = iter(said * 2), Rollouts(GRID)
    policy, side = FunctionPolicy(lambda _: next(alternates)), NEAR | {"orientation": 1}
    found = sample_candidates(policy, rollouts, [NEAR, side], 4, 0, critic)
    assert found[0].returns == (1, 0, 0, 0)
    # the goal is reached; a turn to the left; the same and a bump; nothing, counted as one action
    assert found[0].advantages == (1 - 0.5, 0.5 * 0.25 - 0.5, 0.25 * 0.25 - 0.5, 0.5 * 0.5 - 0.5)
    # a step to (1, 1); a turn upwards; that and a step onto the goal; nothing
    assert found[1].returns == (0, 0, 0.5, 0)
    assert found[1].advantages == (
        0.5 * 0.25 - 0.25, 0.5 * 0.5 - 0.25, 0.5 - 0.25, 0.5 * 0.25 - 0.25
    )  # fmt: skip
    assert [c.state for c in found] == [NEAR, side]
