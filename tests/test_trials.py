"""Searches by trials as run folders: replayed from the seed, cut anywhere, the best returned."""

from dataclasses import replace

import pytest
from test_search_runs import PPO, SPACE, TRIALS, cut, run, texts

from lactchain.baselines.training import read_agent
from lactchain.errors import DataError
from lactchain.search import agents
from lactchain.storage.files import read_json_lines
from lactchain_extras import trials


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_trials_are_replayed_and_go_on_where_they_were_cut(tmp_path, monkeypatch, method):
    if method == "tpe":
        pytest.importorskip("optuna")
    whole = run(tmp_path / "whole", method=method)
    assert whole["num_trials"] == 4
    cut(monkeypatch, tmp_path / "cut", agents.Arena, "train", 6, method=method)  # third trial
    assert len(read_json_lines(tmp_path / "cut" / "trials.jsonl")) == 5
    assert run(tmp_path / "cut", method=method) == whole
    assert texts(tmp_path / "whole", "trials.jsonl") == texts(tmp_path / "cut", "trials.jsonl")


def test_metrics_that_do_not_tell_what_the_trials_do_are_refused(tmp_path, monkeypatch):
    cut(monkeypatch, tmp_path / "cut", agents.Arena, "judge", 5, method="random")
    path = tmp_path / "cut/metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    with pytest.raises(DataError, match=r"metrics.jsonl: missing or damaged.* put a copy back"):
        run(tmp_path / "cut", method="random")


def test_the_median_pruner_gives_trials_up(tmp_path):
    pytest.importorskip("optuna")
    trials = replace(TRIALS, num_trials=12, prune=True)
    run(tmp_path / "run", method="tpe", trials=trials)
    lines = read_json_lines(tmp_path / "run" / "trials.jsonl")
    assert any(line["is_final"] and line["steps"] == 64 for line in lines)


def test_optuna_hears_what_became_of_every_trial():
    optuna = pytest.importorskip("optuna")
    sampler = trials.TPESampler(PPO, SPACE, seed=0, prune=True)
    for number in range(6):
        sampler.ask()
        given_up = sampler.hear(64, -1.0 if number == 5 else float(number), is_last=False)
        assert given_up == (number == 5)
        if not given_up:
            assert sampler.hear(128, 10.0 * number, is_last=True)
    heard = [trial for trial in sampler.study.trials if trial.state != optuna.trial.TrialState.FAIL]
    assert [trial.value for trial in heard] == [0.0, 10.0, 20.0, 30.0, 40.0, -1.0]
    assert heard[-1].state == optuna.trial.TrialState.PRUNED


def test_evaluations_on_the_way_are_counted_apart(tmp_path):
    run(tmp_path / "run", method="random")
    lines = read_json_lines(tmp_path / "run" / "trials.jsonl")
    first, second = lines[0], lines[1]
    spent = first["num_env_steps"] - 64
    assert spent > 0 and first["num_final_env_steps"] == first["num_env_steps"] - spent
    assert second["num_final_env_steps"] == second["num_env_steps"] - spent


def test_the_best_trial_is_the_returned_one(tmp_path):
    summary = run(tmp_path / "run", method="random")
    lines = read_json_lines(tmp_path / "run" / "trials.jsonl")
    best = max(lines, key=lambda line: line["fitness"])
    assert (
        summary["best/fitness"] == best["fitness"] and summary["best/tunables"] == best["tunables"]
    )
    agent = read_agent(tmp_path / "run" / "best")
    assert list(agent.config.hidden) == best["hidden"]
