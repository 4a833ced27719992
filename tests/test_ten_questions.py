"""The ten questions of docs/explorer.md: asked with a mouse, and answered from the run folder.

The page is that of a pipeline on a small grid, with another seed beside it. A question begins at
the first screen, and has at most three clicks; what a select or a slider is set to is one.
"""

import json
import re
from collections import Counter
from functools import cached_property

import pytest
from browser import four_digits
from explorer_runs import GridRun
from run_folders import play

from lactchain.data.evaluations import loops, read_episodes
from lactchain.data.preferences import DROP_REASONS, read_pairs
from lactchain.data.trajectories import read_trajectories, write_trajectories
from lactchain.storage.files import read_json
from lactchain_extras.explorer.inspections import read_inspection
from lactchain_extras.explorer.report import write_report

MOST_CLICKS = 3
CELL = ".split.map > div > .board .hit"
FACING = ("up", "right", "down", "left")


class Folder:
    """What a run folder says, read without the code of the page."""

    def __init__(self, directory) -> None:
        self.directory = directory

    def stage(self, number, name):
        return self.directory / f"round_{number}/{name}"

    def solved(self, number) -> dict[str, bool]:
        """Whether the evaluation of a round solved each start state, by its name on the page."""
        results = read_episodes(self.stage(number, "evaluation/episodes.json"))
        return {label(result.state): result.success for result in results}

    def answers(self, number) -> dict[str, dict]:
        rows = read_inspection(self.stage(number, "inspection")).answers.to_pylist()
        return {label(json.loads(row["state"])): row for row in rows}

    def candidates(self, number) -> list[dict]:
        return read_inspection(self.stage(number, "inspection")).candidates.to_pylist()

    @cached_property
    def played(self):
        folders = self.directory.glob("round_*/*/trajectories")
        return [episode for folder in folders for episode in read_trajectories(folder)]


class Visitor:
    """Counts clicks, from the first screen on."""

    def __init__(self, page, path) -> None:
        self.page, self.text, self.clicks = page, page.inner_text, 0
        page.goto("about:blank")
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready=yes]")

    def click(self, selector) -> None:
        self._one()
        self.page.click(selector)

    def choose(self, selector, value) -> None:
        self._one()
        self.page.select_option(selector, value)

    def slide(self, selector, value) -> None:
        self._one()
        self.page.fill(selector, value)

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

    def _one(self) -> None:
        self.clicks += 1
        assert self.clicks <= MOST_CLICKS


def label(state) -> str:
    """A state as the page writes it."""
    goal = f"goal at ({state['goal_x']}, {state['goal_y']})"
    return f"({state['x']}, {state['y']}) facing {FACING[state['orientation']]}, {goal}"


def shown(value) -> str:
    return f"{value:.4g}".replace("-", "−")


def number_of(text) -> float:
    return float(text.replace("−", "-").replace("+", "").replace(",", ""))


# --- the questions -------------------------------------------------------------------------------


def where_it_still_fails(visitor, run, _):
    failed = {state for state, solved in run.solved(2).items() if not solved}
    assert f"{len(failed)} of the last 288 episodes" in visitor.text("#summary")
    visitor.click("#summary [data-go=episodes]")
    visitor.choose("#filter-round", "2")
    rows = visitor.texts(".longtable tbody td.wide")
    assert failed and failed == set(rows[: len(failed)])


def where_it_failed_after_the_first_round_and_no_longer(visitor, run, _):
    visitor.click("#tab-states")
    visitor.choose("#state-metric", "success")
    visitor.page.wait_for_selector(f"{CELL}[aria-label*=': success']")
    now = visitor.map()
    visitor.slide("#state-round", "1")
    visitor.page.wait_for_selector("b:has-text('round 1')")
    then = visitor.map()
    first, last = run.solved(1), run.solved(2)
    expected = {state for state in then if last[state] and not first[state]}
    assert expected == {state for state in then if then[state] == 0 and now[state] == 1} != set()


def what_it_would_have_answered_here_before(visitor, run, _):
    visitor.click("#tab-states")
    state = visitor.choose_cell(5)
    assert run.answers(0)[state]["completion"] in visitor.text(".answer >> nth=0")
    assert "before" in visitor.text(".answer >> nth=0")


def what_its_next_best_answers_are_and_how_probable(visitor, run, _):
    visitor.click("#tab-states")
    number = run.answers(2)[visitor.choose_cell(5)]["state_id"]
    likely = sorted(
        (row for row in run.candidates(2) if row["state_id"] == number and row["count"]),
        key=lambda row: -row["probability"],
    )
    leaves = [row.split("\t") for row in visitor.texts(".tree tbody tr:not(.branch):not(.apart)")]
    assert leaves and len(leaves) <= len(likely)
    for row, (text, probability, times, *_) in zip(likely, leaves, strict=False):
        assert text.strip("└ ") and "".join(row["tokens"]).endswith(text.strip("└ "))
        assert (number_of(probability), times) == (
            pytest.approx(row["probability"], rel=5e-3),
            str(row["count"]),
        )


def which_pair_had_the_largest_margin_in_the_first_round(visitor, run, _):
    visitor.click("#tab-pairs")
    visitor.choose("#pair-round", "1")
    widest = max(read_pairs(run.stage(1, "simpo/pairs")), key=lambda pair: pair.margin)
    margin, number, state, *sides = visitor.texts(".longtable tbody tr >> nth=0")[0].split("\t")
    assert (number_of(margin), number) == (pytest.approx(widest.margin, rel=1e-3), "round 1")
    assert state.startswith(f"({widest.state['x']}, {widest.state['y']}) facing ")
    for shown, whole in zip(sides, (widest.chosen, widest.rejected), strict=True):
        assert whole.endswith(shown.lstrip("…"))  # what both begin with is left out
    for side in ("chosen", "rejected"):
        told = four_digits(getattr(widest, f"{side}_value")).lstrip("−")
        assert re.search(rf"{side} advantage [+−]?{told}", visitor.text(f".side-of-pair.{side}"))


def how_many_pairs_were_dropped_and_why(visitor, run, _):
    visitor.click("#tab-pairs")
    rows = (row.split("\t") for row in visitor.texts("#dropped tbody tr"))
    reasons = DROP_REASONS.values()
    told = {name: [*map(number_of, counts)] for name, *counts in rows if name in reasons}
    figures = [read_json(run.stage(n, "simpo/summary.json")) for n in (1, 2)]
    counts = {
        words: [figure.get(f"pairs/dropped_{reason}", 0) for figure in figures]
        for reason, words in DROP_REASONS.items()
    }
    assert told == {words: count for words, count in counts.items() if any(count)} != {}
    for number, dropped in zip((1, 2), map(sum, zip(*counts.values(), strict=True)), strict=True):
        share = 100 * dropped / (dropped + len(read_pairs(run.stage(number, "simpo/pairs"))))
        assert f"{dropped} ({share:.1f} %)" in visitor.text("#dropped")


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


def which_episodes_bump_or_loop(visitor, run, _):
    visitor.click("#tab-episodes")
    visitor.click("button.chip:has-text('bumps')")
    bumping = [e for e in run.played if any(any(info["bumped"]) for info in e.infos[1:])]
    assert visitor.text("#episode-count") == f"{len(bumping)} of {len(run.played)}"
    visitor.click("button.chip:has-text('loops')")
    both = sum(map(loops, bumping))
    assert visitor.text("#episode-count") == f"{both} of {len(run.played)}" and both


def which_answers_were_no_chains(visitor, run, _):
    visitor.click("#tab-states")
    visitor.click("#nochains summary")
    rows = (row.split("\t") for row in visitor.texts("#nochains tbody tr"))
    told = {text: number_of(places) for text, _, _, places, *_ in rows}
    invalid = {
        (row["completion"], row["state_id"])
        for number in range(3)
        for row in run.candidates(number)
        if row["invalid"]
    }
    assert told == Counter(text for text, _ in invalid) != {}


def how_two_seeds_differ(visitor, run, other):
    visitor.click("#tab-compare")
    assert "grid" in visitor.text("#runs") and "other" in visitor.text("#runs")
    one, two = run.solved(2), other.solved(2)
    lost, gained = (sum(a[s] and not b[s] for s in one) for a, b in ((one, two), (two, one)))
    told = f"other, round 2 gains {gained} beside grid, round 2 and loses {lost}"
    assert lost > 0 and told in visitor.text("#verdict")


QUESTIONS = {
    "Where does it still fail?": where_it_still_fails,
    "Where did it fail after the first round, and no longer?":
        where_it_failed_after_the_first_round_and_no_longer,
    "What would it have answered here before?": what_it_would_have_answered_here_before,
    "What are its next best answers here, and how probable?":
        what_its_next_best_answers_are_and_how_probable,
    "Which pair had the largest margin in the first round?":
        which_pair_had_the_largest_margin_in_the_first_round,
    "How many pairs were dropped, and why?": how_many_pairs_were_dropped_and_why,
    "Where is the last critic most wrong?": where_the_last_critic_is_most_wrong,
    "Which episodes bump or loop?": which_episodes_bump_or_loop,
    "Which answers were no chains, verbatim?": which_answers_were_no_chains,
    "How do two seeds differ?": how_two_seeds_differ,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds; the critic of the first one has learnt from episodes that run into walls."""
    folder = tmp_path_factory.mktemp("runs")
    run, other = GridRun(folder / "grid", skill=0.7), GridRun(folder / "other", skill=0.3)
    ahead = run.env.grammar.render([0, 0, 0])
    stuck = [play(run.env, lambda _: ahead, n, state) for n, state in enumerate(run.states[:40])]
    write_trajectories(run.directory / "round_1/critic/trajectories/0.parquet", stuck)
    return run, other


@pytest.fixture(scope="module")
def page(runs, browser):
    path = write_report(runs[0].directory, beside=[runs[1].directory])
    return browser.new_page(viewport={"width": 1400, "height": 900}), path


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_in_three_clicks(page, runs, question):
    QUESTIONS[question](Visitor(*page), *(Folder(run.directory) for run in runs))


def test_these_are_the_questions_of_the_documentation(root):
    text = (root / "docs/explorer.md").read_text().partition("## Twelve questions")[0]
    assert re.findall(r"^\| (.+\?) \|", text, re.MULTILINE) == list(QUESTIONS)
