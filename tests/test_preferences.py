"""Preference pairs: who wins, what is dropped and why, and that files keep them verbatim."""

from dataclasses import replace

import numpy as np
import pytest
from script_setups import Says

from lactchain import Action, PreferencePair, chain_advantages, make_pairs, read_pairs, write_pairs
from lactchain.config.settings import EnvironmentConfig, PreferenceConfig
from lactchain.data.candidates import sample_candidates
from lactchain.data.preferences import DROP_REASONS, Candidates, has_spread, require_pairs
from lactchain.data.rollouts import Rollouts
from lactchain.data.sources import read_trajectories
from lactchain.errors import DataError, NoPairsError
from lactchain.stages.make_preferences import make_preferences


def action(text: str) -> Action:
    """Its token ids are the letters, and the n-th has the log-probability -n."""
    return Action(text, tuple(map(ord, text)), tuple(-float(n) for n in range(len(text))))


def candidates(*completions: tuple[str, float], returns=None, **changes) -> Candidates:
    """A state whose completions are (text, advantage)."""
    return Candidates(
        observation=changes.pop("observation", "where?"),
        actions=tuple(action(text) for text, _ in completions),
        advantages=tuple(advantage for _, advantage in completions),
        returns=returns or tuple(10.0 * advantage for _, advantage in completions),
        **changes,
    )


def test_advantage_by_hand():
    # A chain of 2 actions, a terminal one, an unparsable completion (k = 1, stays where it was).
    advantages = chain_advantages(
        rewards=np.array([1.0, 1.0, -0.1]),
        num_actions=np.array([2, 3, 1]),
        values=np.array([0.5, 0.5, 0.4]),
        next_values=np.array([0.8, 100.0, 0.4]),
        terminated=np.array([False, True, False]),
        gamma=0.5,
    )
    np.testing.assert_allclose(advantages, [1.0 + 0.25 * 0.8 - 0.5, 0.5, -0.1 + 0.2 - 0.4])
    per_chain = chain_advantages([0.0], [5], [0.0], [1.0], [False], 0.5, discount_per="chain")
    np.testing.assert_allclose(per_chain, [0.5])


def test_best_is_chosen_and_worst_rejected():
    said = ("b", 0.2), ("worst", -1.0), ("best", 0.9)
    [pair], dropped = make_pairs([candidates(*said, env_id="e", seed=4, state={"x": 1})])
    assert dropped == {}
    for role, text in (("chosen", "best"), ("rejected", "worst"), ("sampled", "b")):
        parts = [getattr(pair, f"{role}{part}") for part in ("", "_token_ids", "_logprobs")]
        assert Action(*parts) == action(text)
    assert (pair.chosen_value, pair.rejected_value) == (0.9, -1.0)
    assert (pair.chosen_return, pair.rejected_return) == (9.0, -10.0)
    assert (pair.prompt, pair.env_id, pair.seed, pair.state) == ("where?", "e", 4, {"x": 1})


def test_equal_completions_count_once_with_the_mean_of_their_scores():
    state = candidates(("lucky", 1.0), ("sure", 0.8), ("lucky", 0.0), returns=(2.0, 1.0, 4.0))
    (pair,), dropped = make_pairs([state])
    assert (pair.chosen, pair.rejected, pair.rejected_value) == ("sure", "lucky", 0.5)
    assert pair.rejected_return == 3.0 and dropped == {}


EQUAL_TOKENS = Action("a", (1,)), Action("a ", (1,))


@pytest.mark.parametrize(("state", "reason"), [
    *((candidates(*said), "equal_text") for said in ([("same", 1.0)] * 2, [("alone", 1.0)], [])),
    (candidates(("a", 0.5), ("b", 0.5)), "tie"),
    (candidates(("a", 0.5), ("b", 0.45)), "margin"),
    (candidates(("a", 1.0), ("", 0.0)), "empty"),
    (candidates(("", 1.0), ("a", 0.0)), "empty"),
    (candidates(("x", 1.0), ("y", 0.0), is_chain=(False, False)), "no_chain"),
    (candidates(("x", 1.0), ("x", 1.0), is_chain=(False, False)), "no_chain"),
    (candidates(("a", float("nan")), ("b", 0.0)), "non_finite"),
    (candidates(("a", 1.0), ("b", 0.0), returns=(0.0, float("inf"))), "non_finite"),
    (Candidates("?", EQUAL_TOKENS, (1.0, 0.0), (1.0, 0.0)), "equal_tokens"),
])  # fmt: skip
def test_pairs_that_teach_nothing_are_dropped_and_counted(state, reason):
    good = candidates(("a", 1.0), ("b", 0.0))
    pairs, dropped = make_pairs([good, state], min_margin=0.1)
    assert len(pairs) == 1 and dropped == {reason: 1}
    assert reason in DROP_REASONS


def test_every_chain_ranks_before_every_completion_that_is_none():
    """Taxi: a step costs 1 or 10, saying nothing costs nothing."""
    completions = (("step", -1.0), ("tokens", 0.0), ("drop", -10.0), ("silence", -0.5))
    state = candidates(*completions, is_chain=(True, False, True, False))
    pairs, _ = make_pairs([state] * 400, min_margin=0.25)
    form = [pair for pair in pairs if pair.rejected == "silence"]
    choice = [pair for pair in pairs if pair.rejected == "drop"]
    # Two chains wherever two exist, but for a share: half of these completions are none.
    assert len(pairs) == len(form) + len(choice) and 150 < len(form) < 250
    pair = form[0]
    # What is none counts as 0.25 less than the worst chain.
    assert (pair.chosen, pair.chosen_value, pair.rejected_value) == ("step", -1.0, -10.25)
    assert (pair.chosen_return, pair.rejected_return) == (-10.0, -5.0)  # as they were
    assert (choice[0].chosen, choice[0].rejected_value) == ("step", -10.0)
    by_return, _ = make_pairs([replace(state, advantages=())] * 400, min_margin=0.25)
    values = {(pair.chosen_value, pair.rejected_value) for pair in by_return}
    assert values == {(-10.0, -100.25), (-10.0, -100.0)}


def test_the_rarer_no_chains_are_the_less_form_is_taught():
    for num_silent in (0, 2, 8):
        completions = [("best", 1.0), ("worst", 0.0)] * ((16 - num_silent) // 2)
        completions += [("silence", 0.0)] * num_silent
        is_chain = tuple(text != "silence" for text, _ in completions)
        pairs, _ = make_pairs([candidates(*completions, is_chain=is_chain)] * 1000)
        form_rate = sum(pair.rejected == "silence" for pair in pairs) / len(pairs)
        assert form_rate == pytest.approx(num_silent / 16, abs=0.05)


def test_a_chain_against_what_is_none_is_a_pair_at_any_margin_and_against_tokens_of_silence():
    state = candidates(("only", 0.0), ("none", 0.0), is_chain=(True, False))
    for min_margin in (0.0, 0.1, 1 / 3):
        (pair,), _ = make_pairs([state], min_margin=min_margin)
        assert (pair.chosen, pair.rejected, pair.margin) == ("only", "none", min_margin)
    worse = candidates(("only", 0.0), ("none", -7.0), is_chain=(True, False))
    (pair,), _ = make_pairs([worse], min_margin=0.1)
    assert pair.margin == 7.0
    actions = (Action("go", (5, 1)), Action("", (1,)))
    (pair,), _ = make_pairs([Candidates("?", actions, (-1.0, 0.0), (-1.0, 0.0), (True, False))])
    assert (pair.chosen, pair.rejected, pair.rejected_token_ids) == ("go", "", (1,))


@pytest.mark.parametrize(("scores", "is_chain", "min_margin", "spread"), [
    ((1.0, 0.5, 9.0), (True, True, False), 0.5, True),
    ((1.0, 0.5, 9.0), (True, True, False), 0.6, False),
    ((1.0, 1.0, 0.0), (True, True, False), 0.0, False),
    ((1.0, 0.5, 0.0), (True, False, False), 0.0, False),
    ((1.0, 0.5, 0.0), (False, False, False), 0.0, False),
    ((1.0, 0.5, 0.0), (), 0.0, True),
])  # fmt: skip
def test_values_are_spread_among_chains_alone(scores, is_chain, min_margin, spread):
    state = candidates(*zip("abc", scores, strict=True), is_chain=is_chain)
    assert has_spread(state, min_margin) is spread


def test_nothing_left_is_an_error_with_the_counts_and_what_helps():
    states = [candidates(("a", 1.0), ("a", 1.0))] * 2 + [candidates(("a", 0.0), ("b", 0.0))]
    pairs, dropped = make_pairs(states)
    with pytest.raises(DataError, match="all 3 were dropped: 2 because .*; 1 because .*"):
        require_pairs(pairs, dropped)
    with pytest.raises(NoPairsError, match="What helps: clone first [^;]*$"):
        require_pairs([], {"no_chain": 4})
    with pytest.raises(NoPairsError, match="What helps: lower min_margin; sample more"):
        require_pairs([], {"margin": 1, "tie": 2})


def test_scores_that_do_not_fit_the_completions_are_refused():
    for name, short in (("advantages", (1.0,)), ("is_chain", (True,))):
        with pytest.raises(ValueError, match=f"{name}: .* each of 2 actions, got 1"):
            Candidates("?", (Action("a"), Action("b")), (0.0, 0.0), **{name: short})


def test_pairs_come_back_equal_from_files_and_are_no_trajectories(tmp_path):
    hostile = "\ud800 \x00 \x1b[31m </script> $x$ [bold]"
    first, _ = make_pairs([candidates(("a", 1 / 3), ("b", 0.0), state={"x": 1, "pos": [1, 2]})])
    second = [PreferencePair(hostile, hostile, "b", env_id=hostile, state={hostile: hostile})]
    write_pairs(tmp_path / "1.parquet", first)
    write_pairs(tmp_path / "2.parquet", second)
    assert read_pairs(tmp_path / "1.parquet") == first
    assert read_pairs(tmp_path) == first + second
    with pytest.raises(DataError, match="expected trajectories"):
        read_trajectories(tmp_path / "1.parquet")
    unwritable = PreferencePair("p", "a", "b", state={"x": np.ones(1)})
    with pytest.raises(DataError, match=r"state: number \d+: expected what JSON can hold"):
        write_pairs(tmp_path / "p.parquet", [unwritable])


WORLD = EnvironmentConfig("lactchain/GridWorld-v0", {"size": 2})
LEFT, AHEAD, RIGHT = '["turn left"]', '["move forward"]', '["turn right"]'


def three_of_each(policy, num_states, **others):
    """Three candidates in each of some states; the texts that are compared, and those states."""
    rollouts = Rollouts(WORLD)
    states = rollouts.env.view_states()[:num_states]
    found = sample_candidates(policy, rollouts, states, 3, 0, None, **others)
    texts = [[action.text for action in state.actions] for state in found]
    return texts, found, rollouts.observe(states)


def test_where_all_completions_read_the_same_explorers_are_asked_for_all_but_the_first():
    policy = Says(AHEAD, AHEAD, AHEAD, AHEAD, AHEAD, LEFT)  # agrees with itself in the first state
    still_sure, explorer, too_late = Says(AHEAD), Says(LEFT), Says("nothing")
    explorers = [still_sure, explorer, too_late]
    texts, (first, second), observed = three_of_each(policy, 2, explorers=explorers)
    assert texts == [[AHEAD, LEFT, LEFT], [AHEAD, AHEAD, LEFT]]
    assert still_sure.asked == explorer.asked == [observed[0]] * 2 and too_late.asked == []
    assert [action.text for action in first.own] == [AHEAD, AHEAD, AHEAD]
    assert second.own == second.actions


def test_where_completions_are_no_chains_legal_ones_take_the_place_of_all_but_the_first():
    policy = Says("prose", "prose", "more", "prose", LEFT, "more", "prose", LEFT, AHEAD)
    legal, sure = Says(LEFT, RIGHT), Says("never")
    texts, found, _ = three_of_each(policy, 3, explorers=[sure], legal=[legal])
    # The third state has two chains of its own.
    assert texts == [["prose", LEFT, RIGHT], ["prose", LEFT, LEFT], ["prose", LEFT, AHEAD]]
    assert [action.text for action in found[0].own] == ["prose", "prose", "more"]
    assert sure.asked == [] and len(legal.asked) == 3


def test_explorers_are_asked_until_there_are_two_chains_whatever_their_spelling():
    policy = Says(AHEAD, '[ "move forward" ]', AHEAD)
    texts, (only,), _ = three_of_each(policy, 1, explorers=[Says("nothing"), Says(LEFT)])
    assert texts == [[AHEAD, LEFT, LEFT]] and only.own != only.actions


def test_what_explorers_say_does_not_count_as_the_policys_own():
    settings = PreferenceConfig(num_states=48, num_candidates=4)
    sure = Says('["move forward", "move forward"]')
    pairs, figures = make_preferences(sure, None, WORLD, settings, explorers=[Says("nothing")])
    assert {pair.rejected for pair in pairs} == {"nothing"} and len(pairs) == 48
    assert figures["rollout/invalid_rate"] == figures["rollout/single_rate"] == 0
    assert figures["rollout/chain_length"] == 2
    assert figures["pairs/no_spread_rate"] == 0  # nobody knows what other chains are worth
    _, figures = make_preferences(sure, None, WORLD, settings, explorers=[Says(LEFT)])
    assert figures["rollout/single_rate"] == 0 and figures["num_env_steps"] == 48 * (2 + 3)


def test_only_where_all_completions_read_the_same_does_an_actor_agree_with_itself():
    settings = PreferenceConfig(num_states=6, num_candidates=4, min_margin=100.0)
    for texts, agree in (([LEFT], True), ([LEFT, AHEAD], False)):
        with pytest.raises(NoPairsError) as stop:
            make_preferences(Says(*texts), None, WORLD, settings)
        assert stop.value.agree is agree


def test_a_pair_does_not_depend_on_the_last_bit_of_a_mean():
    texts, scores = ("goal and on",) * 3 + ("goal", "nowhere"), (0.1,) * 4 + (0.0,)
    assert np.mean(scores[:3]) > scores[3]  # by rounding
    actions = tuple(map(Action, texts))
    (pair,), _ = make_pairs([Candidates("where?", actions, scores, scores)])
    assert (pair.chosen, pair.rejected) == ("goal", "nowhere")
    equals = Candidates("where?", actions[:4], scores[:4], scores[:4])
    assert make_pairs([equals]) == ([], {"tie": 1}) and not has_spread(equals)
