"""Cloning ends when the actor reads, and says so where it never does."""

from dataclasses import replace

import pytest
from script_setups import BEHAVIOR, config_of, run_here

from lactchain.errors import ConfigError
from lactchain.runs.run import read_metrics


def cloning(weights, run_dir, **changes):
    """Shortest paths on the 2x2 grid: learnt in some 60 updates."""
    config = config_of("train_bc", weights, run_dir)
    behavior = replace(BEHAVIOR, num_chains=9600, competent_fraction=1.0)
    training = replace(config.training, learning_rate=2e-2, batch_size=32)
    return replace(config, behavior=behavior, training=training, **changes)


def test_the_cloning_ends_once_the_actor_reads_and_is_then_finished(weights, tmp_path):
    config = cloning(weights, tmp_path / "run", min_skill=0.05)
    summary = run_here("train_bc", config)
    assert summary["retrieval_skill"] >= 0.05 and summary["answered_rate"] >= 0.9
    assert 0 < summary["num_examples"] < 9600
    looks = [r for r in read_metrics(tmp_path / "run") if "reading/answered_rate" in r]
    assert looks
    trained = (tmp_path / "run/actor/model.safetensors").read_bytes()
    (tmp_path / "run/summary.json").unlink()
    again = run_here("train_bc", config)
    assert again["num_examples"] == summary["num_examples"]
    assert again["retrieval_skill"] == summary["retrieval_skill"]
    assert (tmp_path / "run/actor/model.safetensors").read_bytes() == trained


def test_an_actor_that_does_not_read_is_an_error_that_says_what_to_do(weights, tmp_path):
    config = cloning(weights, tmp_path / "run", min_skill=0.9)
    few = replace(config, behavior=replace(config.behavior, num_chains=64))
    with pytest.raises(ConfigError, match=r"min_skill: .* after 64 chains: .* clone longer"):
        run_here("train_bc", few)
    assert (tmp_path / "run/actor/model.safetensors").is_file()
    assert not (tmp_path / "run/summary.json").exists()
