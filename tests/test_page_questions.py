"""The questions of docs/explorer.md: asked with a mouse, and answered from the run folder.

The page is that of a pipeline on a small grid, with another seed beside it. A question begins at
the first screen, and has at most three clicks; what a select or a slider is set to is one.
"""

import re
from collections import Counter
from functools import partial
from itertools import product

import pytest
from browser import label, number_of, shown

from lactchain.data.evaluations import loops
from lactchain.data.preferences import DROP_REASONS
from lactchain.storage.files import read_json
from lactchain_extras.explorer.report import write_report

MOST_CLICKS = 3
CELL = ".split.map > div > .board .hit"
ROWS = ".compare .longtable tbody tr:not(.space)"
SIDES = ".compare .side"


class Visitor:
    """Counts clicks, from the first screen on."""

    def __init__(self, page, path) -> None:
        self.page, self.text, self.clicks = page, page.inner_text, 0
        page.goto("about:blank")
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready=yes]")

    def click(self, selector) -> None:
        self._do(self.page.click, selector)

    def _do(self, deed, *given) -> None:
        self.clicks += 1
        assert self.clicks <= MOST_CLICKS
        deed(*given)

    def choose(self, selector, value) -> None:
        self._do(self.page.select_option, selector, value)

    def slide(self, selector, value) -> None:
        self._do(self.page.fill, selector, value)

    def texts(self, selector) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def map(self) -> dict[str, float]:
        """What the cells of the map say: the number of each start state."""
        labels = "cells => cells.map(cell => cell.getAttribute('aria-label'))"
        told = self.page.locator(CELL).evaluate_all(labels)
        found = (hint.partition(": ") for hint in told)
        return {state: number_of(last.rpartition(" ")[2]) for state, _, last in found}

    def choose_cell(self, place) -> str:
        """The start state of a cell that was clicked."""
        self.click(f"{CELL} >> nth={place}")
        return [*self.map()][place]


TEN, TWELVE = {}, {}
"""What answers the questions of a run, and those of comparing, which begin on that screen."""


def asks(questions, text):
    """Has a function answer a question of the documentation."""
    return lambda answer: questions.setdefault(text, answer)


def solved(run, number=2):
    return {state: result.success for state, result in run.results(number).items()}


# --- ten of a run --------------------------------------------------------------------------------


@asks(TEN, "Where does it still fail?")
def where_it_still_fails(visitor, run, _):
    failed = {state for state, solved in solved(run, 2).items() if not solved}
    assert f"{len(failed)} of the last 288 episodes" in visitor.text("#summary")
    visitor.click("#summary [data-go=episodes]")
    visitor.choose("#filter-round", "2")
    rows = visitor.texts(".longtable tbody td.wide")
    assert failed and failed == set(rows[: len(failed)])


@asks(TEN, "Where did it fail after the first round, and no longer?")
def where_it_failed_after_the_first_round_and_no_longer(visitor, run, _):
    visitor.click("#tab-states")
    visitor.choose("#state-metric", "success")
    visitor.page.wait_for_selector(f"{CELL}[aria-label*=': success']")
    now = visitor.map()
    visitor.slide("#state-round", "1")
    visitor.page.wait_for_selector("b:has-text('round 1')")
    then = visitor.map()
    first, last = solved(run, 1), solved(run, 2)
    expected = {state for state in then if last[state] and not first[state]}
    assert expected == {state for state in then if then[state] == 0 and now[state] == 1} != set()


@asks(TEN, "What would it have answered here before?")
def what_it_would_have_answered_here_before(visitor, run, _):
    visitor.click("#tab-states")
    state = visitor.choose_cell(5)
    assert run.answers(0)[state]["completion"] in visitor.text(".answer >> nth=0")
    assert "before" in visitor.text(".answer >> nth=0")


@asks(TEN, "What are its next best answers here, and how probable?")
def what_its_next_best_answers_are_and_how_probable(visitor, run, _):
    """Its numbers are among those of test_page_figures.py."""
    visitor.click("#tab-states")
    number = run.answers(2)[visitor.choose_cell(5)]["state_id"]
    rows = [row for row in run.candidates(2) if row["state_id"] == number and row["count"]]
    likely = sorted(rows, key=lambda row: -row["probability"])
    leaves = [row.split("\t") for row in visitor.texts(".tree tbody tr:not(.branch):not(.apart)")]
    assert leaves and len(leaves) <= len(likely)
    for row, (text, *_) in zip(likely, leaves, strict=False):
        assert text.strip("└ ") and "".join(row["tokens"]).endswith(text.strip("└ "))


@asks(TEN, "Which pair had the largest margin in the first round?")
def which_pair_had_the_largest_margin_in_the_first_round(visitor, run, _):
    """Its numbers are among those of test_page_figures.py."""
    visitor.click("#tab-pairs")
    visitor.choose("#pair-round", "1")
    widest = max(run.pairs(1), key=lambda pair: pair.margin)
    _, number, state, *sides = visitor.texts(".longtable tbody tr >> nth=0")[0].split("\t")
    cell = f"({widest.state['x']}, {widest.state['y']}) facing "
    assert number == "round 1" and state.startswith(cell)
    for told, whole in zip(sides, (widest.chosen, widest.rejected), strict=True):
        assert whole.endswith(told.lstrip("…"))  # what both begin with is left out


@asks(TEN, "How many pairs were dropped, and why?")
def how_many_pairs_were_dropped_and_why(visitor, run, _):
    visitor.click("#tab-pairs")
    rows = (row.split("\t") for row in visitor.texts("#dropped tbody tr"))
    reasons = DROP_REASONS.values()
    told = {name: [*map(number_of, counts)] for name, *counts in rows if name in reasons}
    figures = [read_json(run.stage(n, "simpo/summary.json")) for n in (1, 2)]
    names = {words: f"pairs/dropped_{reason}" for reason, words in DROP_REASONS.items()}
    counts = {words: [fig.get(name, 0) for fig in figures] for words, name in names.items()}
    assert told == {words: count for words, count in counts.items() if any(count)} != {}
    for number, dropped in zip((1, 2), map(sum, zip(*counts.values(), strict=True)), strict=True):
        share = 100 * dropped / (dropped + len(run.pairs(number)))
        assert f"{dropped} ({share:.1f} %)" in visitor.text("#dropped")


@asks(TEN, "Where is the last critic most wrong?")
def where_the_last_critic_is_most_wrong(visitor, run, _):
    visitor.click("#tab-critic")
    errors = {state: row["value"] - row["optimal"] for state, row in run.answers(2).items()}
    worst = sorted(errors, key=lambda state: -abs(errors[state]))[:5]
    rows = [row.split("\t") for row in visitor.texts("#worst tbody tr")][:5]
    assert [row[0] for row in rows] == worst
    expected = pytest.approx([errors[state] for state in worst], rel=1e-3)
    assert [number_of(row[3]) for row in rows] == expected
    visitor.click("#worst button >> nth=0")
    visitor.page.wait_for_selector(f"{CELL}[aria-label^='{worst[0]}']")
    assert visitor.map()[worst[0]] == pytest.approx(errors[worst[0]], rel=1e-3)


@asks(TEN, "Which episodes bump or loop?")
def which_episodes_bump_or_loop(visitor, run, _):
    visitor.click("#tab-episodes")
    visitor.click("button.chip:has-text('bumps')")
    bumping = [e for e in run.played if any(any(info["bumped"]) for info in e.infos[1:])]
    assert visitor.text("#episode-count") == f"{len(bumping)} of {len(run.played)}"
    visitor.click("button.chip:has-text('loops')")
    both = sum(map(loops, bumping))
    assert visitor.text("#episode-count") == f"{both} of {len(run.played)}" and both


@asks(TEN, "Which answers were no chains, verbatim?")
def which_answers_were_no_chains(visitor, run, _):
    visitor.click("#tab-states")
    visitor.click("#nochains summary")
    rows = (row.split("\t") for row in visitor.texts("#nochains tbody tr"))
    told = {text: number_of(places) for text, _, _, places, *_ in rows}
    rows = (row for number in range(3) for row in run.candidates(number) if row["invalid"])
    invalid = {(row["completion"], row["state_id"]) for row in rows}
    assert told == Counter(text for text, _ in invalid) != {}


@asks(TEN, "How do two seeds differ?")
def how_two_seeds_differ(visitor, run, other):
    visitor.click("#tab-compare")
    assert "grid" in visitor.text("#runs") and "other" in visitor.text("#runs")
    one, two = solved(run, 2), solved(other, 2)
    lost, gained = (sum(a[s] and not b[s] for s in one) for a, b in ((one, two), (two, one)))
    told = f"other, round 2 gains {gained} beside grid, round 2 and loses {lost}"
    assert lost > 0 and told in visitor.text("#verdict")


# --- twelve of comparing -------------------------------------------------------------------------


CHANGES = {
    "What did the other run learn that this one did not?":
        ("gained", lambda a, b: b.success and not a.success),
    "Where did it lose?": ("lost", lambda a, b: a.success and not b.success),
    "Where are both right, and one is sooner?":
        ("sooner", lambda a, b: a.success and b.success and b.num_chains < a.num_chains),
    "Where does neither get there?": ("failed", lambda a, b: not (a.success or b.success)),
}  # fmt: skip
"""What is chosen for a question, and the results of both runs in the start states listed then."""


def what_changed(change, holds, visitor, run, other):
    visitor.choose("#compare-change", change)
    theirs = other.results()
    expected = {state for state, ours in run.results().items() if holds(ours, theirs[state])}
    assert expected and len(expected) == number_of(visitor.text("#compare-count").split()[0])
    assert {row.split("\t")[0] for row in visitor.texts(ROWS)} <= expected


TWELVE |= {question: partial(what_changed, *change) for question, change in CHANGES.items()}


@asks(TWELVE, "Is the difference luck?")
def whether_it_is_luck(visitor, *_):
    """Its numbers are among those of test_page_figures.py."""
    assert visitor.text("#verdict-success").endswith("worse")
    visitor.choose("#side-b", "0 2")
    assert re.search(r": none of \d+ differs$", visitor.text("#verdict-chains"))


@asks(TWELVE, "Which setting differs?")
def which_setting_differs(visitor, *_):
    visitor.click("#settings summary")
    assert visitor.texts("#settings tbody tr") == ["run.seed\t0\t1"]


def listed(visitor, place=0):
    """The start state in a place of the list."""
    return visitor.texts(ROWS)[place].split("\t")[0]


@asks(TWELVE, "What did both answer here?")
def what_both_answered(visitor, run, other):
    visitor.click(f"{ROWS} >> nth=4")
    state = listed(visitor, 4)
    for folder, text in zip((run, other), visitor.texts(SIDES), strict=True):
        assert folder.evaluated()[state].actions[0].text in text
    heads, columns, *said = (row.split("\t") for row in visitor.texts("#said tr"))
    assert heads == ["completion", *(f"{r.directory.name}, round 2" for r in (run, other))]
    assert columns == ["", *("probability", "Q") * 2]
    one, two = could_say(run, state), could_say(other, state)
    assert {row[0]: row[1:] for row in said} == {text: one[text] + two[text] for text in one | two}


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


@asks(TWELVE, "What was each answer worth?")
def what_it_was_worth(visitor, run, other):
    state = listed(visitor)
    for folder, text in zip((run, other), visitor.texts(SIDES), strict=True):
        assert f"V {shown(folder.answers(2)[state]['value'])}" in text


@asks(TWELVE, "How does each episode go on?")
def how_each_episode_goes_on(visitor, run, other):
    state = listed(visitor)
    visitor.click(".compare button[aria-label='next completion']")
    for folder, text in zip((run, other), visitor.texts(SIDES), strict=True):
        episode = folder.evaluated()[state]
        at = min(1, len(episode) - 1)
        assert f"completion {at + 1} of {len(episode)}" in text
        assert episode.actions[at].text in text


@asks(TWELVE, "Did the critic get better, or are there more pairs?")
def whether_the_critic_got_better(visitor, *_):
    heads, *rows = (row.split("\t") for row in visitor.texts("#runs tr"))
    told = [(row[heads.index("critic's R², round 1")], row[heads.index("pairs")]) for row in rows]
    assert told == [("0.9", "9"), ("0.8", "9")]


@asks(TWELVE, "What did the last round add?")
def what_the_last_round_added(visitor, run, _):
    visitor.choose("#side-a", "0 1")
    visitor.choose("#side-b", "0 2")
    first, last = solved(run, 1), solved(run, 2)
    gained = sum(last[state] and not first[state] for state in first)
    assert f"gains {gained} beside grid, round 1" in visitor.text("#verdict") and gained


@asks(TWELVE, "Which pairs taught it here?")
def which_pairs_taught_it(visitor, run, other):
    both, pairs = (run, other), []
    for folder, number in product(both, (1, 2)):
        owner = folder.directory.name
        pairs += [(label(pair.state), owner, pair.margin) for pair in folder.pairs(number)]
    one, two = ({s: (r.success, r.num_chains) for s, r in f.results().items()} for f in both)
    state = next(name for name, *_ in pairs if one[name] != two[name])
    visitor.slide("section[aria-label=compare] input[type=search]", state)
    visitor.click(".compare header button:has-text('its pairs')")
    here = [row.split("\t") for row in visitor.texts(".longtable tbody tr:not(.space)")]
    expected = [told for name, *told in pairs if name == state]
    assert sorted((row[1], number_of(row[0])) for row in here) == [
        (owner, pytest.approx(margin, rel=1e-3)) for owner, margin in sorted(expected)
    ]
    assert {owner for owner, _ in expected} == {folder.directory.name for folder in both}
    assert visitor.text("#tab-pairs").endswith(f" {len(pairs)}")  # of the runs that are shown


@pytest.fixture(scope="module")
def page(seeds, browser):
    path = write_report(seeds[0].directory, beside=[seeds[1].directory])
    return browser.new_page(viewport={"width": 1400, "height": 900}), path


@pytest.mark.parametrize("question", [*TEN, *TWELVE])
def test_a_question_is_answered_in_three_clicks(page, seeds, question):
    visitor = Visitor(*page)
    if question in TWELVE:
        visitor.click("#tab-compare")
    (TEN | TWELVE)[question](visitor, *seeds)


def test_these_are_the_questions_of_the_documentation(root):
    parts = (root / "docs/explorer.md").read_text().partition("## Twelve questions")
    for text, questions in ((parts[0], TEN), (parts[2], TWELVE)):
        assert sorted(re.findall(r"^\| (.+\?) \|", text, re.MULTILINE)) == sorted(questions)
