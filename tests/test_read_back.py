"""Whatever a run reads back to go on is as it was written, and is its own, or is refused."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from script_setups import build_weights, config_of

from lactchain.baselines.transitions import read_transitions
from lactchain.config.settings import RunConfig
from lactchain.data.evaluations import (
    EpisodeResult,
    StateValues,
    read_episodes,
    read_values,
    write_episodes,
    write_values,
)
from lactchain.data.parquet import write_table
from lactchain.data.preferences import read_pairs
from lactchain.data.samples import read_samples
from lactchain.data.trajectories import read_trajectories
from lactchain.errors import DataError
from lactchain.models.actor import POLICY_FILE, read_policy
from lactchain.models.adapters import ADAPTER_FILES, ADAPTER_RECORD, read_adapter_record
from lactchain.runs import process
from lactchain.runs.run import Run
from lactchain.stages.round_results import RoundResults
from lactchain.stages.run_pipeline import sized
from lactchain.storage.files import append_json_lines, read_json_lines, read_sealed_lines, seal
from lactchain.storage.manifests import RUN_FILE, read_run_file, write_manifest, write_run_file
from lactchain_extras.explorer.report import write_report

VALUES = StateValues(({"x": 1}, {"x": 2}), (0.5, -0.25), (0.5, 0.0), 0.9)
EPISODES = [EpisodeResult({"x": 1}, True, 2, 3), EpisodeResult({"x": 2}, False, 4, 8)]
FILES = {
    "values.json": (lambda path: write_values(path, VALUES), read_values),
    "episodes.json": (lambda path: write_episodes(path, EPISODES), read_episodes),
}


def run_folder(folder: Path, run_id: str) -> Path:
    """A folder that belongs to a run."""
    folder.mkdir()
    write_run_file(folder, {"run_id": run_id})
    return folder


@pytest.mark.parametrize("name", FILES)
def test_no_change_of_what_an_evaluation_left_goes_unnoticed(name, tmp_path):
    write, read = FILES[name]
    path = tmp_path / name
    write(path)
    written, content = read(path), path.read_bytes()
    for place in range(0, len(content), 4):
        flipped = bytearray(content)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(DataError, match=f"{name}: damaged; remove it and the summary.json"):
            read(path)
    path.write_bytes(content)
    path.with_suffix(".manifest").unlink()  # outside of runs nobody asks for it
    assert read(path) == written


@pytest.mark.parametrize("name", FILES)
def test_what_another_runs_evaluation_left_is_refused(name, tmp_path):
    write, read = FILES[name]
    one, other = (run_folder(tmp_path / run_id, run_id) for run_id in ("one", "other"))
    for folder in (one, other):
        write(folder / name)
    for path in other.glob(f"{Path(name).stem}.*"):
        shutil.copy(path, one)
    with pytest.raises(DataError, match="was written elsewhere .run_id: expected 'one'"):
        read(one / name)


def test_numbers_of_a_world_that_were_changed_are_refused(tmp_path):
    config = config_of("run_pipeline", tmp_path, tmp_path / "run")
    config = replace(config, simpo=replace(config.simpo, preferences=nulls(config)))
    with Run.of(config) as run:
        given = sized(config, run)
        assert sized(config, run) == given
        path = run.path("sizes.json")
        text = path.read_text()
        path.write_text(text.replace('"num_states": 48', '"num_states": 46'))
        assert path.read_text() != text
        with pytest.raises(DataError, match=r"sizes.json: damaged; remove it .* measure the world"):
            sized(config, run)


def nulls(config):
    return replace(config.simpo.preferences, num_states=None)


def test_sealed_lines_of_another_run_are_refused(tmp_path):
    path = tmp_path / "trials.jsonl"
    append_json_lines(path, [seal({"trial": 0}, 0, "one")])
    assert read_sealed_lines(path, "one") == [{"trial": 0}]
    with pytest.raises(DataError, match="line 1 is damaged, or was written for another place"):
        read_sealed_lines(path, "other")


@pytest.mark.parametrize("name, read", [
    (ADAPTER_RECORD, read_adapter_record), (POLICY_FILE, read_policy),
])  # fmt: skip
def test_what_a_model_is_asked_by_is_verified_with_its_folder(name, read, tmp_path):
    for file in (*ADAPTER_FILES, name):
        (tmp_path / file).write_text('{"base": "a"}')
    write_manifest(tmp_path, {})
    (tmp_path / name).write_text('{"base": "b"}')
    with pytest.raises(DataError, match=f"{name}: damaged, its SHA-256"):
        read(tmp_path)


def test_a_base_model_that_was_changed_since_the_run_began_is_refused(tmp_path, monkeypatch):
    """Nothing but the run itself knows what it was: most models have no manifest."""
    weights = build_weights(tmp_path / "weights")
    for manifest in weights.rglob("manifest.json"):
        manifest.unlink()
    config = config_of("train_simpo", weights, tmp_path / "run")
    with Run.of(config) as run:
        run.log({"loss": 1.0}, step=1)
    file = weights / "actor/model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=r"model.safetensors of actor.model is not as it was"):
        Run.of(config)
    with monkeypatch.context() as context:
        context.setattr(process, "_inexact", True)
        Run.of(config).close()
    file.write_bytes(content)
    with pytest.raises(DataError, match="is not as it was"):  # what it went on with counts
        Run.of(config)


@pytest.mark.parametrize("damage", [
    lambda text: text.replace("0.25", "0.75"), lambda text: text[:-60], lambda text: "",
])  # fmt: skip
def test_metrics_that_were_changed_are_refused_before_a_run_goes_on(damage, tmp_path):
    path = tmp_path / "run/metrics.jsonl"
    with Run.open(tmp_path / "run", RunConfig()) as run:
        run.log({"loss": 0.5}, step=1)
        run.log({"loss": 0.25}, step=2)
        mark = run.mark_metrics()
        run.log({"loss": 0.125}, step=3)
    text = path.read_text()
    with Run.open(tmp_path / "run", RunConfig()) as run:
        run.truncate_metrics(2, mark)
        assert path.read_bytes() == text.encode()[: mark["size"]]
        path.write_text(damage(path.read_text()))
        with pytest.raises(DataError, match=r"metrics.jsonl: missing or damaged, .* to step 2"):
            run.truncate_metrics(2, mark)


def test_a_switch_is_offered_where_it_helps_and_where_it_can_be_given(tmp_path, monkeypatch):
    path = tmp_path / "run/metrics.jsonl"
    with Run.open(tmp_path / "run", RunConfig()) as run:
        run.log({"loss": 0.5}, step=1)
        mark = run.mark_metrics()
        run.finish({})
        content = path.read_bytes()
        path.write_bytes(b"[" + content)
        with pytest.raises(DataError, match="line 1 is no JSON object") as error:
            run.truncate_metrics(1, mark)
        assert "--inexact" not in str(error.value)
        path.unlink()
        with pytest.raises(DataError, match="give the same command, for .* with --inexact"):
            _ = run.summary
        with pytest.raises(DataError, match="or add --inexact on the command line"):
            run.truncate_metrics(1, mark)
        monkeypatch.setattr(process, "_inexact", True)
        run.truncate_metrics(1, mark)


@pytest.mark.parametrize("name", ["metrics.jsonl", "lineage.jsonl"])
def test_what_a_finished_run_tells_of_itself_is_as_it_was_at_its_end(name, tmp_path):
    with Run.open(tmp_path / "run", RunConfig()) as run:
        append_json_lines(run.path(name), [{"step": 1, "loss": 0.5}])
        run.finish({"loss": 0.5})
        assert run.summary == {"loss": 0.5}
    path = tmp_path / "run" / name
    path.write_text(path.read_text().replace("0.5", "0.7"))
    with pytest.raises(DataError, match=f"{name}: missing or damaged since the run ended"):
        _ = run.summary
    path.unlink()
    with pytest.raises(DataError, match=f"{name}: missing or damaged since the run ended"):
        _ = run.summary


def test_no_change_of_a_runs_name_goes_unnoticed(tmp_path):
    with Run.open(tmp_path / "run", RunConfig()) as run:
        run.log({"loss": 0.5}, step=1)
    path = tmp_path / "run" / RUN_FILE
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        try:
            found = read_run_file(path.parent)
        except DataError:
            continue
        assert found["run_id"] == run.id


@pytest.mark.parametrize("kind, version, read", [
    ("pairs", 2, read_pairs), ("trajectories", 1, read_trajectories),
    ("samples", 1, read_samples),
    ("transitions", 1, read_transitions),
])  # fmt: skip
def test_rows_of_another_kind_than_their_manifest_says_are_refused(kind, version, read, tmp_path):
    write_table(tmp_path / "x.parquet", pa.table({"seed": [1, 2]}), kind, version)
    with pytest.raises(DataError, match=r"x\.parquet: (its rows are no|expected columns)"):
        read(tmp_path / "x.parquet")


def test_lines_of_which_a_loss_of_power_left_zeros_are_cut(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": \0\0\0\n')
    assert read_json_lines(path) == [{"a": 1}]
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a"\0\0')
    assert read_json_lines(path) == [{"a": 1}, {"a": 2}]


def test_a_seal_whose_own_name_is_damaged_is_one(tmp_path):
    path = tmp_path / "trials.jsonl"
    append_json_lines(path, [seal({"trial": 1}, 0, "run")])
    path.write_text(path.read_text().replace("seal", "seam").replace("1", "2", 1))
    with pytest.raises(DataError, match="line 1 is damaged"):
        read_sealed_lines(path, "run")
    with Run.open(tmp_path / "run", RunConfig()) as run:
        run.log({"loss": 1.0}, 1)
    file = run.directory / RUN_FILE
    file.write_text(file.read_text().replace("seal", "seam"))
    with pytest.raises(DataError, match="environment.json: damaged"):
        read_run_file(run.directory)


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "environment.json"])
def test_the_page_of_a_run_shows_nothing_that_was_changed_since_it_ended(name, tmp_path):
    with Run.open(tmp_path / "run", RunConfig()) as run:
        run.log({"loss": 1.0}, 1)
        run.finish({"loss": 1.0})
    write_report(run.directory)
    path = run.directory / name
    path.write_text(path.read_text().replace("1", "2", 1))
    with pytest.raises(DataError, match=name):
        write_report(run.directory)


def test_what_a_pipeline_shows_first_is_not_copied_from_a_damaged_stage(tmp_path):
    """Its copy would have a checksum of its own, and vouch for the damage."""
    run = Run.open(tmp_path / "run", RunConfig())
    path = run.path("round_0/evaluation/episodes.json")
    write_episodes(path, EPISODES)
    path.write_text(path.read_text().replace("3", "4"))
    with run, pytest.raises(DataError, match="round_0/evaluation/episodes.json: damaged; remove"):
        RoundResults.gather(SimpleNamespace(run=run), 0)
    assert not (run.directory / "episodes_before.json").exists()
