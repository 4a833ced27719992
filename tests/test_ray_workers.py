"""Workers of Ray make the rows that one process makes, whoever of them dies.

Tests that begin some need Ray, which takes 79 MB, and leave out what they test without it.
"""

import os
import signal
import sys
import threading

import psutil
import pytest
from conftest import OFFLINE, ROOT
from script_setups import GRID, Says, config_of, contents, run_here, start
from test_scripts_interrupted import stopped_and_resumed
from training_setups import exit_codes, logs

from lactchain.data.episodes import sampled_episodes
from lactchain.data.rollouts import Rollouts
from lactchain.errors import ConfigError, EnvironmentFault, Interrupted, ProcessLost
from lactchain.runs import distributed
from lactchain_extras import serving

SCRIPTS = ["collect_rollouts", "make_preferences", "evaluate"]
cluster = lambda test: pytest.mark.slow(pytest.mark.timeout(400)(test))  # noqa: E731


class Dies(Says):
    """A policy that kills its process, the first so many times that it is asked."""

    def __init__(self, folder, times):
        super().__init__('["forward"]', "no chain")
        self.folder, self.times = folder, times

    def act(self, observations, seeds):
        deaths = len(list(self.folder.glob("death-*")))
        if deaths < self.times:
            (self.folder / f"death-{deaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().act(observations, seeds)


class Raises(Says):
    def act(self, observations, seeds):
        raise EnvironmentFault("the world has ended")


class Locked(Says):
    def __init__(self):
        self.lock = threading.Lock()


def variables():
    """The PYTHONPATH of Ray's processes, who talk by this machine's address, not by loopback."""
    paths = os.environ["PYTHONPATH"].split(os.pathsep)
    kept = [path for path in paths if path != OFFLINE]
    return {"PYTHONPATH": os.pathsep.join([*kept, str(ROOT), str(ROOT / "tests")])}


@pytest.fixture(scope="module")
def two():
    ray = pytest.importorskip("ray")
    from lactchain_extras.serving import ray_workers

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", variables()["PYTHONPATH"])
        ray_workers._join(2)
    workers = serving.workers("ray:2")
    yield workers
    workers.end()
    ray.shutdown()


@pytest.fixture
def play(two, monkeypatch, tmp_path):
    """Plays a few episodes, file by file, by the two workers."""
    monkeypatch.setattr(distributed, "made", two)

    def play(policy, folder="rows"):
        rollouts = Rollouts(GRID, 4)
        episodes = sampled_episodes(rollouts.env, 16, 0)
        return rollouts.collect(policy, episodes, tmp_path / folder, 4)[0]

    return play


@cluster
@pytest.mark.parametrize("script", SCRIPTS)
def test_two_workers_make_the_files_of_one_process_byte_by_byte(
    script, two, finished, weights, tmp_path, monkeypatch
):
    before, alone, run_dir = distributed.cpu_elsewhere, finished(script), tmp_path / "run"
    monkeypatch.setattr(distributed, "made", two)
    run_here(script, config_of(script, weights, run_dir))
    assert contents(run_dir, script) == contents(alone, script)
    files = [path.relative_to(alone) for path in alone.rglob("*.parquet")]
    assert files
    for file in files:
        assert (run_dir / file).read_bytes() == (alone / file).read_bytes()
    assert distributed.cpu_elsewhere > before


@cluster
def test_a_piece_whose_worker_is_killed_is_made_all_the_same(play, tmp_path):
    rows = play(Dies(tmp_path, 1))
    assert len(list(tmp_path.glob("death-*"))) == 1
    assert rows == play(Dies(tmp_path, 0), "others") and len(rows) == 16


@cluster
def test_a_piece_that_kills_workers_ends_a_command_that_goes_on(play, two, tmp_path, monkeypatch):
    two.end()
    monkeypatch.setattr("lactchain_extras.serving.ray_workers.RETRIES", 0)
    with pytest.raises(ProcessLost, match="1 of them have died at piece .*the same command"):
        play(Dies(tmp_path, 2))
    assert len(play(Dies(tmp_path, 0))) == 16


@cluster
def test_errors_of_a_worker_are_raised_here_as_they_are_and_what_cannot_be_sent_is_refused(play):
    with pytest.raises(EnvironmentFault, match="^the world has ended$"):
        play(Raises("x"))
    with pytest.raises(ConfigError, match="--workers: what plays cannot be sent"):
        play(Locked())


@cluster
def test_a_signal_ends_the_workers_and_the_same_command_goes_on(two, weights, tmp_path):
    places = stopped_and_resumed(weights, tmp_path, "--workers", "ray:2", **variables())
    begun = psutil.Process(next(places).pid).children(recursive=True)
    begun = [other for other in begun if "_Worker" in other.name()]
    assert len(begun) == 2
    next(places)
    assert psutil.wait_procs(begun, timeout=20)[1] == [] and [*places] == []


@cluster
def test_more_workers_than_the_cluster_has_room_for_are_refused(two):
    with pytest.raises(ConfigError, match="expected at most 2 workers of 1 CPUs .* got 3"):
        list(serving.workers("ray:3")(str, [("a", 0)], lambda: None))


def test_a_cluster_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr(pytest.importorskip("ray"), "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    pieces = iter([("a", 0)])
    with pytest.raises(ConfigError, match="--workers: no cluster of Ray at 127.0.0.1:1"):
        next(serving.workers("ray:4")(str, pieces, lambda: None))


def test_a_signal_while_the_cluster_begins_stops_the_command(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda *_, **__: sys.exit(15))
    with pytest.raises(Interrupted) as stop:
        list(serving.workers("ray:5")(str, [("a", 0)], lambda: None))
    assert stop.value.exit_code == 143


def test_without_ray_or_beside_a_launcher_workers_are_refused(monkeypatch):
    monkeypatch.setattr(serving, "find_spec", lambda name: name)
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    with pytest.raises(ConfigError, match="--workers: expected a single process, got 2"):
        serving.workers("ray:2")
    monkeypatch.setattr(serving, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="--workers: expected Ray; pip install"):
        serving.workers("ray:2")


def test_a_command_with_other_words_ends_with_one_line(weights, tmp_path):
    config = config_of("collect_rollouts", weights, tmp_path / "run")
    assert exit_codes([start("collect_rollouts", config, "--workers", "ray:0")]) == [2]
    line = "error: --workers: expected ray:N, N of at least 1, got ray:0\n"
    assert logs(tmp_path / "run") == line and not (tmp_path / "run").exists()


def test_where_nothing_is_to_be_made_no_workers_begin():
    ray = pytest.importorskip("ray")
    begun = ray.is_initialized()
    assert list(serving.workers("ray:9")(str, iter([]), lambda: None)) == []
    assert ray.is_initialized() == begun
