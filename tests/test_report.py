"""The report: one page from files alone, whose policy lets nothing in but its own script."""

import base64
import hashlib
import json
import math
import re
import shutil
import sys

import pytest
from explorer_runs import GridRun, Page, page_of, unpack
from hypothesis import given
from hypothesis import strategies as st
from run_folders import HOSTILE, hostile_trajectory, write_run, write_text_run

from lactchain import Chain, PreferencePair, Run, RunConfig, open_run, write_pairs
from lactchain.config.parsing import to_yaml
from lactchain.data.alarms import RULES
from lactchain.data.evaluations import EpisodeResult, write_episodes
from lactchain.data.sources import write_trajectories
from lactchain.errors import ConfigError, DataError, Interrupted
from lactchain.stages import run_pipeline
from lactchain.stages.pipeline_config import RunPipelineConfig
from lactchain.stages.stage_run import LivePage, write_page
from lactchain.storage.files import append_json_lines
from lactchain.storage.manifests import read_run_file, write_run_file
from lactchain_extras.explorer import rollout_tables
from lactchain_extras.explorer.contents import contents
from lactchain_extras.explorer.report import environment, render, write_report
from lactchain_extras.explorer.summary import state_label, summarise
from lactchain_extras.explorer.tables import pack
from lactchain_extras.films import film_run

SHOWN = HOSTILE.translate({0x1B: r"\x1b", 0: r"\x00", 0xD800: r"\ud800"})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return GridRun(tmp_path_factory.mktemp("runs") / "grid")


@pytest.fixture(scope="module")
def page(run):
    return page_of(run.directory)


def test_the_policy_of_the_page_allows_its_own_script_and_nothing_else(page):
    page.assert_harmless()
    policy = next(value for _, value in page.attributes if value and "default-src" in value)
    (own,) = [text for kind, text in page.scripts if not kind]
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy
    kinds = {kind["type"] for kind, _ in page.scripts if kind}
    assert kinds == {"application/json", "text/plain"}  # which no browser runs
    for name in ("Jason Miller", "Leon Sorokin", "Apache License, Version 2.0"):
        assert name in own  # licences of its libraries


def test_the_page_holds_every_episode_and_every_completion(run, page):
    episodes, steps = page.table("episodes"), page.table("steps")
    played = [t for stage in open_run(run.directory).stages.values() for t in stage.trajectories]
    assert episodes["episode_return"] == pytest.approx([t.episode_return for t in played], abs=1e-5)
    assert steps["completion"] == [action.text for t in played for action in t.actions]
    assert steps["prompt"] == [text for t in played for text in t.observations[:-1]]
    assert steps["probabilities"][0] == [round(math.exp(p), 2) for p in (-0.5, -0.25)]
    solved = [outcome == "solved" for outcome in episodes["outcome"]]
    assert solved == [t.terminated for t in played]


def test_settings_that_are_not_what_a_run_was_given_are_named(run, tmp_path, caplog):
    folder = shutil.copytree(run.directory, tmp_path / "run")
    file = folder / "config.yaml"
    given = to_yaml(read_run_file(folder)["config"])
    for content in (given, given[: len(given) // 2], "run: {seed"):
        file.write_text(content)
        told = "config.yaml is not what the run was given" in " ".join(page_of(folder).texts)
        assert told == (f"{file}: changed since, or damaged" in caplog.text) == (content != given)


@pytest.mark.parametrize(
    "name", ["answers.parquet", "candidates.parquet", "meta.json", "manifest.json"]
)
@pytest.mark.parametrize("content", [None, b"", b"PAR1"])
def test_a_damaged_record_is_named_where_it_is_missing(run, tmp_path, caplog, name, content):
    folder = shutil.copytree(run.directory, tmp_path / "run")
    file = folder / "round_1/inspection" / name
    file.unlink() if content is None else file.write_bytes(content)
    page = page_of(folder)
    assert "round_1/inspection is damaged or not whole, not shown" in " ".join(page.texts)
    assert "not shown: round_1/inspection" in caplog.text
    assert set(page.table("answers")["round"]) == {0, 2}


def test_pairs_are_whole_with_their_ways(run, page):
    pairs = page.table("pairs")
    held = [p for stage in open_run(run.directory).stages.values() for p in stage.pairs]
    assert pairs["chosen"] == [p.chosen for p in held]
    assert pairs["chosen_advantage"] == pytest.approx([p.chosen_value for p in held])
    assert pairs["margin"] == pytest.approx([p.margin for p in held])
    rounds = pairs["round"]
    first = [n for n, round_ in enumerate(rounds) if not n or round_ != rounds[n - 1]]
    assert [place for place, after in enumerate(pairs["chosen_after"]) if after == -0.5] == first
    assert [pairs["rejected_after"][place] for place in first] == [-7.25] * len(first)
    goals = [[p.state["goal_x"], p.state["goal_y"]] for p in held]
    ends = [way[-1][:2] for way in pairs["chosen_way"]]
    near = [run.lengths[run.model.row(p.state)] <= 4 for p in held]
    assert [end == goal for end, goal in zip(ends, goals, strict=True)] == near
    legal = [isinstance(run.env.extractor.parse(p.rejected), Chain) for p in held]
    assert [way != [] for way in pairs["rejected_way"]] == legal  # what is no chain leads nowhere
    dropped = page.table("dropped")
    assert dropped["count"][dropped["reason"].index("margin")] == 3


def test_of_very_many_episodes_the_failures_come_first_and_the_page_says_so(run, monkeypatch):
    everything = contents(open_run(run.directory))
    assert everything.num_episodes == len(everything.trajectories) == 864
    monkeypatch.setattr(rollout_tables, "MAX_BYTES", 50_000)
    view = open_run(run.directory)
    held = contents(view)
    shown = len(held.trajectories)
    assert held.num_episodes == 864 and 200 < shown < 700
    outcomes = held.tables["episodes"]["outcome"]
    lost = sum(not r.success for found in view.results.values() for r in found)
    assert len(outcomes) == shown and outcomes.count("cut off") == lost
    assert outcomes.count("solved") > 0
    summary = summarise(view)
    assert held.row_of(summary.after) is None  # the first screen plays it nevertheless
    first, page = contents(view, shown=[summary.before, summary.after]), render(view)
    assert first.trajectories[first.row_of(summary.after)] is summary.after
    assert f"A sample: {shown + 1} of 864 episodes" in page
    assert page.count('data-episode="') == 2


def test_hostile_text_anywhere_does_not_leave_its_place(tmp_path):
    run = tmp_path / "<img src=x onerror=alert(1)>"
    world = {"id": "lactchain/GridWorld-v0", "kwargs": {}}
    config = {"environment": world, HOSTILE[:60]: HOSTILE[:60]}
    write_run(run, config, 2, {HOSTILE: HOSTILE})
    write_run_file(run, {"device": HOSTILE, "git_commit": HOSTILE})
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
    assert SHOWN in " ".join(page.texts) and "stage <b>" in page.table("stages")["stage"]
    assert page.table("steps")["completion"] == [HOSTILE]
    assert page.table("pairs")["rejected"] == [HOSTILE + "!"]


def test_a_screen_that_there_is_not_is_refused(run):
    with pytest.raises(ValueError, match="screen: expected one of .*summary.*, got 'film'"):
        render(open_run(run.directory), screen="film")


FILES = ["values", "episodes", "summary", "sizes"]
NAMES = [*(f"{name}.json" for name in FILES), "trajectories/000000.parquet"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("content", ["", "{", "[1]", "[" * 100_000, '{"schema_version": 9}'])
def test_damaged_files_are_named(tmp_path, name, content):
    with pytest.raises(ConfigError, match="expected a run folder"):
        write_report(tmp_path)
    write_text_run(tmp_path / "run")
    (tmp_path / "run" / name).write_text(content)
    with pytest.raises(DataError, match=name):
        write_report(tmp_path / "run")


def test_a_run_that_has_just_begun_has_a_page_that_names_worlds_nobody_imported(tmp_path):
    run = tmp_path / "new"
    run.mkdir()
    write_run_file(run, {"config": {"num_rounds": 2}, "imports": ["json", "my_worlds"]})
    page = page_of(run)
    assert "drawn by lactchain report --import my_worlds" in render(open_run(run))
    assert "finished" not in page.texts and "Stopped: at the beginning." in " ".join(page.texts)
    assert page.table("episodes")["round"] == []
    assert "Nothing has been evaluated yet" in " ".join(page.texts)


def test_a_page_tells_each_stage_that_begins_but_is_not_all_written_anew_each_time(run, tmp_path):
    folder = shutil.copytree(run.directory, tmp_path / "run")
    (folder / "summary.json").unlink()
    page = LivePage(folder)
    page.begin("round_3/critic")
    whole = (folder / "report.html").read_text()
    shutil.rmtree(folder / "round_2")
    page.begin("round_3/simpo")  # at once: all of it would cost more than a fiftieth of the time
    mended = (folder / "report.html").read_text()
    pages = [page.partition("</span><br>All else on this page is of ") for page in (whole, mended)]
    told = [there.rpartition(": round_3/")[2].partition(" ")[0] for there, _, _ in pages]
    assert told == ["critic.", "simpo."] and "Nothing has been evaluated yet" not in whole
    assert pages[0][2] == pages[1][2]


def test_a_run_is_under_way_while_its_folder_is_locked_and_stopped_else(tmp_path, monkeypatch):
    config = RunPipelineConfig(run=RunConfig(run_dir=str(tmp_path / "run")))
    page = tmp_path / "run/report.html"

    def stopped(_, run):
        LivePage(run.directory).begin("round_1/critic")
        assert open_run(page.parent).state == "under way"
        assert "Under way: round_1/critic." in page.read_text()
        assert f"looks again: lactchain report --run_dir {run.directory}<" in page.read_text()
        raise Interrupted(15, "stopped")

    monkeypatch.setattr(run_pipeline, "recipe", stopped)
    monkeypatch.setattr(sys, "argv", ["lactchain run_pipeline"])
    with pytest.raises(Interrupted):
        run_pipeline.main(config)
    assert open_run(page.parent).state == "stopped" and "Under way:" not in page.read_text()
    told = f"command to go on, or: lactchain run_pipeline --config {tmp_path}/run/config.yaml"
    assert told in page.read_text()
    view = open_run(page.parent)
    assert view.state == "stopped"
    Run.of(config).finish({})
    assert view.state == open_run(page.parent).state == "finished"


def test_a_page_or_a_film_that_cannot_be_drawn_costs_a_line_and_no_run(tmp_path, caplog):
    caplog.set_level("INFO", "lactchain_extras")
    LivePage(tmp_path).begin("round_1/critic")
    write_page(tmp_path)
    film_run(tmp_path, 1)
    *pages, film = caplog.messages
    assert len(pages) == 2 and film.startswith("no episode.gif: ")
    assert all(line.startswith(f"{tmp_path}: the page is left as it was: ") for line in pages)


def test_a_page_under_way_has_no_episodes_of_critics_yet(run, tmp_path):
    folder = shutil.copytree(run.directory, tmp_path / "run")
    played = folder / "round_1/evaluation/trajectories"
    shutil.copytree(played, folder / "round_1/critic/trajectories")
    assert "round_1/critic" in page_of(folder).table("episodes")["stage"]
    (folder / "summary.json").unlink()
    assert "round_1/critic" not in page_of(folder).table("episodes")["stage"]


@given(st.lists(st.one_of(st.none(), st.integers(-9, 9), st.text(max_size=3))))
def test_tables_come_back_as_they_were(mixed):
    assert unpack(pack({"mixed": mixed})) == {"mixed": mixed}


@given(st.text(st.characters()))
def test_escaped_text_reads_as_it_was_and_holds_no_markup(text):
    escaped = environment.from_string("{{ text }}").render(text=text)
    assert not set("<>\"'") & set(escaped)
    escaped.encode("utf-8")


@pytest.mark.parametrize(("name", "rounds", "when", "advice"), [
    ("loops", (2, 3), "first in round 2, in 2 of the rounds", "mend"),
    ("not_reading", (0,), "before the first round only", "before"),  # that of a warm start
])  # fmt: skip
def test_alarms_are_shown_with_their_first_round_and_advice(tmp_path, name, rounds, when, advice):
    write_run(tmp_path / "run", {}, 0)
    steps = range(rounds[-1] + 1)
    records = [{"step": n, f"alarm/{name}": int(n in rounds), "alarm/silence": 0} for n in steps]
    append_json_lines(tmp_path / "run/metrics.jsonl", records)
    texts, rule = page_of(tmp_path / "run").texts, {rule.name: rule for rule in RULES}[name]
    said = texts[texts.index(f"Alarm: {name}") + 1]
    assert said.startswith(f", {when}: {rule.means}") and getattr(rule, advice) in said
    assert "Alarm: silence" not in texts
    append_json_lines(tmp_path / "run/metrics.jsonl", [{"step": 4, f"alarm/{name}": 0}])
    texts = page_of(tmp_path / "run").texts
    assert f"Alarm {name}, {when}; the last round is without it." in texts


def test_a_state_without_a_picture_is_named_by_its_parts(tmp_path):
    no_picture = open_run(write_text_run(tmp_path / "text"))
    assert state_label(no_picture, {"cards": 12, "ace": False}) == "cards 12, ace False"


ONE = [EpisodeResult({}, True, num_chains=1, num_actions=2, shortest=2)]
THREE = [EpisodeResult({"a": a}, a > 0, num_chains=1, num_actions=2) for a in range(3)]
PLAYED = [
    ({"actor": {"temperature": 0.0}}, ONE, r"The one start state was played once, greedily\."),
    ({"actor": {"temperature": 0.25}}, ONE,
     "1 episode from 1 start state, sampled at temperature 0.25: that"),
    ({"actor": {"decoding": "scored", "values": "x"}}, ONE,
     "The one .*, by the completion of the highest "),
    ({"actor": {}}, ONE, r"The one start state was played once\."),
    # What repeats itself does not make a rate surer, and a sample of start states is not all.
    ({"actor": {"temperature": 0.0}}, THREE * 5,
     r"Each of the 3 start states was played more than once, greedily, and went alike each "),
    ({"evaluation": {"num_starts": None}}, THREE[:2], "Each of the 2 start states((?!95).)*$"),
    # Wilson's interval of 1 in 2.
    ({"evaluation": {"num_starts": 2}}, THREE[:2], "2 episodes from 2 start.*9.5 and 90.5.*95"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "results", "told"), PLAYED)
def test_the_first_screen_says_how_the_last_evaluation_was_played(tmp_path, config, results, told):
    """A pipeline's own actor is that of its training: what counts is that of the evaluation."""
    write_run(tmp_path / "run", config | {"actor": {"temperature": 0.7}}, 1)
    write_run(tmp_path / "run/round_1/evaluation", config, 1)
    write_run(tmp_path / "alone", config, 1)
    for folder in ("run/round_1/evaluation", "alone"):
        write_episodes(tmp_path / folder / "episodes.json", results)
    for name in ("run", "alone"):
        assert re.match(told, summarise(open_run(tmp_path / name)).sentences[-1])
