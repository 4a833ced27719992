"""The report: one page from files alone, which shows what is there and runs nothing."""

import dataclasses
import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folders import (
    HOSTILE,
    hostile_trajectory,
    play,
    write_grid_run,
    write_maze_run,
    write_run,
    write_text_run,
    write_wordle_run,
)

from lactchain.config import parse
from lactchain.data.alarms import RULES
from lactchain.data.evaluations import (
    CompletionValues,
    EpisodeResult,
    StateValues,
    read_values,
    write_values,
)
from lactchain.data.preferences import write_pairs
from lactchain.data.trajectories import write_trajectories
from lactchain.environments.language import make_language_env
from lactchain.errors import ConfigError, DataError
from lactchain.inspection import maps, plots
from lactchain.inspection.markup import escape, parts, shapes
from lactchain.inspection.pictures import Picture
from lactchain.inspection.report import (
    by_distance,
    pair_table,
    rollouts,
    sample_episodes,
    success,
    write_report,
)
from lactchain.inspection.run_view import chain_records, open_run
from lactchain.settings import EnvironmentConfig
from lactchain.stages.report import ReportConfig
from lactchain.types import PreferencePair
from lactchain.worlds.wordle.view import COLOURS, game_of

SHOWN = HOSTILE.translate({0x1B: r"\x1b", 0: r"\x00", 0xD800: r"\ud800"})
TAGS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "b", "span", "div",
    "table", "thead", "tbody", "tr", "th", "td", "code", "pre", "details", "summary",
    "svg", "g", "line", "rect", "circle", "polygon", "polyline", "text",
}  # fmt: skip


class Page(HTMLParser):
    """Tags, attributes and texts of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        if data.strip():  # what is between two tags is the template's layout
            self.texts.append(data)

    def assert_harmless(self):
        assert set(self.tags) <= TAGS
        names = {name for name, _ in self.attributes}
        assert not {name for name in names if name.startswith("on")}
        assert not names & {"src", "href", "srcdoc", "action", "data", "xlink:href"}


@pytest.fixture(scope="module")
def grid_run(tmp_path_factory):
    return write_grid_run(tmp_path_factory.mktemp("runs") / "quickstart")


@pytest.fixture(scope="module")
def grid_page(grid_run):
    return write_report(grid_run, num_rollouts=4).read_text(encoding="utf-8")


def test_the_page_needs_nothing_but_itself_and_forbids_scripts(grid_page):
    page = Page(grid_page)
    page.assert_harmless()
    policy = grid_page.index("Content-Security-Policy")
    assert policy < grid_page.index("<title>") < grid_page.index("<style>")
    assert any(value.startswith("default-src 'none'; ") for _, value in page.attributes)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", grid_page)


def test_the_page_of_a_pipeline_shows_its_parts(grid_page):
    texts = Page(grid_page).texts
    for heading in (
        "Result",
        "Stages",
        "Curves",
        "Success by distance",
        "The critic beside the truth",
        "Sample episodes",
        "Preference pairs (round_2/simpo)",
        "How it was run",
    ):
        assert heading in texts
    assert {"round_1", "round_2", "train/loss", "rewards/margins", "logps/chosen"} <= set(texts)
    assert {"critic, facing up", "exact, facing left", "error, facing down"} <= set(texts)
    assert "success_rate_after" in texts and "0.99" in texts
    stages = [text for text in texts if re.fullmatch(r"warm_start|round_\d/\w+", text)]
    order = ["warm_start", "round_1/critic", "round_1/simpo", "round_2/critic", "round_2/simpo"]
    assert list(dict.fromkeys(stages)) == order


def test_runs_of_all_kinds_stand_side_by_side(grid_run, tmp_path):
    config = {"environment": {"id": "lactchain/GridWorld-v0", "kwargs": {}}}
    figures = {"last/success_rate": 0.75, "last/episode_return": 0.5, "num_env_steps": 4321}
    write_run(tmp_path / "small_network", config, 2, {**figures, "time/cpu_seconds": 6.5})
    write_run(tmp_path / "unfinished", config, 2, None)
    others = [tmp_path / "small_network", tmp_path / "unfinished"]
    page = write_report(grid_run, tmp_path / "page.html", beside=others).read_text()
    texts = Page(page).texts
    start = texts.index("Beside other runs")
    rows = [texts.index(name, start) for name in ("quickstart", "small_network", "unfinished")]
    assert rows == sorted(rows)
    first, second = texts[rows[0] : rows[1]], texts[rows[1] : rows[2]]
    assert "0.99" in first
    assert {"0.75", "0.5", "6.5"} <= set(second) and {"4,321", "4321"} & set(second)


def test_hostile_text_anywhere_is_shown_and_does_nothing(tmp_path):
    run = tmp_path / "<img src=x onerror=alert(1)>"
    config = {
        "environment": {"id": "lactchain/GridWorld-v0", "kwargs": {}},
        HOSTILE[:60]: HOSTILE[:60],
    }
    write_run(run, config, 2, {HOSTILE: HOSTILE})
    (run / "environment.json").write_text(json.dumps({"device": HOSTILE, "git_commit": HOSTILE}))
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": n, "time": 0, f"loss {HOSTILE}": n}) + "\n" for n in range(2))
    )
    write_run(run / "stage <b>", config, 2, {HOSTILE: HOSTILE})
    write_trajectories(run / "trajectories" / "0.parquet", [hostile_trajectory()])
    pair = PreferencePair(HOSTILE, HOSTILE, HOSTILE + "!", chosen_value=1.0)
    write_pairs(run / "pairs" / "0.parquet", [pair])
    content = write_report(run).read_bytes().decode("utf-8")
    page = Page(content)
    page.assert_harmless()
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", content)
    for shown in (SHOWN, f"loss {SHOWN}", f"{SHOWN}!", f"not a chain: {SHOWN}"):
        assert shown in page.texts
    assert "stage <b>" in page.texts


def test_a_report_can_be_written_elsewhere(grid_run, tmp_path):
    assert write_report(grid_run, tmp_path / "page.html") == tmp_path / "page.html"
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_a_world_that_is_not_a_grid_is_shown_as_text(tmp_path):
    page = Page(write_report(write_text_run(tmp_path / "lake")).read_text(encoding="utf-8"))
    assert any("A frozen lake" in text for text in page.texts)
    assert "not a chain: no_answer" in page.texts
    assert "The critic beside the truth" not in page.texts
    assert "polygon" not in page.tags


def test_a_maze_shows_what_each_move_is_worth_and_the_way_that_was_taken(tmp_path):
    folder = write_maze_run(tmp_path / "run")
    page, run = Page(write_report(folder).read_text()), open_run(folder)
    shown = " ".join(page.texts)
    for text in (
        "What each completion is worth",
        "V of each cell",
        "Q of each move",
        "advantage of",
    ):
        assert text in shown
    assert "(6, 7) down: 0" in page.texts  # the last step to the goal, by its advantage
    assert page.tags.count("polygon") >= 2 * 25 * 4
    assert Page(rollouts(run.trajectories, run.picture)).tags.count("polyline") == 2  # a way each
    assert "101 completions" in page.texts
    assert {*page.tags} <= TAGS


def test_moves_have_the_values_that_the_value_model_gave_them(tmp_path):
    run = open_run(write_maze_run(tmp_path / "run"))
    optimal, wandering = run.trajectories
    records = chain_records(optimal, None, run.completion_values)
    assert [r.advantage for r in records] == pytest.approx([0.0] * 12)
    steps = np.arange(12, 0, -1)
    assert [r.value for r in records] == pytest.approx((0.99 ** (steps - 1) - 1) / 0.01)
    assert [r.q for r in records] == pytest.approx([r.value for r in records])
    lost = [r.advantage for r in chain_records(wandering, None, run.completion_values)]
    assert min(lost) < 0 and max(lost) <= 1e-12


def test_games_of_wordle_show_coloured_letters(tmp_path):
    run = write_wordle_run(tmp_path / "run")
    page = Page(write_report(run).read_text())
    styles = " ".join(value for name, value in page.attributes if name == "style")
    games = [t.infos[-1]["state"]["feedback"] for t in open_run(run).trajectories]
    marks = "".join(mark for game in games for mark in game)
    assert "ggggg" in games[0] and {*marks} == {*"gyb"}
    for mark, colour in COLOURS.items():
        assert styles.count(colour) == marks.count(mark)
    assert styles.count("line-through") == 5  # of six guesses one was a word
    assert {*page.tags} <= TAGS


def test_a_state_that_is_no_game_has_no_board():
    assert game_of([{"state": {"guesses": ["shire"], "feedback": ["b"]}}]) is None
    assert game_of([{"state": {"x": 1}}]) is None
    assert game_of([{}]) is None


def test_completion_values_come_back_equal(tmp_path):
    values = CompletionValues(({"a": 1},), ("x", "y"), (0.5,), ((0.0, -1.0),))
    write_values(tmp_path / "completion_values.json", values)
    assert read_values(tmp_path / "completion_values.json", CompletionValues) == values
    with pytest.raises(ValueError, match="advantages: expected 1 rows of 2"):
        CompletionValues(({"a": 1},), ("x", "y"), (0.5,), ((0.0,),))
    (tmp_path / "completion_values.json").write_text('{"schema_version": 1}')
    with pytest.raises(DataError, match="completion_values.json: not of schema version 1"):
        read_values(tmp_path / "completion_values.json", CompletionValues)


def test_a_run_that_has_just_begun_has_a_page(tmp_path):
    run = tmp_path / "new"
    run.mkdir()
    (run / "config.yaml").write_text("seed: 1\n")
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert "unfinished" in page.texts
    assert "Curves" not in page.texts


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="expected a run folder"):
        write_report(tmp_path)


@pytest.mark.parametrize("name", ["values.json", "episodes.json", "summary.json"])
@pytest.mark.parametrize("content", ["", "{", "[1]", "[" * 100_000, '{"schema_version": 2'])
def test_damaged_files_are_named(tmp_path, name, content):
    write_run(tmp_path / "run", {}, 1)
    (tmp_path / "run" / name).write_text(content)
    with pytest.raises(DataError, match=name):
        write_report(tmp_path / "run")


@pytest.mark.parametrize("name", ["values.json", "episodes.json"])
@pytest.mark.parametrize("content", ['{"schema_version": 1}', '{"schema_version": 2}', "{}"])
def test_evaluations_of_another_schema_are_named(tmp_path, name, content):
    write_run(tmp_path / "run", {}, 1)
    (tmp_path / "run" / name).write_text(content)
    with pytest.raises(DataError, match=f"{name}.*schema version"):
        write_report(tmp_path / "run")


def test_a_damaged_trajectory_file_is_named(tmp_path):
    write_text_run(tmp_path / "run")
    path = tmp_path / "run" / "trajectories" / "000000.parquet"
    path.write_bytes(path.read_bytes().replace(b"lake", b"cake"))
    with pytest.raises(DataError, match="000000.parquet"):
        write_report(tmp_path / "run")


def test_chain_records_have_values_and_advantages_by_hand():
    env = make_language_env(EnvironmentConfig(kwargs={"size": 3}, invalid_penalty=-0.5))
    start = {"x": 0, "y": 0, "orientation": 1, "goal_x": 2, "goal_y": 0}
    middle = start | {"x": 1}
    completions = iter(["what?", '["move forward"]', '["move forward"]'])
    trajectory = play(env, lambda _: next(completions), 0, start)
    values = StateValues((start, middle), (0.25, 0.75), None, gamma=0.5)
    records = chain_records(trajectory, values)
    # unparsable: −0.5 + ½·0.25 − 0.25; first step: ½·0.75 − 0.25; last: 1 − 0.75
    assert [record.advantage for record in records] == [-0.625, 0.125, 0.25]
    assert [record.value for record in records] == [0.25, 0.25, 0.75]
    assert [record.note for record in records] == ["not a chain: no_answer", "", ""]
    assert [r.advantage for r in chain_records(trajectory)] == [None] * 3


def test_advantage_is_unknown_where_the_critic_was_not_asked():
    env = make_language_env(EnvironmentConfig(kwargs={"size": 3}))
    start = {"x": 0, "y": 0, "orientation": 1, "goal_x": 2, "goal_y": 0}
    completions = iter(['["move forward"]', '["move forward"]'])
    trajectory = play(env, lambda _: next(completions), 0, start)
    first, second = chain_records(trajectory, StateValues((start,), (0.25,), None, gamma=0.5))
    assert (first.value, first.advantage) == (0.25, None)
    assert (second.value, second.advantage) == (None, None)


def test_success_by_distance_by_hand():
    results = [
        EpisodeResult({}, True, num_chains=1, num_actions=2, shortest=2),
        EpisodeResult({}, True, num_chains=3, num_actions=6, shortest=2),
        EpisodeResult({}, False, num_chains=16, num_actions=60, shortest=5),
        EpisodeResult({}, True, num_chains=2, num_actions=3, shortest=None),
    ]
    assert by_distance(results) == {2: (1.0, 2), 5: (0.0, 1)}
    texts = Page(success({"after": results})).texts
    row = texts[texts.index("after") + 1 :][:6]
    assert row == ["4", "75.0%", "50.0%", "2", "3.667", "2"]


def test_success_without_any_solved_episode_has_no_means():
    texts = Page(success({"before": [EpisodeResult({}, False, 4, 9)]})).texts
    assert texts[texts.index("before") + 1 :][:6] == ["1", "0.0%", "0.0%", "–", "–", "–"]
    assert success({}) == success({"after": []}) == ""


def test_sampled_episodes_are_at_most_half_failures_where_there_are_successes():
    failure = hostile_trajectory()
    infos = (failure.infos[0], failure.infos[1] | {"success": True})
    won = [dataclasses.replace(failure, infos=infos, seed=seed) for seed in range(10)]
    lost = [dataclasses.replace(failure, seed=100 + seed) for seed in range(10)]
    seeds = [t.seed for t in sample_episodes(won + lost, 6)]
    assert seeds == [100, 104, 109, 0, 4, 9]
    assert [t.seed for t in sample_episodes(lost, 3)] == [100, 104, 109]
    assert [t.seed for t in sample_episodes(won[:2] + lost, 6)] == [100, 103, 106, 109, 0, 1]
    assert sample_episodes([], 4) == []
    assert sample_episodes(won, 0) == []


def test_r2_and_rmse_by_hand():
    values = StateValues(({}, {}), critic=(0.0, 1.0), exact=(0.0, 2.0), gamma=0.9)
    assert values.rmse == pytest.approx(math.sqrt(0.5))
    assert values.r2 == pytest.approx(0.5)


@pytest.mark.parametrize("exact", [None, (0.5, -1 / 3)])
def test_values_come_back_equal(tmp_path, exact):
    values = StateValues(({"x": 1}, {"x": "\ud800"}), (0.25, 1e-300), exact, 0.9, "chain")
    write_values(tmp_path / "values.json", values)
    assert read_values(tmp_path / "values.json") == values


def test_values_that_do_not_fit_the_states_are_refused():
    with pytest.raises(ValueError, match="exact: expected a value for each of 1 states, got 2"):
        StateValues(({},), (0.0,), (0.0, 1.0), 0.9)


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


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=30))
def test_any_numbers_can_be_drawn(values):
    steps = list(range(len(values)))
    drawn = plots.line_chart("loss", {"a": (steps, values), "b": ([0.0], [1.0])})
    assert not re.search(r'"[^"]*(nan|inf)[^"]*"', drawn)


@given(
    st.floats(-1e6, 1e6),
    st.floats(1e-3, 1e6),
)
def test_ticks_are_few_ascending_and_within(low, span):
    marks = plots.ticks(low, low + span)
    assert 1 <= len(marks) <= 6
    assert marks == sorted(set(marks))
    assert low - 1e-6 * span <= marks[0] and marks[-1] <= low + span * (1 + 1e-6)


def test_many_rounds_share_a_picture_and_a_short_legend():
    curves = {f"round_{n}": ([0, 1], [n, n + 1]) for n in range(12)}
    texts = Page(plots.line_chart("loss", curves)).texts
    assert {"round_0", "round_11"} <= set(texts)
    assert "round_5" not in [text for text in texts if ":" not in text]


def test_a_value_map_draws_walls_goal_and_equal_colours_for_equal_values():
    grid = maps.Grid(3, 2, frozenset({(1, 0)}))
    values = {(0, 0): 0.5, (2, 0): 0.5, (0, 1): 0.0, (1, 1): 1.0}
    drawn = maps.value_map("critic", grid, values, (0.0, 1.0), goal=(2, 1))
    fills = re.findall(r'<rect[^>]* fill="([^"]+)"', drawn)
    assert fills.count(maps.WALL) == 1
    half, zero, one = fills[-4], fills[-2], fills[-1]
    assert fills[-3] == half and len({half, zero, one}) == 3
    assert "goal (2, 1)" in Page(drawn).texts
    assert {"0.50", "0.00", "1.00"} <= set(Page(drawn).texts)


def test_a_rollout_draws_each_chain_from_where_it_began():
    drawn = maps.rollout(
        maps.Grid(4, 4), [(0, 0, 1), (1, 0, 1)], [[(1, 0, 1)], [(1, 0, 2), (1, 1, 2)]]
    )
    page = Page(drawn)
    assert [text for text in page.texts if text] == ["2", "1"]
    assert page.tags.count("polyline") == 2
    assert page.tags.count("polygon") == 2


def test_numbers_and_gaps_in_tables():
    texts = Page(parts.table(("a", "b"), [(0.123456, None), (-2.0, math.nan)])).texts
    assert texts == ["a", "b", "0.1235", "–", "−2", "–"]
    empty = Page(parts.table(("a",), []))
    assert (empty.tags, empty.texts) == (["table", "thead", "tr", "th", "tbody"], ["a"])


@given(st.text(st.characters()))
def test_escaped_text_reads_as_it_was_and_holds_no_markup(text):
    escaped = escape(text)
    assert not set("<>\"'") & set(escaped)
    escaped.encode("utf-8")


def test_text_beside_pieces_is_shown_as_safely_as_anywhere():
    hostile = "\x00\x1b\ud800<script>"
    for piece in (parts.card(hostile), parts.gallery([hostile]), shapes.group("", hostile)):
        assert not {"\x00", "\x1b", "\ud800"} & set(piece) and "<script>" not in piece
        assert "\\x00" in piece


def test_alarms_are_shown_with_their_first_round_and_what_helps(tmp_path):
    write_run(tmp_path / "run", {}, 0)
    rounds = [{"loops": 0, "silence": 0}, {"loops": 1, "silence": 0}, {"loops": 1, "silence": 0}]
    records = [
        {"step": number} | {f"alarm/{name}": value for name, value in alarms.items()}
        for number, alarms in enumerate(rounds, 1)
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "run" / "metrics.jsonl").write_text(lines)
    texts = Page(write_report(tmp_path / "run").read_text(encoding="utf-8")).texts
    (loops,) = [rule for rule in RULES if rule.name == "loops"]
    first = texts.index("loops")
    assert texts[first : first + 5] == ["loops", "2", "2", loops.means, loops.mend]
    assert "silence" not in texts


def test_nothing_to_show_is_no_section():
    assert pair_table([]) == rollouts([], Picture()) == ""


@pytest.mark.parametrize("setting", ["gridworld_tiny", "gridworld_mistral7b"])
def test_configurations_parse(root, setting):
    config = parse(ReportConfig, ["--config", str(root / "configs" / "report" / f"{setting}.yaml")])
    assert config.run_dir.startswith("runs/")


def test_a_negative_number_of_rollouts_is_refused():
    with pytest.raises(ConfigError, match="num_rollouts: expected at least 0"):
        parse(ReportConfig, ["--num_rollouts", "-1"])
