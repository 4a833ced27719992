"""The twelve questions of comparing of docs/explorer.md, asked with a mouse, as the ten are."""

import json
import re
import shutil

import pytest
from explorer_runs import GridRun
from test_ten_questions import Folder, Visitor, label, number_of, shown

from lactchain.data.evaluations import read_episodes
from lactchain.data.preferences import read_pairs
from lactchain.data.trajectories import read_trajectories
from lactchain.inspection.run_view import open_run, round_of
from lactchain.runs.run import read_summary
from lactchain.storage.manifests import write_with_manifest
from lactchain_extras.explorer.contents import contents, episodes_beside
from lactchain_extras.explorer.report import render, write_report

ROWS = ".compare .longtable tbody tr:not(.space)"
SIDES = ".compare .side"


def results(run, number=2):
    """(success, completions) of each start state, by its name on the page."""
    episodes = read_episodes(run.stage(number, "evaluation/episodes.json"))
    return {label(result.state): (result.success, result.num_chains) for result in episodes}


def both(run, other):
    one, two = results(run), results(other)
    return {state: (*one[state], *two[state]) for state in one}


def played(run, number=2):
    episodes = read_trajectories(run.stage(number, "evaluation/trajectories"))
    return {label(episode.infos[0]["state"]): episode for episode in episodes}


def chosen(visitor, change):
    """The start states that are listed, and how many these are."""
    visitor.click("#tab-compare")
    visitor.choose("#compare-change", change)
    visitor.page.wait_for_function(
        "() => document.querySelectorAll('.compare .longtable tbody tr').length >= 0"
    )
    listed = [row.split("\t")[0] for row in visitor.texts(ROWS)]
    return listed, number_of(visitor.text("#compare-count").split()[0])


def expect(visitor, run, other, change, holds):
    listed, count = chosen(visitor, change)
    expected = {state for state, figures in both(run, other).items() if holds(*figures)}
    assert expected and len(expected) == count and {*listed} <= expected


def what_it_gained(visitor, run, other):
    expect(visitor, run, other, "gained", lambda a, _, b, __: b and not a)


def what_it_lost(visitor, run, other):
    expect(visitor, run, other, "lost", lambda a, _, b, __: a and not b)


def whether_it_is_luck(visitor, *_):
    """Its numbers are among those of test_page_figures.py."""
    visitor.click("#tab-compare")
    assert visitor.text("#verdict-success").endswith("worse")
    visitor.choose("#side-b", "0 2")
    assert re.search(r": none of \d+ differs$", visitor.text("#verdict-chains"))


def which_setting_differs(visitor, *_):
    visitor.click("#tab-compare")
    visitor.click("#settings summary")
    assert [row.split("\t") for row in visitor.texts("#settings tbody tr")] == [
        ["run.seed", "0", "1"]
    ]


def what_both_answered(visitor, run, other):
    visitor.click("#tab-compare")
    visitor.click(f"{ROWS} >> nth=4")
    state = visitor.texts(f"{ROWS} >> nth=4")[0].split("\t")[0]
    for folder, text in zip((run, other), visitor.texts(SIDES), strict=True):
        assert played(folder)[state].actions[0].text in text
    heads, columns, *said = (row.split("\t") for row in visitor.texts("#said tr"))
    assert heads == ["completion", *(f"{r.directory.name}, round 2" for r in (run, other))]
    assert columns == ["", *("probability", "Q") * 2]
    assert {row[0]: row[1:] for row in said} == {
        text: [*one, *two]
        for (text, one), two in zip(
            could_say(run, state).items(), could_say(other, state).values(), strict=True
        )
    }


def could_say(run, state):
    """Probability and score of each candidate, as they are shown."""
    number = run.answers(2)[state]["state_id"]
    marks = {(False, False): "", (True, False): " +", (False, True): " −"}
    return {
        row["completion"]: [
            f"{row['probability']:.3g}" if row["count"] else "drawn",
            shown(row["score"]) + marks[row["chosen"], row["rejected"]],
        ]
        for row in run.candidates(2)
        if row["state_id"] == number
    }


def what_it_was_worth(visitor, run, other):
    visitor.click("#tab-compare")
    state = visitor.texts(ROWS)[0].split("\t")[0]
    for folder, text in zip((run, other), visitor.texts(SIDES), strict=True):
        assert f"V {shown(folder.answers(2)[state]['value'])}" in text


def how_each_episode_goes_on(visitor, run, other):
    visitor.click("#tab-compare")
    state = visitor.texts(ROWS)[0].split("\t")[0]
    visitor.click(".compare button[aria-label='next completion']")
    for folder, text in zip((run, other), visitor.texts(SIDES), strict=True):
        episode = played(folder)[state]
        at = min(1, len(episode) - 1)
        assert f"completion {at + 1} of {len(episode)}" in text
        assert episode.actions[at].text in text


def where_one_is_sooner(visitor, run, other):
    expect(visitor, run, other, "sooner", lambda a, m, b, n: a and b and n < m)


def where_neither_gets_there(visitor, run, other):
    expect(visitor, run, other, "failed", lambda a, _, b, __: not a and not b)


def whether_the_critic_got_better(visitor, *_):
    visitor.click("#tab-compare")
    heads, *rows = (row.split("\t") for row in visitor.texts("#runs tr"))
    told = [(row[heads.index("critic's R², round 1")], row[heads.index("pairs")]) for row in rows]
    assert told == [("0.9", "9"), ("0.8", "9")]


def what_the_last_round_added(visitor, run, _):
    visitor.click("#tab-compare")
    visitor.choose("#side-a", "0 1")
    visitor.choose("#side-b", "0 2")
    first, last = results(run, 1), results(run, 2)
    gained = sum(last[state][0] and not first[state][0] for state in first)
    assert f"gains {gained} beside grid, round 1" in visitor.text("#verdict") and gained


def which_pairs_taught_it(visitor, run, other):
    pairs = [
        (label(pair.state), folder.directory.name, pair)
        for folder in (run, other)
        for number in (1, 2)
        for pair in read_pairs(folder.stage(number, "simpo/pairs"))
    ]
    figures = both(run, other)
    state = next(name for name, _, _ in pairs if figures[name][:2] != figures[name][2:])
    visitor.click("#tab-compare")
    visitor.slide("section[aria-label=compare] input[type=search]", state)
    visitor.click(".compare header button:has-text('its pairs')")
    here = [row.split("\t") for row in visitor.texts(".longtable tbody tr:not(.space)")]
    expected = [(owner, pair.margin) for name, owner, pair in pairs if name == state]
    assert sorted((row[1], number_of(row[0])) for row in here) == [
        (owner, pytest.approx(margin, rel=1e-3)) for owner, margin in sorted(expected)
    ]
    assert {owner for owner, _ in expected} == {run.directory.name, other.directory.name}
    assert visitor.text("#tab-pairs").endswith(f" {len(pairs)}")  # of the runs that are shown


QUESTIONS = {
    "What did the other run learn that this one did not?": what_it_gained,
    "Where did it lose?": what_it_lost,
    "Is the difference luck?": whether_it_is_luck,
    "Which setting differs?": which_setting_differs,
    "What did both answer here?": what_both_answered,
    "What was each answer worth?": what_it_was_worth,
    "How does each episode go on?": how_each_episode_goes_on,
    "Where are both right, and one is sooner?": where_one_is_sooner,
    "Where does neither get there?": where_neither_gets_there,
    "Did the critic get better, or are there more pairs?": whether_the_critic_got_better,
    "What did the last round add?": what_the_last_round_added,
    "Which pairs taught it here?": which_pairs_taught_it,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return GridRun(folder / "grid", skill=0.7), GridRun(folder / "other", skill=0.3, seed=1)


@pytest.fixture(scope="module")
def page(runs, browser):
    path = write_report(runs[0].directory, beside=[runs[1].directory])
    return browser.new_page(viewport={"width": 1400, "height": 900}), path


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_of_comparing_is_answered_in_three_clicks(page, runs, question):
    QUESTIONS[question](Visitor(*page), *(Folder(run.directory) for run in runs))


def test_these_are_the_questions_of_comparing_of_the_documentation(root):
    text = (root / "docs/explorer.md").read_text().partition("## Twelve questions")[2]
    assert re.findall(r"^\| (.+\?) \|", text, re.MULTILINE) == list(QUESTIONS)


def test_what_is_compared_at_first_is_what_each_run_ended_with(runs, tmp_path, monkeypatch):
    shutil.copytree(runs[1].directory, tmp_path / "undone")
    summary = read_summary(tmp_path / "undone") | {"round": 1}  # its last round was not kept
    write_with_manifest(tmp_path / "undone/summary.json", json.dumps(summary).encode(), {})
    one, two = open_run(runs[0].directory), open_run(tmp_path / "undone")
    told = re.search(r'id="facts">(.*?)</script>', render(one, [two]))[1]
    assert json.loads(told)["chosen"] == [2, 1]
    episodes, _ = episodes_beside([one, two])
    assert {episode.stage for episode in episodes[:288]} == {"round_1/evaluation"}
    assert {round_of(episode.stage) for episode in episodes[288:]} == {0, 2}
    monkeypatch.setattr("lactchain_extras.explorer.contents.MAX_RUNS_BY_ROUND", 1)
    of_many, _ = episodes_beside([one, two])
    assert [e.trajectory for e in of_many] == [e.trajectory for e in episodes[:288]]


def test_where_room_is_short_the_states_that_end_differently_come_first(runs, monkeypatch):
    views = [open_run(run.directory) for run in runs]
    whole, told = episodes_beside(views)
    assert len(whole) == 3 * 288 and told == ""
    monkeypatch.setattr("lactchain_extras.explorer.contents.MAX_BYTES_BESIDE", 6_000)
    some, told = episodes_beside(views)
    differing = {
        state
        for state, (a, _, b, __) in both(*(Folder(r.directory) for r in runs)).items()
        if a != b
    }
    states = {label(episode.trajectory.infos[0]["state"]) for episode in some}
    assert 0 < len(states) < len(differing) and states <= differing
    assert f"from {len(states)} of 288 start states and 0 of 288 start states in other" in told
    monkeypatch.setattr("lactchain_extras.explorer.contents.MAX_CANDIDATES_BESIDE", 30)
    held = contents(*views[:1], views[1:])
    assert "Candidates of other runs are here from" in held.left_out
    said, known = held.tables["candidates"], held.tables["states"]["state"]
    rows = [number for run, number in zip(said["run"], said["state"], strict=True) if run]
    assert 20 < len(rows) <= 30 and {label(json.loads(known[n])) for n in rows} <= differing
