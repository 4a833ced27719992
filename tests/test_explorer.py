"""The explorer in a real browser: opened from disk, clicked through, and asked its questions."""

import csv

import numpy as np
import pytest
from browser import choose, shown
from explorer_runs import NONSENSE, GridRun
from run_folders import HOSTILE

from lactchain.inspection.run_view import open_run
from lactchain_extras.explorer.contents import contents
from lactchain_extras.explorer.report import write_report

SCREENS = ("summary", "states", "episodes", "pairs", "critic", "curves", "compare", "run")
TEXTS = {"episodes": ".steps td:nth-child(2)", "critic": "#worst td:first-child"}
TEXTS |= {"compare": "#said td:first-child"}
"""Columns that are read word by word, beside others of numbers."""
RIGHTMOST = """Math.max(0, ...Array.from(
    document.querySelectorAll("#said td, #stages td, .tree td"),
    (cell) => cell.getBoundingClientRect().right))"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return GridRun(tmp_path_factory.mktemp("runs") / "grid", hostile=True)


@pytest.fixture(scope="module")
def page(run):
    return write_report(run.directory)


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1400, "light")])
def test_every_screen_fits_in_light_and_dark_narrow_and_wide(opened, page, width, scheme):
    """What is light or dark is a matter of colours, and the width one of places."""
    visit = opened(page, width, 800, scheme)
    for screen in SCREENS:
        visit.open(screen)
        visit.page.wait_for_timeout(50)
        assert visit.ask("document.documentElement.scrollWidth") <= width, screen
        assert "score" not in visit.text("#screen"), screen  # but what it is of: Q, an advantage
        assert visit.ask(RIGHTMOST) <= width, screen
        if screen in TEXTS:
            assert visit.page.locator(TEXTS[screen]).first.bounding_box()["width"] > 110, screen
    background = visit.ask("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is (scheme == "light")


def test_hostile_text_is_shown_letter_for_letter_and_does_nothing(visit):
    visit.open("episodes")
    visit.page.fill("input[type=search]", "</script><script>alert(1)")
    assert visit.text("#episode-count") == "1 of 865"
    told = HOSTILE.translate({0x1B: r"\x1b", 0: r"\x00", 0xD800: r"\ud800"})
    assert told in visit.text("main .player .now .completion")
    assert visit.page.query_selector("img") is None
    assert visit.ask("document.scripts.length") == 2  # the facts, and the page's own


def test_the_filters_of_episodes_keep_what_they_say(visit, run):
    """Which bump or loop is among the ten questions."""
    visit.open("episodes")
    played = [t for stage in open_run(run.directory).stages.values() for t in stage.trajectories]

    def kept(holds) -> bool:
        return visit.text("#episode-count") == f"{sum(map(holds, played))} of {len(played)}"

    assert kept(lambda t: True)
    visit.page.select_option("#filter-outcome", "failed")
    assert kept(lambda t: not t.terminated)
    visit.page.select_option("#filter-round", "2")
    assert kept(lambda t: not t.terminated and t.policy in ("round 2", HOSTILE))
    visit.page.click("text=clear")
    visit.page.click("button.chip:has-text('invalid')")
    assert kept(lambda t: any(info["invalid_action"] for info in t.infos[1:]))
    visit.page.click("text=clear")
    visit.page.fill("input[placeholder=least] >> nth=0", "2")
    visit.page.fill("input[placeholder=most] >> nth=0", "3")
    assert kept(lambda t: 2 <= len(t) <= 3)
    visit.page.click("text=clear")
    visit.page.fill("input[placeholder=least] >> nth=1", "0.5")
    assert kept(lambda t: t.episode_return >= 0.5)
    visit.page.click("text=clear")
    visit.page.fill("input[type=search]", NONSENSE[:15].lower())
    assert kept(lambda t: any(NONSENSE in action.text for action in t.actions))


def test_a_player_steps_by_buttons_and_by_keys(visit):
    visit.open("episodes")
    visit.page.fill("input[placeholder=least] >> nth=0", "3")
    player = visit.page.locator("main .player")
    assert "1 / " in player.locator(".controls").inner_text()
    player.locator("[aria-label='next completion']").click()
    assert "2 / " in player.locator(".controls").inner_text()
    player.focus()
    visit.page.keyboard.press("ArrowRight")
    assert "3 / " in player.locator(".controls").inner_text()
    visit.page.keyboard.press("ArrowLeft")
    assert "2 / " in player.locator(".controls").inner_text()


def test_all_screens_are_reached_by_the_keyboard_alone(visit):
    for number, screen in enumerate(SCREENS, 1):
        visit.page.keyboard.press(str(number))
        assert visit.page.get_attribute(f"#tab-{screen}", "aria-selected") == "true"
    visit.page.focus("#tab-run")
    visit.page.keyboard.press("ArrowRight")
    assert visit.page.get_attribute("#tab-summary", "aria-selected") == "true"
    visit.page.keyboard.press("3")
    assert visit.ask("document.activeElement.id") == "tab-episodes"
    visit.page.locator(".longtable").focus()
    first = visit.text("main .player header")
    visit.page.keyboard.press("ArrowDown")
    assert visit.text("main .player header") != first or visit.text(".longtable tr.selected")
    for key, where in (("Enter", "player"), ("Escape", "longtable")):
        visit.page.keyboard.press(key)
        assert visit.ask("document.activeElement.className") == where
    visit.page.keyboard.press("2")
    visit.page.locator(".split.map .board .hit").nth(3).focus()
    before = visit.text(".detail header")
    visit.page.keyboard.press("Enter")
    assert visit.text(".detail header") != before


def test_without_scripts_the_page_is_a_readable_summary(opened, page):
    visit = opened(page, java_script_enabled=False)
    told = visit.text("body")
    assert "The goal is reached in" in told and "What still fails" in told
    assert "One start state, before and after" in told


def test_the_first_screen_draws_success_over_the_rounds_and_by_distance(visit, run):
    """Shares of round 2, in bars behind those before any round."""
    visit.page.wait_for_selector("#summary .charts .u-legend")
    told = "".join(visit.text("#summary .charts .u-legend").split())
    won = [played.terminated for played in run.played]
    assert told.startswith(f"round2goalreached{shown(sum(won) / len(won))}within2")
    bars = visit.page.locator("#summary .charts rect.bar title").all_text_contents()
    lengths = sorted({*run.lengths.astype(int)})
    assert len(bars) == 2 * len(lengths)
    for length, told in zip(lengths, bars[len(lengths) :], strict=True):
        here = [ended for ended, known in zip(won, run.lengths, strict=True) if known == length]
        share = f"{100 * sum(here) / len(here):.1f}"
        assert told == f"{length} actions: {share} % of {len(here)}"


def test_an_answer_is_told_apart_from_the_episode_that_begins_with_it(visit, run):
    visit.open("states")
    n = next(n for n, played in enumerate(run.played) if len(played) == 2)
    choose(visit, run.states[n])
    played, card = run.played[n], visit.page.locator(".answer").nth(2)
    answer, episode = card.locator("dl").all_inner_texts()
    assert f"reward\n{shown(played.rewards[0])}" in answer and "return" not in answer
    assert "in 2 completions" in episode and f"return\n{shown(sum(played.rewards))}" in episode
    card.locator("text=step through it").click()
    header = visit.text("main .player header")
    assert "round 2, evaluation" in header and f"number {n} there" in header


def test_candidates_that_were_drawn_for_pairs_are_set_apart(visit, run):
    visit.open("states")
    choose(visit, run.states[8])
    rows = visit.page.locator(".tree tbody tr").all_inner_texts()
    apart = next(n for n, row in enumerate(rows) if "Drawn for this round’s pairs" in row)
    assert [NONSENSE in row for row in rows[apart + 1 :]] == [True]
    assert "rejected, no chain" in rows[-1]
    visit.page.fill("#state-round", "0")
    assert "What else it might say before any round" in visit.text("main h3")
    worth = visit.page.locator(".tree tbody tr").nth(1).inner_text().split("\t")[-3:-1]
    assert worth == ["−1.5", "–"]  # the reward, and no Q
    visit.page.fill("#state-round", "2")
    probability = 0.75 * (0.25 + 0.125 + 0.5)
    assert f"3 different completions of probability {probability:.3g}" in visit.text("main h3")


def test_the_critic_of_each_round_is_compared_with_the_exact_values_that_are_named(visit, run):
    visit.open("critic")
    assert "best policy (V*)" in visit.text("#against")
    assert "V*" in visit.text("#worst thead")
    assert "not the best one yet" in visit.text("#not-best")
    rows = visit.page.locator("#by-round tbody tr").all_inner_texts()
    assert [row.split("\t")[::3] for row in rows] == [["round 1", "Vπ"], ["round 2", "V*"]]
    visit.page.fill("#critic-round", "0")
    assert "the policy that it judges (Vπ)" in visit.text("#against")
    assert "Vπ" in visit.text("#worst thead") and "V*" not in visit.text("#worst thead")
    assert not visit.page.locator("#not-best").count()
    visit.open("states")
    assert "error: V − V*" in visit.text("#state-metric")


def test_the_map_starts_with_what_differs_and_shows_what_a_round_changed(visit, run):
    visit.open("states")
    visit.page.select_option("#state-metric", "completions")
    n = next(n for n, played in enumerate(run.played) if len(played) == 2)
    choose(visit, run.states[n])
    chosen = visit.page.locator(".split.map > div > .board polygon.chosen title")
    assert chosen.text_content().endswith("completions needed 2")
    visit.page.select_option("#state-metric", "change")
    tables = contents(open_run(run.directory)).tables["answers"]
    keys = zip(tables["round"], tables["text"], strict=True)
    returns = dict(zip(keys, tables["return"], strict=True))
    text = run.played[n].observations[0]
    change = returns[2, text] - returns[1, text]
    told = chosen.text_content().rpartition(" ")[2].replace("−", "-")
    assert float(told) == pytest.approx(change, rel=1e-3, abs=1e-9)


def test_rounds_are_coloured_on_one_scale(visit, run):
    visit.open("states")
    visit.page.select_option("#state-metric", "value")
    scales = []
    for number in (1, 2):
        visit.page.fill("#state-round", str(number))
        visit.page.wait_for_selector(f"b:has-text('round {number}')")
        scales.append(visit.page.locator(".scale span").all_inner_texts()[:2])
    values = np.concatenate([*run.values.values()])
    assert scales[0] == scales[1] == [shown(values.min(), 3), shown(values.max(), 3)]


def test_rounds_of_several_runs_stay_apart_also_as_a_band(opened, run, tmp_path):
    page = write_report(run.directory, tmp_path / "page.html", [run.directory])
    visit, name = opened(page), run.directory.name
    visit.open("curves")
    visit.page.fill("input[type=search]", "simpo · rewards/margins")
    labels = visit.page.locator("#screen .u-legend .u-label")
    rounds = ("round 1", "round 2")
    assert set(labels.all_inner_texts()[1:]) == {f"{name}, {number}" for number in rounds}
    markers = visit.page.locator("#screen .u-legend .u-marker")
    dashes = markers.evaluate_all("all => all.map(marker => marker.style.borderStyle)")
    assert dashes[-4:] == ["solid", "dashed"] * 2
    visit.page.click("button.chip:has-text('runs as a band')")
    assert set(labels.all_inner_texts()[1:]) == {
        f"{what} of 2, {number}" for what in ("mean", "lowest", "highest") for number in rounds
    }
    visit.page.fill("input[type=search]", "no such metric")
    assert "Nothing found" in visit.text("#no-metric")


def told_at(browser, address, *places):
    """What a page that is opened anew at an address says in these places."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector(places[0])
    told = [page.inner_text(place) for place in places]
    context.close()
    return told


def test_an_episode_and_a_state_have_addresses_and_back_goes_back(browser, opened, page, run):
    visit = opened(page).open("episodes")
    visit.page.select_option("#filter-outcome", "failed")
    visit.page.click(".longtable tbody tr >> nth=3")
    places = "main .player header", "#episode-count"
    assert told_at(browser, visit.address(), *places) == [*map(visit.text, places)]
    visit.open("states")
    choose(visit, run.states[17])
    header, address = visit.text(".detail header"), visit.address()
    assert told_at(browser, address, ".detail header") == [header]
    visit.open("pairs")
    visit.page.go_back()
    assert (visit.address(), visit.text(".detail header")) == (address, header)
    visit.page.go_back()
    assert visit.page.get_attribute("#tab-episodes", "aria-selected") == "true"


def test_a_point_of_a_curve_leads_to_the_episodes_of_its_round_and_a_drag_does_not(visit):
    chart = visit.page.locator("figure.chart:has-text('eval/success_rate') .u-over").first
    visit.open("curves")
    chart.hover(position={"x": 20, "y": 60})
    visit.page.mouse.down()
    visit.page.mouse.move(400, 400, steps=3)
    visit.page.mouse.up()
    assert visit.page.get_attribute("#tab-curves", "aria-selected") == "true"
    box = chart.bounding_box()
    chart.click(position={"x": box["width"] - 2, "y": 60})
    assert visit.page.input_value("#filter-round") == "2"


@pytest.mark.parametrize(("screen", "name"), [("pairs", "chosen"), ("episodes", "end_text")])
def test_filtered_rows_are_saved_as_a_file_of_all_columns(visit, run, screen, name):
    visit.open(screen)
    visit.page.select_option(f"#{screen[:-1]}-round, #filter-round", "1")
    with visit.page.expect_download() as saved:
        visit.page.click("button:has-text('CSV')")
    with open(saved.value.path(), newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    table = contents(open_run(run.directory)).tables[screen]
    kept = [n for n, number in enumerate(table["round"]) if number == 1]
    assert rows and set(rows[0]) == set(table)
    assert sorted(row[name] for row in rows) == sorted(table[name][n] for n in kept)
