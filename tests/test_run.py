"""Run folders: continued by the same command, closed to any other."""

import errno
import logging
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from run_setups import Config, start

from lactchain.config import settings
from lactchain.config.parsing import load, parse
from lactchain.errors import ConfigError, DataError, DiskError
from lactchain.runs import distributed, process
from lactchain.runs.run import Run
from lactchain.storage.manifests import verify_manifest, write_manifest


def leave_something(run_dir: Path) -> Run:
    """A run that has produced something, closed."""
    with Run.open(run_dir, Config()) as run:
        run.log({"loss": 1.0}, step=0)
    return run


def test_a_folder_holds_a_configuration_that_makes_the_same_run(run_dir):
    config = parse(Config, ["--critic.lora.r", "8", "--training.learning_rate", "1e-5"])
    with Run.open(run_dir, config) as run:
        again = parse(Config, ["--config", str(run_dir / "config.yaml")])
    assert again == config
    with Run.open(run_dir, again) as continued:
        assert continued.id == run.id


def test_a_run_that_was_left_says_so_when_it_goes_on(run_dir, caplog):
    with caplog.at_level(logging.INFO):
        leave_something(run_dir)  # os._exit of an environment leaves as little
        assert "unfinished" not in caplog.text
        Run.open(run_dir, Config()).finish({})
        assert caplog.text.count(f"{run_dir}: was left unfinished, and goes on") == 1
        Run.open(run_dir, Config()).close()
    assert caplog.text.count("unfinished") == 1


def test_a_summary_that_nothing_vouches_for_does_not_end_a_run(run_dir):
    """As after a kill between the two: it would be believed with any bit flipped."""
    leave_something(run_dir)
    (run_dir / "summary.manifest").mkdir()  # its manifest cannot be written
    with Run.open(run_dir, Config()) as run, pytest.raises(DiskError, match="summary.manifest"):
        run.finish({})
    assert not run.finished
    (run_dir / "summary.manifest").rmdir()
    Run.open(run_dir, Config()).finish({"loss": 1.0})
    assert run.finished and run.summary == {"loss": 1.0}


def test_another_configuration_is_refused_with_its_differences(run_dir):
    leave_something(run_dir)
    other = replace(Config(), critic=replace(Config().critic, gamma=0.5))
    for _ in range(2):  # a refusal leaves the folder as it was, and unlocked
        with pytest.raises(ConfigError, match=r"critic.gamma was 0.99, now 0.5\)"):
            Run.open(run_dir, other)
    Run.open(run_dir, Config()).close()


def of_stage(run_dir: Path, base: Path) -> Config:
    """A stage in a folder of a run, on a base model."""
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
    harmless = settings.RunConfig(
        run_dir="elsewhere", report_to=["wandb"], resume="must", timeout_minutes=5
    )
    training = settings.TrainingConfig(extra={"logging_steps": 3}, save_every_updates=5)
    with caplog.at_level(logging.INFO):
        second = Run.open(run_dir, replace(Config(), run=harmless, training=training))
    assert second.id == first.id
    assert "run.report_to was [], now ['wandb']" in caplog.text
    second.close()
    assert "logging_steps: 3" in (run_dir / "config.yaml").read_text()


def test_resume_never_refuses_a_run_and_must_refuses_none(run_dir):
    with pytest.raises(ConfigError, match="resume is must"):
        Run.open(run_dir, Config(), resume="must")
    with Run.open(run_dir, Config(), resume="never") as run:
        run.log({"loss": 1.0}, step=0)
    with pytest.raises(ConfigError, match="resume is never"):
        Run.open(run_dir, Config(), resume="never")
    Run.open(run_dir, Config(), resume="must").close()


@pytest.mark.parametrize("content", [None, "run: {seed: 7}\n", "run: ["])
def test_settings_for_people_are_written_anew_where_they_were_lost(run_dir, content):
    leave_something(run_dir)
    file = run_dir / "config.yaml"
    stored = file.read_bytes()
    file.unlink() if content is None else file.write_text(content)
    other = replace(Config(), run=settings.RunConfig(seed=1))
    with pytest.raises(ConfigError, match="run.seed was 0, now 1"):
        Run.open(run_dir, other)
    with Run.open(run_dir, Config(), resume="must"):
        assert file.read_bytes() == stored


def test_a_run_whose_record_was_lost_goes_on_only_where_it_is_told_to(run_dir, monkeypatch):
    run = with_a_part(run_dir)
    (run_dir / "environment.json").unlink()
    with pytest.raises(DataError, match="environment.json: missing, .*; put a copy back; or add"):
        Run.open(run_dir, Config())
    monkeypatch.setattr(process, "_inexact", True)
    with pytest.raises(ConfigError, match="run.seed was 0, now 1"):
        Run.open(run_dir, replace(Config(), run=settings.RunConfig(seed=1)))
    with Run.open(run_dir, Config()) as again:
        assert again.id == run.id
        verify_manifest(run_dir / "checkpoints/checkpoint-1")


def test_the_record_of_another_run_is_refused(run_dir, tmp_path):
    leave_something(run_dir)
    with Run.open(tmp_path / "other", replace(Config(), run=settings.RunConfig(seed=1))) as other:
        other.log({"loss": 1.0}, step=0)
    shutil.copy(tmp_path / "other/environment.json", run_dir)
    with pytest.raises(DataError, match="environment.json: tells of another run than config.yaml"):
        Run.open(run_dir, Config())


def test_a_folder_of_other_things_is_not_taken_over(run_dir):
    run_dir.mkdir()
    (run_dir / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"expected a run or nothing, found \['thesis.tex'\]"):
        Run.open(run_dir, Config())
    assert not (run_dir / "config.yaml").exists()


def test_what_another_process_writes_when_this_one_ends_belongs_to_the_run(run_dir, monkeypatch):
    with pytest.raises(OSError), Run.open(run_dir, Config()):
        monkeypatch.setattr("lactchain.runs.run.distributed.world_size", lambda: 2)
        raise OSError
    monkeypatch.undo()
    (run_dir / "pairs").mkdir()
    (run_dir / "pairs" / "shard.parquet").write_bytes(b"1")
    with Run.open(run_dir, Config()) as run:
        assert not run.finished


def test_a_command_that_produced_nothing_leaves_nothing_and_claims_nothing(run_dir):
    with pytest.raises(ZeroDivisionError), Run.open(run_dir, Config()) as run:
        run.path("round_1/checkpoints").mkdir(parents=True)
        1 / 0  # noqa: B018
    assert not run_dir.exists()
    first = Run.open(run_dir, Config())  # killed, before there was anything
    (run_dir / "sizes.json").write_text("{}")
    first.close()
    other = replace(Config(), critic=replace(Config().critic, gamma=0.5))
    with Run.open(run_dir, other) as second:
        assert second.id != first.id and not (run_dir / "sizes.json").exists()
        assert load(run_dir / "config.yaml")["critic"]["gamma"] == 0.5


def test_what_was_produced_stays_when_a_command_fails(run_dir):
    run_dir.mkdir()
    (run_dir / ".notes").touch()
    with pytest.raises(ZeroDivisionError), Run.open(run_dir, Config()):
        1 / 0  # noqa: B018
    assert [path.name for path in run_dir.iterdir()] == [".notes"]
    with pytest.raises(ZeroDivisionError), Run.open(run_dir, Config()) as run:
        run.log({"loss": 1.0}, step=0)
        1 / 0  # noqa: B018
    assert {path.name for path in run_dir.iterdir()} >= {"config.yaml", "metrics.jsonl", "lock"}


def test_a_file_of_somebody_elses_is_no_trace_of_a_run(run_dir):
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text("mine: 1\n")
    with pytest.raises(DataError, match="environment.json: missing"):
        Run.open(run_dir, Config())
    assert (run_dir / "config.yaml").read_text() == "mine: 1\n"


def test_a_file_in_the_place_of_the_folder_is_called_that(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"run.run_dir: expected a folder, got the file .*/file;"):
        Run.open(tmp_path / "file", Config())


@pytest.mark.parametrize("folder", ["file/run", "x" * 300])
def test_a_folder_that_cannot_be_made_is_a_disk_error(tmp_path, folder):
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match=f"{folder}: could not be written"):
        Run.open(tmp_path / folder, Config())


HOLDER = """
import sys
import time
from run_setups import Config
from lactchain.runs.run import Run
run = Run.open(sys.argv[1], Config())
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_dies(run_dir):
    with start(HOLDER, run_dir) as holder:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(ConfigError, match=f"process {holder.pid} works in this folder"):
            Run.open(run_dir, Config())
        holder.kill()
    Run.open(run_dir, Config()).close()


def test_a_finished_run_says_so_when_it_is_given_again(run_dir, caplog):
    Run.open(run_dir, Config()).finish({})
    with caplog.at_level(logging.INFO), Run.open(run_dir, Config()) as run:
        assert run.finished
    assert "finished, see summary.json" in caplog.text


def test_a_process_waits_with_its_end_until_the_run_has_its_summary(run_dir, monkeypatch):
    run, seen = Run.open(run_dir, Config()), []
    monkeypatch.setattr(distributed, "barrier", lambda: seen.append(run.finished))
    run.finish({})
    assert seen == [True]


def with_a_part(run_dir: Path) -> Run:
    """A run with a part that names it."""
    run = leave_something(run_dir)
    part = run_dir / "checkpoints/checkpoint-1"
    part.mkdir(parents=True)
    (part / "weights").write_text("1")
    write_manifest(part, {})
    return run


@pytest.mark.parametrize("number", [0, 1])
def test_a_run_goes_on_after_a_kill_between_the_files_that_say_what_it_is(
    run_dir, number, monkeypatch
):
    before = with_a_part(run_dir)
    replaced, kept = [], os.replace

    def replace_once(source: Path, target: Path) -> None:
        if len(replaced) == number:
            raise KeyboardInterrupt
        replaced.append(target)
        kept(source, target)

    monkeypatch.setattr("os.replace", replace_once)
    with pytest.raises(KeyboardInterrupt):
        Run.open(run_dir, Config())
    monkeypatch.undo()
    with Run.open(run_dir, Config()) as run:
        assert len(replaced) == number and run.id == before.id
        verify_manifest(run_dir / "checkpoints/checkpoint-1")


def test_what_tells_of_no_run_is_refused_as_its_name_and_not_written_on(run_dir):
    leave_something(run_dir)
    for text in ('{"manifest": {"files": {"/etc/passwd": 1}}}', "{}"):
        (run_dir / "environment.json").write_text(text)
        with pytest.raises(DataError, match="environment.json: damaged.*; put a copy back"):
            Run.open(run_dir, Config())
        assert (run_dir / "environment.json").read_text() == text


def test_a_lock_that_is_a_link_is_refused_and_what_it_leads_to_is_left_alone(run_dir):
    run_dir.mkdir(parents=True)
    precious = run_dir.parent / "precious.txt"
    precious.write_text("mine")
    (run_dir / "lock").symlink_to(precious)
    with pytest.raises(ConfigError, match="lock: expected a plain file, got a link or folder"):
        Run.open(run_dir, Config())
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("name", ["wandb/debug-core.log", "critic/wandb/debug.log", ".notes"])
def test_a_link_that_is_never_read_back_may_lead_anywhere(run_dir, tmp_path, name):
    leave_something(run_dir)
    (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
    (run_dir / name).symlink_to(tmp_path)
    Run.open(run_dir, Config()).close()


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints"])
def test_a_link_out_of_a_run_is_refused(run_dir, tmp_path, name):
    Run.open(run_dir, Config()).close()
    (run_dir / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=f"{name}: expected a plain file or folder"):
        Run.open(run_dir, Config())


def test_a_pipe_is_refused_and_a_link_in_a_loop_hangs_nobody(run_dir):
    leave_something(run_dir)
    (run_dir / "a").symlink_to("a")
    Run.open(run_dir, Config()).close()
    os.mkfifo(run_dir / "sizes.json")
    with pytest.raises(ConfigError, match="sizes.json: expected a plain file or folder"):
        Run.open(run_dir, Config())


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_that_does_not_lock_is_named(run_dir, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(
        DiskError, match=f"{run_dir}: .*{os.strerror(code)}.*--run.run_dir"
    ) as error:
        Run.open(run_dir, Config())
    assert error.value.exit_code == 5 and "\n" not in str(error.value)
    monkeypatch.undo()
    Run.open(run_dir, Config()).close()


def test_forked_children_do_not_keep_the_folder_locked(run_dir):
    source = HOLDER + "import os, time\nif os.fork() == 0: time.sleep(60)\n"
    source = source.replace("sys.stdin.read()\n", "").replace('print("open", flush=True)\n', "")
    with start(source + 'print("open", flush=True)', run_dir, start_new_session=True) as holder:
        assert holder.stdout.readline() == "open\n"
        assert holder.wait(20) == 0
        Run.open(run_dir, Config()).close()
        os.killpg(holder.pid, signal.SIGKILL)


def test_a_run_that_was_killed_before_it_wrote_anything_begins_again(run_dir):
    Run.open(run_dir, Config()).close()
    (run_dir / "checkpoints").mkdir()
    (run_dir / "checkpoints" / ".half.tmp").write_text("")
    Run.open(run_dir, Config()).close()
    (run_dir / "notes").mkdir()
    (run_dir / "notes" / "mine.txt").write_text("of the user")
    (run_dir / "config.yaml").unlink()
    (run_dir / "environment.json").unlink()
    with pytest.raises(ConfigError, match=r"expected a run or nothing, found \['notes'\]"):
        Run.open(run_dir, Config())


def test_a_run_around_another_leaves_it_as_it_is(run_dir):
    inner = Run.open(run_dir / "a", Config())
    mine = run_dir / "sub" / "lock"
    mine.parent.mkdir()
    mine.write_text("of the user")
    with pytest.raises(ConfigError, match="expected a run or nothing"):
        Run.open(run_dir, Config())
    assert (run_dir / "a/config.yaml").is_file() and (run_dir / "a/lock").is_file()
    assert mine.read_text() == "of the user"
    inner.close()


def test_what_ended_a_run_is_told_though_its_folder_cannot_go(tmp_path, monkeypatch):
    place = tmp_path / "place"
    place.mkdir()
    (tmp_path / "link").symlink_to(place)
    with pytest.raises(ValueError, match="the fault"), Run.open(tmp_path / "link", Config()):
        raise ValueError("the fault")
    assert (tmp_path / "link").is_symlink() and not list(place.iterdir())
    monkeypatch.chdir(place)
    with pytest.raises(ValueError, match="the fault"), Run.open(".", Config()):
        raise ValueError("the fault")


def test_a_run_that_must_be_there_is_not_forgotten(run_dir):
    Run.open(run_dir, Config()).close()
    Run.open(run_dir, Config(), resume="must").close()
    assert (run_dir / "config.yaml").is_file()
