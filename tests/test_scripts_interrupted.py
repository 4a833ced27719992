"""A script that is stopped, killed, or run on two processes ends as if nothing had been."""

import os
import random
import signal
import time
from dataclasses import replace

import pytest
from script_setups import RESULTS, config_of, contents, figures_of, run_here, start, start_two
from training_setups import exit_codes, logs

from lactchain.runs.run import Run, read_metrics


def stopped_and_resumed(weights, tmp_path, *words, **variables):
    """Has a signal end a rollout after some files, and the same command go on.

    Yields the process at each of these places; in the end all files are those of a whole run.
    """
    many, script = {"collect.num_episodes": 640}, "collect_rollouts"
    config = config_of(script, weights, tmp_path / "run", many)
    process = start(script, config, *words, **variables)
    while not (tmp_path / "run/trajectories/00002-of-00040.parquet").exists():
        assert process.is_alive(), logs(tmp_path / "run")
        time.sleep(0.005)
    yield process
    os.kill(process.pid, signal.SIGTERM)
    process.join()
    assert process.exitcode == 143, logs(tmp_path / "run")
    yield process
    assert "give the same command to go on" in logs(tmp_path / "run")
    kept = len(list((tmp_path / "run/trajectories").glob("*.parquet")))
    assert 1 <= kept < 40 and not (tmp_path / "run/summary.json").exists()
    resumed = run_here(script, config)
    whole = run_here(script, config_of(script, weights, tmp_path / "whole", many))
    assert figures_of(resumed) == figures_of(whole)
    assert contents(tmp_path / "run", script) == contents(tmp_path / "whole", script)


def test_a_signal_in_a_rollout_saves_and_the_same_command_goes_on(weights, tmp_path):
    assert len([*stopped_and_resumed(weights, tmp_path)]) == 2


def test_killed_at_random_times_a_script_ends_with_the_same_bits(finished, weights, tmp_path):
    script, draw = "train_critic", random.Random(0)
    config = config_of(script, weights, tmp_path / "run")
    for _ in range(3):
        process = start(script, config)
        process.join(draw.uniform(0.1, 1.5))
        process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL), logs(tmp_path / "run")
    run_here(script, config)
    assert contents(tmp_path / "run", script) == contents(finished(script), script)


def test_both_processes_end_when_the_folder_is_refused(weights, tmp_path):
    config = config_of("collect_rollouts", weights, tmp_path / "run")
    with Run.open(tmp_path / "run", config) as run:
        run.log({"loss": 1.0}, step=0)
    other = replace(config, run=replace(config.run, seed=1))
    assert exit_codes(start_two("collect_rollouts", other)) == [2, 2]
    assert "[rank 0] error: " in logs(tmp_path / "run")
    assert "run.seed was 0, now 1" in logs(tmp_path / "run")


def test_processes_that_do_not_share_a_folder_are_told_so(weights, tmp_path):
    """As two machines, each with a disk of its own under the same name."""
    configs = [config_of("collect_rollouts", weights, tmp_path / name) for name in ("a", "b")]
    assert exit_codes(start_two("collect_rollouts", *configs)) == [2, 2]
    for name, log in (("a", "a-0.log"), ("b", "b-1.log")):
        (line,) = (tmp_path / log).read_text().splitlines()
        assert f"error: {tmp_path / name}: not all processes see" in line
        assert "a file system that all machines share" in line and "--run.run_dir" in line


@pytest.mark.parametrize("script", ["train_critic", "train_simpo"])
def test_two_processes_play_as_one_does_and_one_of_them_speaks(script, finished, weights, tmp_path):
    run_dir, data = tmp_path / "run", RESULTS[script][0]
    ended = exit_codes(start_two(script, config_of(script, weights, run_dir)))
    assert ended == [0, 0], logs(run_dir)
    alone, together = contents(finished(script), script), contents(run_dir, script)
    assert together[data] == alone[data]
    policies = [  # what enumerating the actor's completions has left, in the runs that do so
        {path.name: path.read_bytes() for path in (folder / "policy").glob("*.parquet")}
        for folder in (run_dir, finished(script))
    ]
    assert policies[0] == policies[1]
    assert together["summary"].keys() == alone["summary"].keys()
    assert (tmp_path / "run-1.log").read_text() == ""
    assert "│" in (tmp_path / "run-0.log").read_text()
    steps = [record["step"] for record in read_metrics(run_dir)]
    assert steps == sorted(steps)
