"""The explorer in a real browser, on folders that each hold something of their own."""

import json

import pytest
from browser import choose, shown
from explorer_runs import GridRun
from run_folders import GRID, play, write_run, write_text_run, write_wordle_run

from lactchain import EnvironmentConfig, PreferencePair, make_language_env, write_pairs
from lactchain.data import evaluations
from lactchain.data.sources import read_trajectories, write_trajectories
from lactchain.storage.manifests import write_with_manifest
from lactchain_extras.explorer.report import write_report


def test_a_very_long_line_and_marks_of_direction_are_inert(opened, tmp_path):
    run = GridRun(tmp_path / "run", hostile=False)
    folder = run.directory / "round_2/evaluation"
    content = json.dumps({"policy": "\u202e" + "x" * 1_000_000}).encode()
    write_with_manifest(folder / "summary.json", content, {})
    visit = opened(write_report(run.directory)).open("run")
    visit.page.click("text=1 figures >> nth=-1")
    assert "\\u202e" in visit.text("dl.facts >> nth=-1")
    assert len(visit.text("main")) < 100_000
    assert visit.ask("document.documentElement.scrollWidth") <= 1400


def test_numbers_that_followed_from_the_world_stand_with_their_reasons(opened, tmp_path):
    run = GridRun(tmp_path / "run")
    sizes = {"settings": {"actor.max_new_tokens": 25, "target": {"x": 1}}, "why": {"target": "<b>"}}
    (run.directory / "sizes.json").write_text(json.dumps(sizes))
    visit = opened(write_report(run.directory)).open("run")
    visit.page.click("#sizes summary")
    rows = visit.page.locator("#sizes tbody tr").all_inner_texts()
    assert rows == ["actor.max_new_tokens\t25\t", 'target\t{"x": 1}\t<b>']


def test_a_state_of_a_world_with_dice_shows_the_rate_over_its_episodes(opened, tmp_path):
    run = GridRun(tmp_path / "run")
    path, state = run.directory / "round_2/evaluation/episodes.json", run.states[17]
    more = [evaluations.EpisodeResult(state, n < 3, 4, 4) for n in range(4)]
    others = [r for r in evaluations.read_episodes(path) if r.state != state]
    evaluations.write_episodes(path, others + more)
    visit = opened(write_report(run.directory)).open("states")
    choose(visit, state)
    assert "the 4 episodes from here\n3 of 4 solved\nin 4 completions" in visit.text(".answer.now")
    visit.page.select_option("#state-metric", "success")
    place = visit.page.locator(".split.map > div > .board polygon.chosen title")
    assert place.text_content().endswith("success 0.75")


def test_without_a_record_answers_are_the_first_completions_of_the_evaluations(opened, tmp_path):
    run = GridRun(tmp_path / "run")
    for number in range(3):
        (run.directory / f"round_{number}/inspection/meta.json").unlink()
    visit = opened(write_report(run.directory)).open("states")
    for n in (3, 17):
        choose(visit, run.states[n])
        card, played = visit.text(".answer.now"), run.played[n]
        assert played.actions[0].text in card
        assert f"V\n{shown(run.values[2][n])}" in card
        ways = f"{sum(played.num_actions)} / {int(run.lengths[n])}"
        assert f"{ways}\nreturn\n{shown(played.episode_return)}" in card.replace("\n\n", "\n")
        assert card.count("not solved") == (not played.terminated)


WORTH = {
    # unparsable: −0.5 + ½·0.25 − 0.25; first step: ½·0.75 − 0.25; last: 1 − 0.75
    2: [["0.25", "−0.375", "−0.625"], ["0.25", "0.375", "+0.125"], ["0.75", "1", "+0.25"]],
    1: [["0.25", "−0.375", "−0.625"], ["0.25", "–", "–"], ["–", "–", "–"]],
}


@pytest.mark.parametrize("known", WORTH)
def test_completions_have_values_and_advantages_by_hand(opened, tmp_path, known):
    env = make_language_env(EnvironmentConfig(kwargs={"size": 3}, invalid_penalty=-0.5))
    start = {"x": 0, "y": 0, "orientation": 1, "goal_x": 2, "goal_y": 0}
    completions = iter(["what?", '["move forward"]', '["move forward"]'])
    trajectory = play(env, lambda _: next(completions), 0, start)
    write_run(tmp_path / "run", {"environment": {"id": GRID.id, "kwargs": {"size": 3}}}, 1)
    write_trajectories(tmp_path / "run/trajectories/0.parquet", [trajectory])
    states, values = (start, start | {"x": 1})[:known], (0.25, 0.75)[:known]
    told = evaluations.StateValues(states, values, None, gamma=0.5)
    evaluations.write_values(tmp_path / "run/values.json", told)
    visit = opened(write_report(tmp_path / "run")).open("episodes")
    rows = visit.page.locator(".steps tbody tr").all_inner_texts()
    assert [row.split("\t")[3:] for row in rows] == WORTH[known]


@pytest.mark.parametrize("write", [write_text_run, write_wordle_run])
def test_other_worlds_are_drawn_or_read_as_transcripts(opened, tmp_path, write):
    visit = opened(write_report(write(tmp_path / "run"))).open("episodes")
    assert visit.page.locator("main .player .board").count() == 1


@pytest.mark.slow
def test_twelve_thousand_episodes_are_filtered_within_a_tenth_of_a_second(opened, tmp_path):
    """In time of the page's own thread, to the drawn count: other work on the machine is no part.

    A filter is asked for when the page is new, and again.
    """
    run = GridRun(tmp_path / "run")
    played = read_trajectories(run.directory / "round_2/evaluation/trajectories")
    many = run.directory / "round_2/evaluation/trajectories/many.parquet"
    write_trajectories(many, played * 40)
    visit = opened(write_report(run.directory)).open("episodes")
    assert visit.text("#episode-count").startswith("12,384 of")
    clock = visit.thread_clock()
    for selector, values in FILTERS.items():
        for value in (*values, "", *values, ""):
            before = clock()
            visit.ask(f"({CHANGE})({json.dumps(selector)}, {json.dumps(value)})")
            assert (spent := clock() - before) < 0.1, (selector, value, spent)


FILTERS = {"#filter-outcome": ["failed"], "#filter-round": ["1"]}
FILTERS["input[type=search]"] = ["left", "up 1", "nothing like it"]
CHANGE = """async (selector, value) => {
  const field = document.querySelector(selector), count = document.querySelector("#episode-count");
  const old = count.textContent;
  field.value = value || (field.tagName === "SELECT" ? "all" : "");
  field.dispatchEvent(new Event(field.tagName === "SELECT" ? "change" : "input", {bubbles: true}));
  while (count.textContent === old) await new Promise(requestAnimationFrame);
}"""


@pytest.fixture
def narrow(opened, tmp_path):
    """A page of small negative figures, and of pairs that differ at their ends alone."""
    run = GridRun(tmp_path / "run")
    with (run.directory / "metrics.jsonl").open("a") as file:
        for step in range(3):
            figures = {"step": step, "time": 0.0, "eval/episode_return": -0.00551 - 1e-4 * step}
            file.write(f"{json.dumps(figures)}\n")
    alike = "Action Sequence: [" + "turn left, " * 8
    pair = PreferencePair("?", f"{alike}move forward]", f"{alike}turn right]", state=run.states[3])
    write_pairs(run.directory / "round_1/simpo/pairs/0.parquet", [pair])
    return opened(write_report(run.directory))


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
