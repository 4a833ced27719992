"""Success is what the view says, and never that an episode has ended."""

import pytest
from test_handed_over import corridor
from trajectories import trajectory

from lactchain import ConfigError, DataError
from lactchain.data import alarms
from lactchain.data.evaluations import (
    EpisodeResult,
    check_success_known,
    collection_metrics,
    success_figures,
)
from lactchain.environments.views import every_ending
from lactchain.stages.train_bc import chosen_episodes


def played(env, completion='["right", "right", "right", "right"]'):
    observation, info = env.reset(seed=0)
    after, reward, terminated, truncated, last = env.step(completion)
    texts, infos = (observation, after), (info, last)
    return trajectory(texts, [completion], [float(reward)], infos, terminated=terminated)


@pytest.mark.parametrize(
    ("success", "told"), [(None, None), (every_ending, True), (lambda env: False, False)]
)
def test_an_ending_is_a_success_only_where_the_view_says_so(success, told):
    episode = played(corridor(success=success))
    assert episode.terminated and episode.infos[-1]["success"] is told
    assert episode.infos[0]["success"] is (None if told is None else False)
    cut = played(corridor(success=success), '["left"]')
    assert not cut.terminated and cut.infos[-1]["success"] is (None if told is None else False)


def test_without_a_statement_there_is_no_figure_of_success_and_no_success_is_cloned():
    silent, told = (
        [played(corridor(success=success)), played(corridor(success=success), '["left"]')]
        for success in (None, every_ending)
    )
    assert "rollout/success_rate" not in collection_metrics(silent)
    assert success_figures([EpisodeResult({}, None, 1, 1, 1, 0.0)]) == {}
    assert collection_metrics(told)["rollout/success_rate"] == 0.5
    with pytest.raises(DataError, match="whether they ended well"):
        chosen_episodes(silent, only_successes=True)
    assert chosen_episodes(silent) == silent


NAMES = ("success_rate", "success_within_2_chains", "actions_over_shortest")


@pytest.mark.parametrize("name", NAMES)
def test_without_a_statement_no_target_goes_by_success(name):
    with pytest.raises(ConfigError, match=f"target: .*{name}.* TextView.success"):
        check_success_known(corridor(), {name: 0.9}, "target")
    check_success_known(corridor(), {"of_optimum": 0.9}, "target")
    check_success_known(corridor(success=every_ending), {name: 0.9}, "target")


def test_without_a_statement_the_best_round_is_that_of_the_highest_return():
    rounds = [{"episode_return": earned, "num_episodes": 100} for earned in (-1.0, 0.5, 0.2)]
    assert alarms.best_round(rounds) == 1 and alarms.loss(rounds[:2], rounds[2]) == {}
