"""What a page of the explorer may take, in bytes, milliseconds and pixels."""

import csv
import json

import pytest
from browser import Visit
from explorer_runs import GridRun

from lactchain.data.preferences import write_pairs
from lactchain.data.trajectories import read_trajectories, write_trajectories
from lactchain.inspection.run_view import open_run
from lactchain.types import PreferencePair
from lactchain_extras.explorer.contents import contents
from lactchain_extras.explorer.report import write_report


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return GridRun(tmp_path_factory.mktemp("runs") / "grid", hostile=True)


@pytest.fixture(scope="module")
def page(run):
    return write_report(run.directory)


@pytest.mark.slow
def test_twelve_thousand_episodes_are_filtered_within_a_tenth_of_a_second(browser, tmp_path):
    """In time of the page's own thread, to the drawn count: other work on the machine is no part.

    A filter is asked for when the page is new, and again.
    """
    run = GridRun(tmp_path / "run")
    played = read_trajectories(run.directory / "round_2/evaluation/trajectories")
    many = run.directory / "round_2/evaluation/trajectories/many.parquet"
    write_trajectories(many, played * 40)
    visit = Visit(browser, write_report(run.directory))
    visit.open("episodes")
    assert visit.text("#episode-count").startswith("12,384 of")
    clock = visit.thread_clock()
    for selector, values in FILTERS.items():
        for value in (*values, "", *values, ""):
            before = clock()
            visit.ask(f"({CHANGE})({json.dumps(selector)}, {json.dumps(value)})")
            assert (spent := clock() - before) < 0.1, (selector, value, spent)
    visit.close()


FILTERS = {
    "#filter-outcome": ["failed"],
    "#filter-round": ["1"],
    "input[type=search]": ["left", "up 1", "nothing like it"],
}
CHANGE = """async (selector, value) => {
  const field = document.querySelector(selector), count = document.querySelector("#episode-count");
  const old = count.textContent;
  field.value = value || (field.tagName === "SELECT" ? "all" : "");
  field.dispatchEvent(new Event(field.tagName === "SELECT" ? "change" : "input", {bubbles: true}));
  while (count.textContent === old) await new Promise(requestAnimationFrame);
}"""


@pytest.fixture
def narrow(browser, tmp_path):
    """A page of small negative figures, and of pairs that differ at their ends alone."""
    run = GridRun(tmp_path / "run")
    with (run.directory / "metrics.jsonl").open("a") as file:
        for step in range(3):
            figures = {"step": step, "time": 0.0, "eval/episode_return": -0.00551 - 1e-4 * step}
            file.write(f"{json.dumps(figures)}\n")
    alike = "Action Sequence: [" + "turn left, " * 8
    pair = PreferencePair("?", f"{alike}move forward]", f"{alike}turn right]", state=run.states[3])
    write_pairs(run.directory / "round_1/simpo/pairs/0.parquet", [pair])
    opened = Visit(browser, write_report(run.directory))
    yield opened
    opened.close()


def test_labels_beside_charts_have_room_for_their_signs_and_name_rounds(narrow):
    narrow.open("curves")
    narrow.page.fill("input[type=search]", "eval/episode_return")
    place = "document.querySelector('#screen .u-over').getBoundingClientRect()"
    whole = "document.querySelector('#screen .uplot').getBoundingClientRect()"
    needed = narrow.ask("""(() => {
        const context = document.createElement("canvas").getContext("2d");
        context.font = "11px system-ui";
        return context.measureText("\u22120.00575").width; })()""")
    assert narrow.ask(f"{place}.left - {whole}.left") > needed + 10
    assert narrow.ask(f"{whole}.right - {place}.right") > needed + 6
    # The last values, before anything is touched.
    told = "".join(narrow.text("#screen .u-legend").split())
    assert told == "round2eval/episode_return\u22120.00571"


def test_pairs_that_begin_alike_are_told_apart(narrow):
    narrow.open("pairs")
    narrow.page.click("tr:has-text('move forward]')")
    row = narrow.text(".longtable tr.selected")
    assert "…n left, move forward]" in row and "…n left, turn right]" in row
    assert "state" in narrow.text(".longtable thead")


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
