"""The figures of a report by hand: what steps are worth, shares, curves, tables, charts."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from explorer_runs import GridRun, unpack
from hypothesis import given
from hypothesis import strategies as st
from run_folders import write_run

from lactchain.data.evaluations import (
    EpisodeResult,
    StateValues,
    read_values,
    write_episodes,
    write_values,
)
from lactchain.errors import DataError
from lactchain.inspection.run_view import open_run
from lactchain_extras.explorer.inspections import left_out
from lactchain_extras.explorer.report import escape, write_report
from lactchain_extras.explorer.summary import Share, summarise
from lactchain_extras.explorer.tables import pack


def test_success_by_hand(tmp_path):
    results = [
        EpisodeResult({}, True, num_chains=1, num_actions=2, shortest=2),
        EpisodeResult({}, True, num_chains=3, num_actions=6, shortest=2),
        EpisodeResult({"a": 1}, False, num_chains=16, num_actions=60, shortest=5),
        EpisodeResult({"a": 2}, True, num_chains=2, num_actions=3, shortest=None),
    ]
    write_run(tmp_path / "run", {}, 1)
    write_episodes(tmp_path / "run" / "episodes.json", results)
    summary = summarise(open_run(tmp_path / "run"))
    (facts,) = summary.rounds
    assert (facts.solved, facts.within_2) == (Share(3, 4), Share(2, 4))
    assert summary.failures == (results[2],)
    # Four episodes from three start states are luck: Wilson's interval of 3 in 4.
    assert "between 30.1 and 95.4\u00a0% (95\u00a0%)" in summary.sentences[-1]


@pytest.mark.parametrize(
    ("actor", "sentence"),
    [
        ({"temperature": 0.0}, "The one start state was played once, greedily."),
        ({"temperature": 0.25}, "1 episode from 1 start state, sampled at temperature 0.25: that"),
        ({"decoding": "scored", "values": "x"}, "The one .*, by the completion of the highest "),
        ({}, "The one start state was played once."),
    ],
)
def test_the_first_screen_says_how_the_last_evaluation_was_played(tmp_path, actor, sentence):
    """A pipeline's own actor is that of its training: what counts is that of the evaluation."""
    results = [EpisodeResult({}, True, num_chains=1, num_actions=2, shortest=2)]
    write_run(tmp_path / "run", {"actor": {"temperature": 0.7}}, 1)
    write_run(tmp_path / "run/round_1/evaluation", {"actor": actor}, 1)
    write_run(tmp_path / "alone", {"actor": actor}, 1)
    for folder in ("run/round_1/evaluation", "alone"):
        write_episodes(tmp_path / folder / "episodes.json", results)
    for name in ("run", "alone"):
        assert re.match(sentence, summarise(open_run(tmp_path / name)).sentences[-1])


def test_episodes_that_repeat_each_other_do_not_make_a_rate_surer(tmp_path):
    results = [EpisodeResult({"a": a}, a > 0, num_chains=1, num_actions=2) for a in (0, 1, 2)]
    write_run(tmp_path / "run", {"actor": {"temperature": 0.0}}, 1)
    write_episodes(tmp_path / "run" / "episodes.json", results * 5)
    (*_, said) = summarise(open_run(tmp_path / "run")).sentences
    assert said == (
        "Each of the 3 start states was played more than once, greedily, and went alike each time."
    )


@given(st.lists(st.one_of(st.none(), st.integers(-9, 9), st.text(max_size=3))))
def test_tables_come_back_as_they_were(mixed):
    assert unpack(pack({"mixed": mixed})) == {"mixed": mixed}


def test_r2_and_rmse_by_hand():
    values = StateValues(({}, {}), critic=(0.0, 1.0), exact=(0.0, 2.0), gamma=0.9)
    assert values.rmse == pytest.approx(math.sqrt(0.5))
    assert values.r2 == pytest.approx(0.5)


@pytest.mark.parametrize("exact", [None, (0.5, -1 / 3)])
def test_values_come_back_equal(tmp_path, exact):
    values = StateValues(({"x": 1}, {"x": "\ud800"}), (0.25, 1e-300), exact, 0.9, "chain")
    write_values(tmp_path / "values.json", values)
    assert read_values(tmp_path / "values.json") == values
    with pytest.raises(ValueError, match="exact: expected a value for each of 1 states, got 2"):
        StateValues(({},), (0.0,), (0.0, 1.0), 0.9)
    (tmp_path / "other.json").write_text('{"schema_version": 1}')
    with pytest.raises(DataError, match="other.json: not of schema version 1"):
        read_values(tmp_path / "other.json")


def test_curves_keep_the_last_record_of_a_step_and_show_gaps(tmp_path):
    write_run(tmp_path / "run", {}, 0)
    records = [
        {"step": 1, "time": 0.0, "loss": 3.0, "name": "x", "flag": True},
        {"step": 2, "time": 1.0, "loss": 9.0},
        {"step": 2, "time": 2.0, "loss": None},
        {"step": 3, "time": 3.0, "loss": 1},
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "run" / "metrics.jsonl").write_text(lines + '{"step": 4, "lo')
    ((key, (steps, losses)),) = open_run(tmp_path / "run").curves().items()
    assert key == "loss"
    assert steps == [1, 2, 3]
    np.testing.assert_array_equal(losses, [3.0, math.nan, 1.0])


@given(st.text(st.characters()))
def test_escaped_text_reads_as_it_was_and_holds_no_markup(text):
    escaped = escape(text)
    assert not set("<>\"'") & set(escaped)
    escaped.encode("utf-8")


def test_all_that_is_no_record_is_named_of_stages_and_of_runs_beside_too(tmp_path):
    GridRun(tmp_path / "run")
    folder = shutil.copytree(tmp_path / "run", tmp_path / "other")
    for number, make in ((1, Path.touch), (2, lambda place: place.symlink_to(tmp_path / "none"))):
        shutil.rmtree(folder / f"round_{number}/inspection")
        make(folder / f"round_{number}/inspection")
    (folder / "round_2/critic/token_values").mkdir()
    names = ["round_1/inspection", "round_2/critic/token_values", "round_2/inspection"]
    assert left_out(open_run(folder)) == names
    page = write_report(tmp_path / "run", beside=[folder]).read_text()
    assert all(f"other/{name} is damaged or not whole, not shown" in page for name in names)
