"""Rounds are compared by pairs on a sample of their own; one that is worse is undone."""

import numpy as np
import pytest

from lactchain.data.episodes import sampled_starts
from lactchain.data.evaluations import EpisodeResult, write_episodes
from lactchain.data.intervals import paired_interval
from lactchain.environments.language import language_env
from lactchain.run import Run
from lactchain.settings import RunConfig
from lactchain.stages.run_pipeline import RunPipelineConfig
from lactchain.stages.selection import Selection, score


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


def results(successes, num_chains=1):
    return [
        EpisodeResult({"number": n}, bool(success), num_chains, 3)
        for n, success in enumerate(successes)
    ]


ALL, HALF, FEWER = [1] * 40, [1] * 20 + [0] * 20, [1] * 38 + [0] * 2


@pytest.mark.parametrize(
    ("greedy", "sampled", "worse"),
    [
        (results(HALF), results(HALF), True),
        (results(HALF, 4), results(ALL), False),  # greedy success alone
        (results(FEWER, 4), results(FEWER), False),  # both may be luck
        (results(HALF), results(ALL), True),  # within two completions it fell
        (results(ALL), results(HALF), False),
    ],
)
def test_a_round_is_worse_by_two_figures_that_are_no_luck(tmp_path, greedy, sampled, worse):
    before = results(ALL, 4 if greedy[0].num_chains == 4 else 1)
    for number, found in enumerate([(before, results(ALL)), (greedy, sampled)]):
        for how, episodes in zip(("greedy", "sampled"), found, strict=True):
            folder = tmp_path / f"run/round_{number}/selection/{how}"
            folder.mkdir(parents=True)
            write_episodes(folder / "episodes.json", episodes)
    config = RunPipelineConfig(run=RunConfig(run_dir=str(tmp_path / "run")))
    with Run.open(tmp_path / "other", config) as run:
        run.directory = tmp_path / "run"
        assert Selection(config, run).is_worse(1, best=0) is worse
        assert not Selection(config, run).is_worse(0, best=0)


def test_the_score_of_a_round_adds_up_what_it_is_compared_by():
    figures = {"greedy/success_rate": 0.5, "sampled/success_rate": 0.25}
    figures |= {"greedy/success_within_2_chains": 0.125, "sampled/success_within_2_chains": 9.0}
    assert score({f"selection/{name}": value for name, value in figures.items()}) == 0.875
