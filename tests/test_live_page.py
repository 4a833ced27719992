"""The report of a run under way: renewed at each stage, and told from one that was stopped."""

import shutil
import sys

import pytest
from explorer_runs import GridRun
from test_report import page_of

from lactchain.config.settings import RunConfig
from lactchain.errors import Interrupted
from lactchain.inspection.run_view import open_run
from lactchain.runs.reporting import LivePage, write_page
from lactchain.runs.run import Run
from lactchain.stages import run_pipeline
from lactchain.stages.pipeline_config import RunPipelineConfig
from lactchain.storage.manifests import write_run_file
from lactchain_extras.films import film_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return GridRun(tmp_path_factory.mktemp("runs") / "grid")


def test_a_run_that_has_just_begun_has_a_page(tmp_path):
    run = tmp_path / "new"
    run.mkdir()
    write_run_file(run, {"config": {"seed": 1}})
    page = page_of(run)
    assert "finished" not in page.texts and "Stopped: at the beginning." in " ".join(page.texts)
    assert page.table("episodes")["round"] == []


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
    assert [told.rpartition(": round_3/")[2] for told, _, _ in pages] == ["critic.", "simpo."]
    assert pages[0][2] == pages[1][2]


def test_a_run_is_under_way_while_its_folder_is_locked_and_stopped_else(tmp_path, monkeypatch):
    config = RunPipelineConfig(run=RunConfig(run_dir=str(tmp_path / "run")))
    page = tmp_path / "run/report.html"

    def stopped(_, run):
        LivePage(run.directory).begin("round_1/critic")
        assert open_run(page.parent).state == "under way"
        assert "Under way: round_1/critic." in page.read_text()
        raise Interrupted(15, "stopped")

    monkeypatch.setattr(run_pipeline, "recipe", stopped)
    monkeypatch.setattr(sys, "argv", ["lactchain run_pipeline"])
    with pytest.raises(Interrupted):
        run_pipeline.main(config)
    assert open_run(page.parent).state == "stopped" and "Under way:" not in page.read_text()
    told = f"command to go on, or: lactchain run_pipeline --config {tmp_path}/run/config.yaml"
    assert told in page.read_text()
    Run.of(config).finish({})
    assert open_run(page.parent).state == "finished"


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
