"""What a run writes down: metrics, its summary, where it was made; and no secret."""

import json
import shutil
import sys
from dataclasses import replace

import pytest
from run_setups import Config

from lactchain.config import settings
from lactchain.config.parsing import load
from lactchain.errors import DataError
from lactchain.runs.run import Run, read_metrics
from lactchain.storage.manifests import describe, verify_manifest, write_manifest


def test_a_summary_marks_the_end_and_is_written_last(run_dir):
    run = Run.open(run_dir, Config())
    assert not run.finished
    run.finish({"success_rate_after": 0.5})
    with Run.open(run_dir, Config()) as again:
        assert again.finished
        assert again.summary == {"success_rate_after": 0.5}


def test_metrics_are_records_by_step(run_dir):
    with Run.open(run_dir, Config()) as run:
        run.log({"train/loss": 0.5, "train/ratio": float("nan")}, step=1)
        run.log({"train/loss": 0.25, "text": "\ud800 é"}, step=2)
        records = read_metrics(run_dir)
    assert [record["step"] for record in records] == [1, 2]
    assert records[0]["train/loss"] == 0.5
    assert records[0]["train/ratio"] is None
    assert records[1]["text"] == "\ud800 é"


def test_a_torn_last_record_is_left_out_and_never_continued(run_dir):
    with Run.open(run_dir, Config()) as run:
        run.log({"a": 1}, step=1)
    with open(run_dir / "metrics.jsonl", "a") as file:
        file.write('{"step": 2, "a"')
    assert [record["step"] for record in read_metrics(run_dir)] == [1]
    with Run.open(run_dir, Config()) as run:
        run.log({"a": 3}, step=3)
    assert [record["step"] for record in read_metrics(run_dir)] == [1, 3]


def test_a_damaged_record_is_named(run_dir):
    with Run.open(run_dir, Config()) as run:
        run.log({"a": 1}, step=1)
    path = run_dir / "metrics.jsonl"
    path.write_text("{torn\n" + path.read_text())
    with pytest.raises(DataError, match=r"metrics.jsonl: line 1 is no JSON object"):
        read_metrics(run_dir)


def test_a_damaged_byte_costs_no_record_behind_it(run_dir):
    with Run.open(run_dir, Config()) as run:
        for step in range(3):
            run.log({"a": step}, step=step)
    path = run_dir / "metrics.jsonl"
    content = path.read_bytes()
    damaged = content.replace(b'"a": 0', b'"a": \0')
    path.write_bytes(damaged)
    Run.open(run_dir, Config()).close()
    assert path.read_bytes() == damaged
    with pytest.raises(DataError, match=r"metrics.jsonl: line 1 is no JSON object"):
        read_metrics(run_dir)
    path.write_bytes(content + b"\0\0\0")  # what a loss of power leaves does go
    Run.open(run_dir, Config()).close()
    assert path.read_bytes() == content


def test_records_after_the_resumed_step_are_dropped(run_dir):
    with Run.open(run_dir, Config()) as run:
        run.truncate_metrics(0)
        for step in range(5):
            run.log({"a": step}, step=step)
        run.truncate_metrics(2)
    assert [record["step"] for record in read_metrics(run_dir)] == [0, 1, 2]


def test_a_mark_is_of_all_records_and_what_is_logged_once_is_told_once(run_dir):
    path = run_dir / "metrics.jsonl"
    with Run.open(run_dir, Config()) as run:
        assert run.mark_metrics() == describe(b"")
        for step in (1, 2):
            run.log({"a": step}, step=step)
            run.log_once({"a": 0}, step=step)
            assert run.mark_metrics() == describe(path.read_bytes())
        run.truncate_metrics(1)
        run.log_once({"a": 0, "b": 0}, step=1)
        run.log_once({"a": 3}, step=2)
    told = [{k: v for k, v in r.items() if k != "time"} for r in read_metrics(run_dir)]
    assert told == [{"step": 1, "a": 1}, {"step": 1, "a": 0, "b": 0}, {"step": 2, "a": 3}]


def test_a_summary_that_was_changed_or_came_from_another_run_is_refused(run_dir, tmp_path):
    other = replace(Config(), critic=replace(Config().critic, gamma=0.5))
    for folder, config in ((run_dir, Config()), (tmp_path / "other", other)):
        with Run.open(folder, config) as run:
            run.finish({"success_rate": 0.5})
    path, manifest = run_dir / "summary.json", run_dir / "summary.manifest"
    with Run.open(run_dir, Config()) as run:
        assert run.summary == {"success_rate": 0.5}
        path.write_text(path.read_text().replace("0.5", "0.9"))
        with pytest.raises(DataError, match="summary.json: damaged; remove it"):
            _ = run.summary
        for file in (path, manifest):
            shutil.copy(tmp_path / "other" / file.name, file)
        with pytest.raises(
            DataError, match="summary.json: was written elsewhere .run_id: expected"
        ):
            _ = run.summary
        manifest.unlink()
        with pytest.raises(DataError, match="summary.manifest: missing, nothing vouches for"):
            _ = run.summary


def test_the_id_of_a_run_stands_in_its_folder(run_dir):
    with Run.open(run_dir, Config()) as run:
        (run_dir / "part").mkdir()
        (run_dir / "part/weights").write_text("1")
        write_manifest(run_dir / "part", {})
        found = verify_manifest(run_dir / "part")
    assert (found["run_id"], found["place"]) == (run.id, "part")
    assert json.loads((run_dir / "environment.json").read_text())["run_id"] == run.id


def test_other_ranks_write_nothing(run_dir, monkeypatch):
    Run.open(run_dir, Config()).close()
    written = {path: path.read_bytes() for path in run_dir.iterdir()}
    monkeypatch.setattr("lactchain.runs.distributed.is_main", lambda: False)
    run = Run.open(run_dir, Config())
    run.log({"a": 1}, step=1)
    run.truncate_metrics(0)
    run.finish({})
    assert {path: path.read_bytes() for path in run_dir.iterdir()} == written


def test_secrets_reach_no_file(run_dir, monkeypatch):
    canary = "hf_CANARYcanaryCANARY"
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "PATH_TO_X"):
        monkeypatch.setenv(name, canary)
    monkeypatch.setattr(sys, "argv", ["train.py", "--token", canary])
    names = ["api_keys", "secrets", "Authorization", "access_key", "credential", "aws-access-key"]
    extra = {"hub_token": canary, "nested": {"api_key": canary, "password": canary}}
    extra |= {name: [canary, {"header": f"Bearer {canary}"}] for name in names}
    extra |= {"urls": [f"https://me:{canary}@hub/x", f"http://hub?a=1&api_key={canary}&b=2"]}
    config = replace(Config(), training=settings.TrainingConfig(extra=extra))
    with Run.open(run_dir, config) as run:
        run.log({"a": 1}, step=1)
        run.finish({"a": 1})
    assert not [path for path in run_dir.rglob("*") if canary in path.read_text()]
    shown = load(run_dir / "config.yaml")["training"]["extra"]
    assert shown["urls"] == ["https://<redacted>@hub/x", "http://hub?a=1&api_key=<redacted>&b=2"]
    Run.open(run_dir, config).close()


@pytest.mark.parametrize(
    "text",
    [
        "https://user:p@{}@host/x",
        "s3://b?X-Amz-Credential={}&X-Amz-Signature={}",
        "http://h?auth_token={}",
        "http://h?client_secret={}&password={}",
    ],
)
def test_no_part_of_a_url_that_is_a_secret_is_written(text, run_dir):
    url = text.replace("{}", "CANARY")
    config = replace(Config(), training=settings.TrainingConfig(extra={"at": url}))
    Run.open(run_dir, config).close()
    assert "CANARY" not in (run_dir / "config.yaml").read_text()


def test_settings_that_only_speak_of_tokens_are_kept(run_dir):
    extra = {
        "eos_token": "</s>",
        "note": "see https://hub/a@b",
        "max_tokens_kind": "new",
        "tokens": "all",
    }
    with Run.open(run_dir, replace(Config(), training=settings.TrainingConfig(extra=extra))):
        assert load(run_dir / "config.yaml")["training"]["extra"] == extra


def test_the_environment_is_recorded(run_dir):
    Run.open(run_dir, Config()).close()
    environment = json.loads((run_dir / "environment.json").read_text())
    assert environment["threads"] == 1
    assert environment["world_size"] == 1
    assert {"torch", "transformers", "numpy"} <= set(environment["versions"])
