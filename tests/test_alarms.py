"""Alarms: the figures of a stuck policy, what sets alarms off, and which courses end a run."""

import re

import pytest
from trajectories import trajectory

from lactchain.data.alarms import RULES, best_round, collapse, fired, loss, warn
from lactchain.data.evaluations import endless_rate, movement_metrics
from lactchain.errors import CollapseError

RATES = "rollout/single", "endless", "bump", "revisit", "loop", "pairs/no_spread"
LEARNING = {f"{name}_rate": 0.1 for name in RATES} | {
    "success_lost": 0.1, "retrieval_skill": 0.6,
    "sampled_invalid_rate": 0.01, "rollout/invalid_rate": 0.9,  # the newer figure counts
}  # fmt: skip
ALARMING = {
    "silence": {"sampled_invalid_rate": 0.31}, "single_actions": {"rollout/single_rate": 0.91},
    "endless_chains": {"endless_rate": 0.51}, "bumps": {"bump_rate": 0.51},
    "revisits": {"revisit_rate": 0.51}, "loops": {"loop_rate": 0.51},
    "no_spread": {"pairs/no_spread_rate": 0.91}, "not_reading": {"retrieval_skill": 0.04},
    "fell": {"success_lost": 0.51},
}  # fmt: skip


def test_a_round_that_learns_sets_off_nothing(caplog):
    assert fired(LEARNING) == dict.fromkeys(ALARMING, False)
    warn(LEARNING)
    assert not caplog.text


@pytest.mark.parametrize("name", ALARMING)
def test_each_alarm_has_its_figure_and_says_what_helps(name, caplog):
    figures = LEARNING | ALARMING[name]
    assert [alarm for alarm, is_on in fired(figures).items() if is_on] == [name]
    warn(figures)
    (rule,) = [rule for rule in RULES if rule.name == name]
    (value,) = ALARMING[name].values()
    assert f"alarm {name}: {rule.figures[0]} is {value}" in caplog.text
    assert rule.means in caplog.text and rule.mend in caplog.text


def test_a_figure_that_was_not_measured_sets_off_nothing():
    assert fired({}) == {}
    unknown = {"loop_rate": 1.0, "bump_rate": float("nan"), "revisit_rate": None}
    assert fired(unknown) == {"loops": True}
    assert fired({"rollout/invalid_rate": 0.9}) == {"silence": True}


def test_before_the_first_round_form_and_reading_alone_are_judged(caplog):
    figures = LEARNING | {"retrieval_skill": -0.1, "loop_rate": 1.0, "sampled_invalid_rate": 1.0}
    assert fired(figures, before=True) == {"silence": True, "not_reading": True}
    warn(figures, before=True)
    helps = ("clone first, or longer", "clone longer (warm_start.behavior.num_chains)")
    assert all(f"What helps: {help}" in caplog.text for help in helps)
    assert "loops" not in caplog.text


def test_a_fall_of_one_round_is_told_if_it_is_not_luck():
    rounds = course((0.2, 0, 0), (1.0, 0, 0))
    assert loss(rounds, course((0.188, 0, 0))[0])["success_lost"] == pytest.approx(0.812)
    assert loss(rounds, course((1.0, 0, 0))[0]) == {"success_lost": 0.0}
    few = course((0.5, 0, 0), num_episodes=8)[0]
    assert loss(rounds, few) == {"success_lost": 0.0}


def test_a_run_that_forgets_for_two_rounds_stops_unless_sampled_play_is_as_good():
    rounds = course((0.1, -9, 0), (0.6, -2, 0), (0.2, -8, 0), (0.1, -8, 0))
    assert collapse(rounds[:3]) is None
    stopped(rounds, r"rule forgetting: success went 0\.100, 0\.600, 0\.2")
    for figures, sampled in zip(rounds, (0.2, 0.5, 0.6, 0.6), strict=True):
        figures["selection/sampled/success_rate"] = sampled
    assert collapse(rounds) is None
    rounds[2]["selection/sampled/success_rate"] = rounds[3]["selection/sampled/success_rate"] = 0.4
    stopped(rounds, "rule forgetting")


def course(*rounds, num_episodes=100):
    """Evaluations of (success, return, share of completions that are no chains)."""
    names = ("success_rate", "episode_return", "sampled_invalid_rate")
    other = {"num_episodes": num_episodes, "invalid_rate": 0.0}
    return [dict(zip(names, figures, strict=True)) | other for figures in rounds]


def stopped(rounds, match):
    error = collapse(rounds)
    assert isinstance(error, CollapseError) and error.exit_code == 7
    assert re.search(match, str(error))
    return str(error)


def test_a_run_that_falls_silent_stops_and_says_where_it_was_best():
    rounds = course((0.1, -9, 0.12), (0.3, -5, 0.37), (0.2, -1, 0.90), (0.0, 0, 1.00))
    assert collapse(rounds[:1]) is None
    assert collapse(rounds[:2]) is None
    line = stopped(rounds[:3], "^round 2: the run ends, by the rule silence")
    assert "went 0.12, 0.37, 0.90; lower simpo.training.learning_rate" in line
    assert "The best actor is that of round 1, with a success of 0.300" in line
    assert "\n" not in line
    greedy = [{"success_rate": 0.0, "invalid_rate": rate} for rate in (0.1, 0.9)]
    stopped(greedy, r"went 0\.10, 0\.90")  # where there are no samples


SILENT = (0.95, 0.9, 0.7), (0.9, 0.95), (0.1, 0.5), (0.2, 0.9, 0.8)


@pytest.mark.parametrize("rounds", [
    course((0.6, -2, 0), (0.3, -8, 0), (0.3, -8, 0)),  # half is left
    course((0.6, -2, 0), (0.2, -8, 0), (0.2, -1, 0)),  # the return is better
    course((0.6, -2, 0), (0.2, -8, 0), (0.4, -3, 0)),  # it comes back
    course((0.6, -2, 0), (0.2, -8, 0), (0.2, -8, 0), num_episodes=12),  # 4.8 episodes
    course((0.0, -2, 0), (0.0, -8, 0), (0.0, -8, 0)),  # nothing to lose
    # silence that falls, that was there from the beginning, of half, and that falls again
    *(course(*((0.1, -1.0, share) for share in shares)) for shares in SILENT),
])  # fmt: skip
def test_a_fall_or_silence_that_may_be_none_is_no_collapse(rounds):
    assert collapse(rounds) is None


def practised_course(*rounds):
    """The same of practised states; of all states success rises, and nothing is said."""
    of_all = {"episode_return": 0.0, "num_episodes": 200}
    return [
        of_all
        | {"success_rate": 0.2 * number, "invalid_rate": 0.4 * number}
        | {f"practised/{name}": value for name, value in figures.items()}
        for number, figures in enumerate(course(*rounds))
    ]


def test_where_states_are_held_back_the_practised_ones_decide():
    rounds = practised_course((0.1, -9, 0), (0.6, -2, 0), (0.2, -8, 0), (0.1, -8, 0))
    assert best_round(rounds) == 1
    stopped(rounds, r"went 0\.100, 0\.600, 0\.2.* success of 0\.600")
    assert collapse(practised_course((0.1, -9, 0), (0.6, -2, 0), (0.5, -2, 0))) is None
    assert fired({"loop_rate": 0.9, "practised/loop_rate": 0.1}) == {"loops": False}


def walk(places, completions, bumps=None, state=True):
    """An episode through places, one action per completion; a completion "?" is no action."""
    infos = [{"state": {"at": place} if state else None, "bumped": []} for place in places]
    bumps = bumps or [False] * len(completions)
    for info, completion, bump in zip(infos[1:], completions, bumps, strict=True):
        info["bumped"] = [] if completion == "?" else [bump]
    texts = tuple(f"at {place}" for place in places)
    return trajectory(texts, completions, infos=infos, terminated=False)


def test_a_straight_walk_is_not_stuck():
    for walks in ([walk("abcd", "rrr")], [walk("a", "")], []):
        assert set(movement_metrics(walks).values()) == {0.0}


@pytest.mark.parametrize("state", [True, False])
def test_each_way_to_be_stuck_has_its_figure(state):
    nonsense = walk("aab", "?r", state=state)
    wall = walk("aab", "lr", [True, False], state=state)
    back = walk("abab", "rlr", state=state)
    metrics = movement_metrics([nonsense, wall, back])
    assert metrics["bump_rate"] == 1 / 6
    assert metrics["revisit_rate"] == 2 / 7  # of `back` the second and the third completion
    assert metrics["loop_rate"] == 0


def played(lengths, success=False):
    """An episode of chains of that many actions; -1 is no chain."""
    trajectory = walk("a" * (len(lengths) + 1), "x" * len(lengths))
    for info, length in zip(trajectory.infos[1:], lengths, strict=True):
        info |= {"executed": ["x"] * max(0, length), "invalid_action": length < 0, "success": False}
    trajectory.infos[-1]["success"] = success
    return trajectory


def test_an_endless_episode_fails_on_chains_of_full_length_alone():
    assert endless_rate([played([4, 4, 4]), played([4, -1, 4])], 4) == 1.0
    fine = [played([4, 4, 2]), played([4, 4], success=True), played([-1, -1])]
    assert endless_rate([*fine, played([4])], 4) == 0.25
    assert endless_rate([played([1, 1])], 1) == 0.0


def test_a_loop_is_the_same_completion_to_the_same_state_three_times():
    def rate(*walks):
        return movement_metrics(list(walks))["loop_rate"]

    assert rate(walk("abababa", "rlrlrl")) == 1
    assert rate(walk("abababa", "rlrlru")) == 1  # r in a, three times
    assert rate(walk("ababa", "rlrl"), walk("aaaa", "uuu", [True] * 3)) == 0.5
