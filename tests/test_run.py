"""Run folders: continued by the same command, closed to any other."""

import errno
import logging
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from run_setups import Config, start

from lactchain import ConfigError, DataError, DiskError, Run
from lactchain.baselines.state_files import save_checkpoint
from lactchain.config import settings
from lactchain.config.parsing import load, parse
from lactchain.runs import process
from lactchain.stages.stage_run import stage
from lactchain.storage.manifests import verify_manifest, write_manifest

CONFIG = Config()
HALVED = replace(CONFIG, critic=replace(CONFIG.critic, gamma=0.5))
SEEDED = replace(CONFIG, run=settings.RunConfig(seed=1))


def leave_something(run_dir: Path, config: Config = CONFIG) -> Run:
    with Run.open(run_dir, config) as run:
        run.log({"loss": 1.0}, step=0)
    return run


def refused(run_dir: Path, error: type[Exception], words: str, config: Config = CONFIG):
    with pytest.raises(error, match=words) as refusal:
        Run.open(run_dir, config)
    assert "\n" not in str(refusal.value)


def test_a_folder_holds_a_configuration_that_makes_the_same_run(run_dir):
    config = parse(Config, ["--critic.lora.r", "8", "--training.learning_rate", "1e-5"])
    with Run.open(run_dir, config) as run:
        again = parse(Config, ["--config", str(run_dir / "config.yaml")])
    assert again == config
    with Run.open(run_dir, again) as continued:
        assert continued.id == run.id


def test_the_record_of_a_stage_has_the_threads_that_it_works_with(run_dir):
    run = settings.RunConfig(run_dir=str(run_dir), threads=2)
    try:
        with stage("Stage", replace(CONFIG, run=run)) as opened:
            assert opened.environment["threads"] == 2
            opened.finish({})
    finally:
        process.seed_everything(0, threads=1)


def test_a_run_that_goes_on_or_is_finished_says_so(run_dir, caplog):
    with caplog.at_level(logging.INFO):
        leave_something(run_dir)  # os._exit of an environment leaves as little
        assert "unfinished" not in caplog.text
        Run.open(run_dir, CONFIG).finish({})
        assert caplog.text.count(f"{run_dir}: was left unfinished, and goes on") == 1
        assert "finished, see summary.json" not in caplog.text
        with Run.open(run_dir, CONFIG) as run:
            assert run.finished
    assert caplog.text.count("unfinished") == caplog.text.count("finished, see summary.json") == 1


def test_a_summary_that_nothing_vouches_for_does_not_end_a_run(run_dir):
    """As after a kill between the two: it would be believed with any bit flipped."""
    leave_something(run_dir)
    (run_dir / "_summary.manifest").mkdir()  # its manifest cannot be written
    with Run.open(run_dir, CONFIG) as run, pytest.raises(DiskError, match="_summary.manifest"):
        run.finish({})
    assert not run.finished
    (run_dir / "_summary.manifest").rmdir()
    Run.open(run_dir, CONFIG).finish({"loss": 1.0})
    assert run.finished and run.summary == {"loss": 1.0}


def of_stage(run_dir: Path, base: Path) -> Config:
    critic = settings.CriticConfig(str(base))
    return Config(settings.RunConfig(run_dir=str(run_dir / "critic")), critic)


def test_a_stage_of_a_run_that_was_moved_goes_on_with_what_lies_in_the_run(run_dir):
    leave_something(run_dir)
    (run_dir / "base").mkdir()
    (run_dir / "other").mkdir()
    config = of_stage(run_dir, run_dir / "base")
    with Run.of(config) as run:
        run.log({"loss": 1.0}, step=0)
    moved = run_dir.rename(run_dir.with_name("moved"))
    for other in (moved / "other", moved.with_name("base")):
        with pytest.raises(ConfigError, match="critic.model was"):
            Run.of(of_stage(moved, other))
    with Run.of(of_stage(moved, moved / "base")) as again:
        assert again.id == run.id
    assert load(moved / "critic/config.yaml")["critic"]["model"] == str(moved / "base")


def test_harmless_changes_are_shown_and_accepted(run_dir, caplog, monkeypatch):
    monkeypatch.setattr("lactchain.config.settings.find_spec", lambda name: name)
    first = leave_something(run_dir)
    harmless = settings.RunConfig("elsewhere", report_to=["wandb"], timeout_minutes=5)
    training = settings.TrainingConfig(extra={"logging_steps": 3}, save_every_updates=5)
    with caplog.at_level(logging.INFO):
        second = Run.open(run_dir, replace(CONFIG, run=harmless, training=training))
    assert second.id == first.id and "run.report_to was [], now ['wandb']" in caplog.text
    second.close()
    assert "logging_steps: 3" in (run_dir / "config.yaml").read_text()


@pytest.mark.parametrize("content", [None, "run: {seed: 7}\n", "run: ["])
def test_settings_for_people_are_written_anew_where_they_were_lost(run_dir, content):
    leave_something(run_dir)
    file = run_dir / "config.yaml"
    stored = file.read_bytes()
    file.unlink() if content is None else file.write_text(content)
    refused(run_dir, ConfigError, "run.seed was 0, now 1", SEEDED)
    with Run.open(run_dir, CONFIG):
        assert file.read_bytes() == stored


def test_a_run_whose_record_was_lost_goes_on_only_where_it_is_told_to(run_dir, monkeypatch):
    run, record = with_a_part(run_dir), run_dir / "environment.json"
    leave_something(run_dir.with_name("other"), SEEDED)
    shutil.copy(run_dir.with_name("other") / record.name, record)
    refused(run_dir, ConfigError, "environment.json: made by another .*run.seed was 1, now 0")
    for text in ('{"manifest": {"files": {"/etc/passwd": 1}}}', "{}"):
        record.write_text(text)
        refused(run_dir, DataError, "environment.json: damaged.*; put a copy back")
        assert record.read_text() == text
    record.unlink()
    refused(run_dir, DataError, "environment.json: missing, .*; put a copy back; or add")
    monkeypatch.setattr(process._options, "inexact", True)
    refused(run_dir, ConfigError, "run.seed was 0, now 1", SEEDED)
    with Run.open(run_dir, CONFIG) as again:
        assert again.id == run.id
        verify_manifest(run_dir / "checkpoints/checkpoint-1")


@pytest.mark.parametrize(("name", "error", "words"), [
    ("thesis.tex", ConfigError, r"expected a run or nothing, found \['thesis.tex'\]"),
    ("config.yaml", DataError, "environment.json: missing"),
    ("sub/lock", ConfigError, "expected a run or nothing"),
    (".git/config", ConfigError, r"expected a run or nothing, found \['.git'\]"),
])  # fmt: skip
def test_a_folder_of_other_things_is_not_taken_over(run_dir, name, error, words):
    file = run_dir / name
    file.parent.mkdir(parents=True)
    file.write_text("mine: 1\n")
    refused(run_dir, error, words)
    assert {p for p in run_dir.rglob("*") if p.is_file()} - {run_dir / "lock"} == {file}
    assert file.read_text() == "mine: 1\n"


def test_a_command_that_produced_nothing_claims_nothing(run_dir):
    with pytest.raises(ZeroDivisionError), Run.open(run_dir, CONFIG) as first:
        first.path("round_1/checkpoints").mkdir(parents=True)
        with Run.open(run_dir / "round_1", CONFIG):
            (run_dir / "sizes.json").write_text("{}")
            1 / 0  # noqa: B018
    with Run.open(run_dir, HALVED) as second:
        assert second.id != first.id and not (run_dir / "sizes.json").exists()
        assert load(run_dir / "config.yaml")["critic"]["gamma"] == 0.5


@pytest.mark.parametrize(("folder", "error", "words"), [
    ("file", ConfigError, "run.run_dir: expected a folder, got the file .*/file;"),
    ("file/run", DiskError, "file/run: could not be written"),
    ("x" * 300, DiskError, "xxx: could not be written"),
])  # fmt: skip
def test_a_folder_that_cannot_be_made_is_named(tmp_path, folder, error, words):
    (tmp_path / "file").touch()
    refused(tmp_path / folder, error, words)


OPENS = """
import os, sys, time
from run_setups import Config
from lactchain.runs.run import Run
run = Run.open(sys.argv[1], Config())
is_child = {} and os.fork() == 0
time.sleep(60 * is_child)
print("open", flush=True)
{}
"""


def test_a_second_process_is_refused_until_the_first_dies(run_dir):
    with start(OPENS.format(False, "sys.stdin.read()"), run_dir) as holder:
        assert holder.stdout.readline() == "open\n"
        refused(run_dir, ConfigError, f"process {holder.pid} works in this folder")
        holder.kill()
    Run.open(run_dir, CONFIG).close()


def with_a_part(run_dir: Path) -> Run:
    run = leave_something(run_dir)
    part = run_dir / "checkpoints/checkpoint-1"
    part.mkdir(parents=True)
    (part / "weights").write_text("1")
    write_manifest(part, {})
    return run


@pytest.mark.parametrize("number", [0, 1])
def test_a_run_goes_on_after_a_kill_between_the_files_of_its_name(run_dir, number, monkeypatch):
    before = with_a_part(run_dir)
    replaced, kept = [], os.replace

    def replace_once(source: Path, target: Path) -> None:
        if len(replaced) == number:
            raise KeyboardInterrupt
        replaced.append(target)
        kept(source, target)

    monkeypatch.setattr("os.replace", replace_once)
    with pytest.raises(KeyboardInterrupt):
        Run.open(run_dir, CONFIG)
    monkeypatch.undo()
    with Run.open(run_dir, CONFIG) as run:
        assert len(replaced) == number and run.id == before.id
        verify_manifest(run_dir / "checkpoints/checkpoint-1")


@pytest.mark.parametrize("name", ["wandb/debug-core.log", "critic/wandb/debug.log", ".notes"])
def test_a_link_that_is_never_read_back_may_lead_anywhere(run_dir, tmp_path, name):
    leave_something(run_dir)
    (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
    (run_dir / name).symlink_to(tmp_path)
    (run_dir / "a").symlink_to("a")  # in a loop
    Run.open(run_dir, CONFIG).close()


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints", "lock", "sizes.json"])
def test_what_is_no_plain_file_is_refused_and_where_a_link_leads_is_left_alone(run_dir, name):
    leave_something(run_dir)
    precious = run_dir.parent / "precious.txt"
    precious.write_text("mine")
    (run_dir / name).unlink(missing_ok=True)
    if name == "sizes.json":
        os.mkfifo(run_dir / name)
    else:
        (run_dir / name).symlink_to(precious)
    refused(run_dir, ConfigError, f"{name}: expected a plain file")
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_that_does_not_lock_is_named(run_dir, monkeypatch, code):
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(code, os.strerror(code))))
    refused(run_dir, DiskError, f"{run_dir}: .*{os.strerror(code)}.*--run.run_dir")
    monkeypatch.undo()
    Run.open(run_dir, CONFIG).close()


def test_forked_children_do_not_keep_the_folder_locked(run_dir):
    with start(OPENS.format(True, ""), run_dir, start_new_session=True) as holder:
        assert holder.stdout.readline() == "open\n"
        assert holder.wait(20) == 0
        Run.open(run_dir, CONFIG).close()
        os.killpg(holder.pid, signal.SIGKILL)


def test_a_run_that_was_killed_before_it_wrote_anything_begins_again(run_dir):
    Run.open(run_dir, CONFIG).close()
    (run_dir / "checkpoints").mkdir()
    (run_dir / "checkpoints" / ".half.tmp").write_text("")
    Run.open(run_dir, CONFIG).close()
    (run_dir / "notes").mkdir()
    (run_dir / "notes" / "mine.txt").write_text("of the user")
    for name in ("config.yaml", "environment.json"):
        (run_dir / name).unlink()
    refused(run_dir, ConfigError, r"expected a run or nothing, found \['notes'\]")


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("keeps", [True, False])
def test_a_finished_run_keeps_its_result_alone_unless_asked(run_dir, keeps, killed, monkeypatch):
    """What another has put beside checkpoints stays when they go."""
    run_settings = settings.RunConfig(run_dir=str(run_dir), keep_checkpoints=keeps)
    config = replace(CONFIG, run=run_settings)
    with monkeypatch.context() as patch, Run.of(config) as run:
        for step in (2, 4):
            save_checkpoint(run, step, {"step": step})
        (run_dir / "checkpoints" / "notes.txt").write_text("another's")
        if killed:
            patch.setattr(Run, "_forget_checkpoints", lambda run: None)
        run.finish({})
    if killed:  # between the summary and that, in the midst of other removals
        there = {path.name for path in run_dir.glob("checkpoints/*")}
        assert there == {"notes.txt", "checkpoint-2", "checkpoint-4"}
        for half in ("checkpoint-1", "checkpoint-0"):
            (run_dir / "checkpoints" / half).mkdir()
        Run.of(config).close()
    left = {path.name for path in run_dir.glob("checkpoints/*")}
    assert left == {"notes.txt", *(("checkpoint-2", "checkpoint-4") if keeps else ())}
