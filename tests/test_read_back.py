"""Whatever a run reads back to go on is as it was written, and is its own, or is refused."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from run_folders import write_run
from script_setups import build_weights, config_of

from lactchain import DataError, Run, open_run, read_pairs, read_trajectories
from lactchain.config.settings import CriticConfig, PlayerConfig, RunConfig
from lactchain.data.evaluations import (
    EpisodeResult,
    StateValues,
    read_episodes,
    read_values,
    write_episodes,
    write_values,
)
from lactchain.data.parquet import write_table
from lactchain.data.samples import SAMPLES
from lactchain.models.actor import POLICY_FILE, read_policy
from lactchain.models.weights import ADAPTER_FILES, ADAPTER_RECORD, read_adapter_record
from lactchain.runs import process
from lactchain.runs.folder import changed_input, inputs_of
from lactchain.stages.round_results import RoundResults
from lactchain.stages.run_pipeline import sized
from lactchain.stages.train_critic import TrainCriticConfig
from lactchain.storage.files import append_json_lines, read_versioned_json
from lactchain.storage.manifests import (
    RUN_FILE,
    manifest_beside,
    read_run_file,
    write_manifest,
    write_run_file,
)
from lactchain_extras.explorer.report import write_report

VALUES = StateValues(({"x": 1}, {"x": 2}), (0.5, -0.25), (0.5, 0.0), 0.9)
EPISODES = [EpisodeResult({"x": 1}, True, 2, 3), EpisodeResult({"x": 2}, False, 4, 8)]
FILES = {
    "values.json": (lambda path: write_values(path, VALUES), read_values),
    "episodes.json": (lambda path: write_episodes(path, EPISODES), read_episodes),
}


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
    path.unlink()
    path.write_bytes(content)
    manifest_beside(path).unlink()  # outside of runs nobody asks for it
    assert read(path) == written


@pytest.mark.parametrize("name", FILES)
def test_what_another_runs_evaluation_left_is_refused(name, tmp_path):
    write, read = FILES[name]
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        write_run_file(folder, {"run_id": folder.name})
        write(folder / name)
    for path in other.glob(f"*{Path(name).stem}.*"):
        shutil.copy(path, one)
    with pytest.raises(DataError, match="was written elsewhere .run_id: expected 'one'"):
        read(one / name)


def test_numbers_of_a_world_that_were_changed_are_refused(tmp_path):
    unsized = {"simpo.preferences.num_states": None}
    config = config_of("run_pipeline", tmp_path, tmp_path / "run", unsized)
    with Run.of(config) as run:
        given = sized(config, run)
        assert sized(config, run) == given
        path = run.path("sizes.json")
        text = path.read_text()
        path.write_text(text.replace('"num_states": 48', '"num_states": 46'))
        assert path.read_text() != text
        with pytest.raises(DataError, match=r"sizes.json: damaged; remove it .* measure the world"):
            sized(config, run)


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
        context.setattr(process._options, "inexact", True)
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


def test_a_switch_is_offered_where_it_helps_and_where_it_can_be_given(run, monkeypatch):
    path = run.path("metrics.jsonl")
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
    monkeypatch.setattr(process._options, "inexact", True)
    run.truncate_metrics(1, mark)


@pytest.mark.parametrize("name", ["metrics.jsonl", "lineage.jsonl"])
def test_what_a_finished_run_tells_of_itself_is_as_it_was_at_its_end(name, run):
    path = run.path(name)
    append_json_lines(path, [{"step": 1, "loss": 0.5}])
    run.finish({"loss": 0.5})
    assert run.summary == {"loss": 0.5}
    for damage in (lambda: path.write_text(path.read_text().replace("0.5", "0.7")), path.unlink):
        damage()
        with pytest.raises(DataError, match=f"{name}: missing or damaged since the run ended"):
            _ = run.summary


def test_no_change_of_a_runs_name_goes_unnoticed(run):
    run.log({"loss": 0.5}, step=1)
    path = run.path(RUN_FILE)
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
    path.write_bytes(content.replace(b"seal", b"seam"))
    with pytest.raises(DataError, match="environment.json: damaged"):
        read_run_file(path.parent)


@pytest.mark.parametrize("kind, version, read", [
    ("pairs", 2, read_pairs), ("trajectories", 1, read_trajectories),
    ("samples", 1, SAMPLES.read),
])  # fmt: skip
def test_rows_of_another_kind_than_their_manifest_says_are_refused(kind, version, read, tmp_path):
    write_table(tmp_path / "x.parquet", pa.table({"seed": [1, 2]}), kind, version)
    with pytest.raises(DataError, match=r"x\.parquet: its rows are no"):
        read(tmp_path / "x.parquet")


def test_a_newer_version_is_named_before_what_it_lacks(tmp_path):
    path = tmp_path / "config.json"
    said = {2: "expected schema version 1, got 2", 1: r"\['gamma'\] are missing"}
    for version, words in said.items():
        path.write_text(f'{{"schema_version": {version}, "discount": 0.9}}', "utf-8")
        with pytest.raises(DataError, match=words):
            read_versioned_json(path, 1, names=["gamma"])


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


def test_what_a_pipeline_shows_first_is_not_copied_from_a_damaged_stage(run):
    """Its copy would have a checksum of its own, and vouch for the damage."""
    path = run.path("round_0/evaluation/episodes.json")
    write_episodes(path, EPISODES)
    path.write_text(path.read_text().replace("3", "4"))
    with pytest.raises(DataError, match="round_0/evaluation/episodes.json: damaged; remove"):
        RoundResults.gather(SimpleNamespace(run=run), 0)
    assert not (run.directory / "episodes_before.json").exists()


MODEL_FILES = ("config.json", "tokenizer.json", "model.safetensors", "original/params.json")


@dataclass(frozen=True)
class Trained:
    model: str
    trajectories: str | None = None


@pytest.fixture
def config(tmp_path):
    for name in MODEL_FILES:
        file = tmp_path / "model" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/00000-of-00001.parquet").write_text("rows")
    return Trained(str(tmp_path / "model"), str(tmp_path / "data"))


@pytest.mark.parametrize("key, name", [
    *(("model", name) for name in MODEL_FILES),
    ("trajectories", "more.parquet"), ("trajectories", "train/more.parquet"),
    ("model", "adapter_config.json"), ("model", "chat_template.jinja"),
    ("model", "model-00002-of-00002.safetensors"),
])  # fmt: skip
def test_what_is_new_or_was_changed_or_is_missing_is_named_but_no_card(key, name, config):
    recorded, file = inputs_of(config), Path(getattr(config, key)) / name
    is_new = not file.exists()
    file.parent.mkdir(exist_ok=True)
    for other in ("README.md", ".DS_Store"):
        file.with_name(other).write_text("new")
    assert changed_input(recorded, inputs_of(config)) is None
    for change in (lambda: file.write_text("x" * len(name)), file.unlink):
        change()
        changed = changed_input(recorded, inputs_of(config))
        if is_new and not file.exists():
            assert changed is None
        else:
            assert changed.endswith(f"{name} of {key}")


def test_models_that_are_never_read_are_not_held_against_anything(config):
    model = config.model
    critic = CriticConfig(model=model, checkpoint=str(config.trajectories))
    played = TrainCriticConfig(actor=PlayerConfig(model=model), critic=critic)
    assert {"actor.model", "critic.checkpoint"} <= inputs_of(played).keys()
    assert "critic.model" not in inputs_of(played)
    assert "critic.model" in inputs_of(replace(played, critic=replace(critic, checkpoint=None)))
    read = replace(played, trajectories=config.trajectories)
    assert "actor.model" not in inputs_of(read)


@pytest.mark.parametrize("exact", [None, (0.5, -1 / 3)])
def test_values_come_back_equal(tmp_path, exact):
    values = StateValues(({"x": 1}, {"x": "\ud800"}), (0.25, 1e-300), exact, 0.9, "chain")
    write_values(tmp_path / "values.json", values)
    assert read_values(tmp_path / "values.json") == values
    with pytest.raises(ValueError, match="exact: expected a value for each of 1 states, got 2"):
        StateValues(({},), (0.0,), (0.0, 1.0), 0.9)
    (tmp_path / "other.json").write_text('{"schema_version": 1}')
    for read in (read_values, read_episodes):
        with pytest.raises(DataError, match="other.json: not of schema version"):
            read(tmp_path / "other.json")


def test_curves_keep_the_last_record_of_a_step_and_show_gaps(tmp_path):
    write_run(tmp_path / "run", {}, 0)
    told = ((1, 3.0), (2, 9.0), (2, None), (3, 1))
    records = [{"step": s, "time": float(n), "loss": loss} for n, (s, loss) in enumerate(told)]
    records[0] |= {"name": "x", "flag": True}
    append_json_lines(tmp_path / "run/metrics.jsonl", records)
    with open(tmp_path / "run/metrics.jsonl", "a") as metrics:
        metrics.write('{"step": 4, "lo')
    ((key, (steps, losses)),) = open_run(tmp_path / "run").curves().items()
    assert key == "loss" and steps == [1, 2, 3]
    np.testing.assert_array_equal(losses, [3.0, np.nan, 1.0])
