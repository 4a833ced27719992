"""The figures of a stuck policy, on episodes written by hand."""

import pytest

from lactchain.data.figures import endless_rate, movement_metrics
from lactchain.types import Action, Trajectory


def walk(places, completions, bumps=None, state=True):
    """An episode through places, one action per completion; a completion "?" is no action."""
    infos = [{"state": {"at": place} if state else None, "bumped": []} for place in places]
    for info, completion, bump in zip(
        infos[1:], completions, bumps or [False] * len(completions), strict=True
    ):
        info["bumped"] = [] if completion == "?" else [bump]
    texts = tuple(f"at {place}" for place in places)
    return Trajectory(
        "test/Walk-v0", 0, texts, tuple(map(Action, completions)), (-1.0,) * len(completions),
        tuple(infos), False, True,
    )  # fmt: skip


def test_a_straight_walk_is_not_stuck():
    assert set(movement_metrics([walk("abcd", "rrr")]).values()) == {0.0}
    assert set(movement_metrics([]).values()) == {0.0}
    assert set(movement_metrics([walk("a", "")]).values()) == {0.0}


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
    assert movement_metrics([walk("abababa", "rlrlrl")])["loop_rate"] == 1
    assert movement_metrics([walk("abababa", "rlrlru")])["loop_rate"] == 1  # r in a, three times
    assert (
        movement_metrics([walk("ababa", "rlrl"), walk("aaaa", "uuu", [True] * 3)])["loop_rate"]
        == 0.5
    )
