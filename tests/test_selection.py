"""Rounds are compared by pairs on a sample of their own; one that is worse is undone."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from script_setups import config_of, run_here, run_smallest

from lactchain import EnvironmentConfig, HeldBackConfig, Rollouts, language_env
from lactchain.data.episodes import sampled_starts
from lactchain.data.evaluations import EpisodeResult, read_episodes, write_episodes
from lactchain.data.intervals import paired_interval, share_interval
from lactchain.stages.evaluate import EvaluationConfig, enough_per_start
from lactchain.stages.round_results import is_worse, score


def test_the_interval_of_paired_differences_by_hand():
    """Differences 1, 0, 0, 0: mean .25, standard error .25."""
    low, high = paired_interval(np.array([0, 1, 1, 0]), np.array([1, 1, 1, 0]))
    assert (low, high) == pytest.approx((0.25 - 1.959964 * 0.25, 0.25 + 1.959964 * 0.25))


def test_the_two_samples_of_start_states_are_the_same_in_all_runs_and_share_none():
    env = language_env()
    reported, selection = (sampled_starts(env, 96, name) for name in ("reported", "selection"))
    assert len(reported) == len(selection) == 96
    assert not [state for state in reported if state in selection]
    assert reported == sampled_starts(language_env(), 96)
    assert reported != env.start_states()[:96]  # neither corner of the list
    assert sampled_starts(env, None) == sampled_starts(env, 5000) == env.start_states()


@pytest.mark.parametrize("by", [[], ["goal_x", "goal_y"]])
@pytest.mark.parametrize("count", [96, 240])
def test_a_sample_holds_as_many_held_back_states_as_their_share_is(by, count):
    env = language_env(held_back=HeldBackConfig(0.2, by))
    share = np.mean([state in env.held_back for state in env.start_states()])
    for name in ("reported", "selection"):
        held = sum(state in env.held_back for state in sampled_starts(env, count, name))
        assert abs(held - share * count) <= 1


def test_the_interval_of_a_sample_goes_by_its_starts_not_by_its_episodes(weights, tmp_path):
    sample = EvaluationConfig(num_starts=12, num_episodes_per_start=4, num_samples=0)
    summary = run_smallest("evaluate", weights, tmp_path / "run", evaluation=sample)
    found = summary["success_rate_low"], summary["success_rate_high"]
    assert found == pytest.approx(share_interval(12 * summary["success_rate"], 12))
    assert len(read_episodes(tmp_path / "run/episodes.json")) == 48


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_all_starts_are_played_the_interval_goes_by_what_is_luck(
    weights, tmp_path, temperature
):
    sample = EvaluationConfig(num_starts=5000, num_episodes_per_start=2, num_samples=0)
    config = config_of("evaluate", weights, tmp_path / "run", evaluation=sample)
    actor = replace(config.actor, temperature=temperature)
    summary = run_here("evaluate", replace(config, actor=actor))
    found = summary["success_rate_low"], summary["success_rate_high"]
    played = len(read_episodes(tmp_path / "run/episodes.json"))
    trials = played if temperature else played // 2
    assert found == pytest.approx(share_interval(trials * summary["success_rate"], trials))


def test_a_finished_run_says_that_what_it_read_has_changed(weights, tmp_path, caplog):
    copied = shutil.copytree(weights, tmp_path / "weights")
    told = copied, tmp_path / "run"
    run_smallest("evaluate", *told)
    before = run_smallest("evaluate", *told)
    assert "not as it was" not in caplog.text
    (copied / "actor/added.json").write_text("{}")
    assert run_smallest("evaluate", *told) == before
    assert "is not as it was when this run began" in caplog.text


def test_a_sample_of_a_world_with_dice_is_played_as_often_as_all_its_starts():
    rollouts = Rollouts(EnvironmentConfig("FrozenLake-v1"), num_envs=1)
    assert enough_per_start(rollouts, len(rollouts.env.start_states())) == 46  # of 11: 506 episodes
    assert enough_per_start(rollouts, 5) == 100


def results(successes, num_chains=1):
    return [EpisodeResult({"n": n}, bool(won), num_chains, 3) for n, won in enumerate(successes)]


ALL, HALF, FEWER = [1] * 40, [1] * 20 + [0] * 20, [1] * 38 + [0] * 2


@pytest.mark.parametrize(("greedy", "sampled", "worse"), [
    (results(HALF), results(HALF), True),
    (results(HALF, 4), results(ALL), False),  # greedy success alone
    (results(FEWER, 4), results(FEWER), False),  # both may be luck
    (results(HALF), results(ALL), True),  # within two completions it fell
    (results(ALL), results(HALF), False),
])  # fmt: skip
def test_a_round_is_worse_by_two_figures_that_are_no_luck(tmp_path, greedy, sampled, worse):
    before = results(ALL, 4 if greedy[0].num_chains == 4 else 1)
    for number, found in enumerate([(before, results(ALL)), (greedy, sampled)]):
        for how, episodes in zip(("greedy", "sampled"), found, strict=True):
            folder = tmp_path / f"run/round_{number}/selection/{how}"
            folder.mkdir(parents=True)
            write_episodes(folder / "episodes.json", episodes)
    assert is_worse(tmp_path / "run", 1, best=0) is worse
    assert not is_worse(tmp_path / "run", 0, best=0)


def test_the_score_of_a_round_adds_up_what_it_is_compared_by():
    figures = {"greedy/success_rate": 0.5, "sampled/success_rate": 0.25}
    figures |= {"greedy/success_within_2_chains": 0.125, "sampled/success_within_2_chains": 9.0}
    assert score({f"selection/{name}": value for name, value in figures.items()}) == 0.875
