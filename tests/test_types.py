"""Trajectories, pairs and grammars: derived numbers, checks on construction, and their text."""

from dataclasses import replace

import numpy as np
import pytest
from trajectories import trajectory

from lactchain.types import Action, ChainGrammar, PreferencePair, Trajectory

HOSTILE = "</script><img src=x onerror=alert(1)> & $x$ \x1b[31m [bold] \ud800"
LISTS = ("observations", "rewards", "infos")


def episode(**changes) -> Trajectory:
    """Two chains: two actions that earn 1 and 2, then an unparsable completion at a cost of 0.5."""
    said = ['["a", "b"]', Action("what?", stop_reason="length")]
    done = [{"executed": ["a", "b"], "rewards": [1.0, 2.0]}, {"executed": [], "rewards": []}]
    texts = ("start", "middle", "end")
    whole = trajectory(texts, said, [3.0, -0.5], [{}, *done], terminated=False)
    return replace(whole, **changes)


@pytest.mark.parametrize(("per", "rewards", "discounts", "returns"), [
    # r_0 = 1 + 2/2, discount (1/2)²; r_1 = -0.5: an unparsable completion counts as one action.
    ("action", [2.0, -0.5], [0.25, 0.5], [2.0 - 0.125, -0.5]),
    ("chain", [3.0, -0.5], [0.5, 0.5], [2.75, -0.5]),
])  # fmt: skip
def test_returns_discount_each_action_or_chain(per, rewards, discounts, returns):
    np.testing.assert_allclose(episode().chain_rewards(0.5, per), rewards)
    np.testing.assert_allclose(episode().chain_discounts(0.5, per), discounts)
    np.testing.assert_allclose(episode().returns(0.5, per), returns)
    assert episode().num_actions == (2, 1)
    assert episode().episode_return == episode().returns(1.0)[0] == 2.5


def test_what_nobody_heard_is_no_decision():
    """A step costs 1; with a discount of 1/2 silence between would halve what is to come."""
    step = {"executed": ["a"], "rewards": [-1.0]}
    silence = {"executed": [], "rewards": [], "invalid_action": True, "unheard": True}
    spoken = episode(
        observations=("start", "middle", "middle, what?", "end"),
        actions=(Action("a"), Action(""), Action("b")),
        rewards=(-1.0, 0.0, -1.0),
        infos=({}, step, silence, step),
        terminated=True,
    )
    decisions = spoken.decisions()
    assert decisions.observations == ("start", "middle, what?", "end")
    assert [action.text for action in decisions.actions] == ["a", "b"]
    np.testing.assert_allclose(spoken.returns(0.5), [-1.25, -0.5, -1.0])
    np.testing.assert_allclose(decisions.returns(0.5), [-1.5, -1.0])
    assert episode().decisions() == episode()  # a completion that was charged stays
    silent = episode(infos=({}, silence, silence)).decisions()
    assert len(silent) == 0 and silent.observations == ("end",)


def test_an_episode_without_steps_has_no_returns():
    empty = episode(observations=("start",), actions=(), rewards=(), infos=({},))
    assert len(empty) == empty.episode_return == 0 and empty.returns(0.9).shape == (0,)


@pytest.mark.parametrize(("changes", "said"), [
    *(({name: getattr(episode(), name)[:-1]}, name) for name in LISTS),
    *(({"rewards": (bad, 0.0)}, "rewards: expected finite") for bad in (np.nan, np.inf)),
])  # fmt: skip
def test_lengths_that_do_not_fit_and_rewards_that_are_not_finite_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        episode(**changes)


def test_a_trajectory_reads_as_a_transcript():
    assert str(episode(policy="script")).splitlines() == [
        "test/Env-v0, seed 0, script", "[0] start", '    > ["a", "b"]    +3', "[1] middle",
        "    > what?    -0.5", "[2] end", "truncated, return +2.5",
    ]  # fmt: skip


def test_html_of_trajectories_and_pairs_is_escaped():
    trajectory = episode(env_id=HOSTILE, observations=(HOSTILE,) * 3, policy=HOSTILE)
    pair = PreferencePair(HOSTILE, HOSTILE, HOSTILE)
    for rendered in (trajectory._repr_html_(), pair._repr_html_()):
        assert "<img" not in rendered and "</script" not in rendered
        assert "&lt;img src=x onerror=alert(1)&gt; &amp; $x$ \x1b[31m [bold]" in rendered
        assert "\\ud800" in rendered.encode().decode()  # a file can hold it


def test_impossible_grammars_are_refused():
    with pytest.raises(ValueError, match="different names"):
        ChainGrammar(("a", "a"))
    with pytest.raises(ValueError, match="at least 1"):
        ChainGrammar(("a",), max_chain_length=0)
