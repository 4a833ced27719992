"""What a run writes down: metrics, its summary, where it was made; and no secret."""

import shutil
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from run_setups import Config

from lactchain import DataError, open_run
from lactchain.config import settings
from lactchain.config.parsing import load
from lactchain.runs.run import Run, read_metrics
from lactchain.storage.manifests import describe


def test_metrics_are_records_by_step(run_dir):
    with Run.open(run_dir, Config()) as run:
        run.log({"train/loss": 0.5, "train/ratio": float("nan")}, step=1)
        run.log({"train/loss": 0.25, "text": "\ud800 é"}, step=2)
        records = read_metrics(run_dir)
    assert [record["step"] for record in records] == [1, 2]
    assert records[0]["train/loss"] == 0.5 and records[0]["train/ratio"] is None
    assert records[1]["text"] == "\ud800 é"


def test_a_damaged_byte_costs_no_record_behind_it_and_a_torn_last_one_is_never_continued(run_dir):
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
    path.write_bytes(content + b'{"step": 2, "a"')
    assert [record["step"] for record in read_metrics(run_dir)] == [0, 1, 2]
    for torn in (b'{"step": 2, "a"', b"\0\0\0", b'{"a": \0\0\0\n', b'{"a"\0\0'):
        path.write_bytes(content + torn)  # what a loss of power leaves does go
        Run.open(run_dir, Config()).close()
        assert path.read_bytes() == content
    path.write_bytes(content + b'{"step": 2, "a"')
    with Run.open(run_dir, Config()) as run:
        run.log({"a": 3}, step=3)
    assert [record["step"] for record in read_metrics(run_dir)] == [0, 1, 2, 3]


def test_how_long_a_run_has_worked_is_the_sum_over_its_starts(run_dir, monkeypatch):
    clock = [0.0]
    told = SimpleNamespace(
        perf_counter=lambda: clock[0], process_time=lambda: clock[0] / 2, time=time.time
    )
    monkeypatch.setattr("lactchain.runs.run.time", told)
    killed = Run.open(run_dir, Config())
    with Run.open(run_dir / "round_1", Config()) as part:
        for seconds in (20, 5):  # the latter a kill takes along: it came just after
            clock[0] += seconds
            part.log({"loss": 1.0}, step=0)  # before the first round is over a pipeline has no more
    killed._lock.close()
    clock[0] += 1000
    with Run.open(run_dir, Config()) as stopped:
        clock[0] += 7
        stopped.log({"loss": 1.0}, step=1)
    again = Run.open(run_dir, Config())
    clock[0] += 3
    assert again.worked() == {"wall_seconds": 30.0, "time/cpu_seconds": 15.0}
    again.finish({})
    with Run.open(run_dir, Config()):
        clock[0] += 100  # for nothing: it is finished
    for folder, seconds in ((run_dir, 30), (run_dir / "round_1", 25)):
        assert open_run(folder).minutes == pytest.approx(seconds / 60)


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
    path, manifest = run_dir / "summary.json", run_dir / "_summary.manifest"
    with Run.open(run_dir, Config()) as run:
        assert run.summary == {"success_rate": 0.5}
        path.write_text(path.read_text().replace("0.5", "0.9"))
        with pytest.raises(DataError, match="summary.json: damaged; remove it"):
            _ = run.summary
        for file in (path, manifest):
            shutil.copy(tmp_path / "other" / file.name, file)
        with pytest.raises(DataError, match="summary.json: was written elsewhere .run_id: "):
            _ = run.summary
        manifest.unlink()
        with pytest.raises(DataError, match="summary.manifest: missing, nothing vouches for"):
            _ = run.summary


def test_other_ranks_write_nothing(run_dir, monkeypatch):
    Run.open(run_dir, Config()).close()
    written = {path: path.read_bytes() for path in run_dir.iterdir()}
    monkeypatch.setattr("lactchain.runs.distributed.is_main", lambda: False)
    run = Run.open(run_dir, Config())
    run.log({"a": 1}, step=1)
    run.truncate_metrics(0)
    run.finish({})
    assert {path: path.read_bytes() for path in run_dir.iterdir()} == written


URLS = ["https://user:p@{}@host/x", "s3://b?X-Amz-Credential={}&X-Amz-Signature={}"]
URLS += ["http://h?auth_token={}", "http://h?client_secret={}&password={}"]


def test_secrets_reach_no_file_and_what_speaks_of_tokens_does(run_dir, monkeypatch):
    canary = "hf_CANARYcanaryCANARY"
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "PATH_TO_X"):
        monkeypatch.setenv(name, canary)
    monkeypatch.setattr(sys, "argv", ["train.py", "--token", canary])
    names = ["api_keys", "secrets", "Authorization", "access_key", "credential", "aws-access-key"]
    extra = {"hub_token": canary, "nested": {"api_key": canary, "password": canary}}
    extra |= {name: [canary, {"header": f"Bearer {canary}"}] for name in names}
    extra |= {"urls": [f"https://me:{canary}@hub/x", f"http://hub?a=1&api_key={canary}&b=2"]}
    extra |= {"more": [url.replace("{}", canary) for url in URLS]}
    plain = {"eos_token": "</s>", "note": "see https://hub/a@b", "tokens": "all"}
    config = replace(Config(), training=settings.TrainingConfig(extra=extra | plain))
    with Run.open(run_dir, config) as run:
        run.log({"a": 1}, step=1)
        run.finish({"a": 1})
    assert not [path for path in run_dir.rglob("*") if canary in path.read_text()]
    shown = load(run_dir / "config.yaml")["training"]["extra"]
    assert shown.items() > plain.items()
    assert shown["urls"] == ["https://<redacted>@hub/x", "http://hub?a=1&api_key=<redacted>&b=2"]
    Run.open(run_dir, config).close()
