"""Cloning ends when the actor reads, and says so where it never does."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
from script_setups import BEHAVIOR, config_of, run_here

from lactchain.errors import ConfigError
from lactchain.runs.run import read_metrics
from lactchain.stages.train_bc import require_reading


def cloning(weights, run_dir, **changes):
    """Shortest paths on the 2x2 grid: learnt in some 60 updates."""
    config = config_of("train_bc", weights, run_dir)
    behavior = replace(BEHAVIOR, num_chains=9600, competent_fraction=1.0)
    training = replace(config.training, learning_rate=2e-2, batch_size=32)
    return replace(config, behavior=behavior, training=training, **changes)


def test_the_cloning_ends_once_the_actor_reads_and_is_then_finished(weights, tmp_path):
    config = cloning(weights, tmp_path / "run", target_skill=0.05)
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
    config = cloning(weights, tmp_path / "run", target_skill=0.9)
    few = replace(config, behavior=replace(config.behavior, num_chains=64))
    said = r"target_skill: .* skill of 0.2 .* after 64 chains: .* clone longer"
    with pytest.raises(ConfigError, match=said):
        run_here("train_bc", few)
    assert (tmp_path / "run/actor/model.safetensors").is_file()
    assert not (tmp_path / "run/summary.json").exists()


@pytest.mark.parametrize(("skill", "answered", "goes_on"), [
    (0.85, 1.0, True), (0.76, 1.0, True), (0.21, 1.0, True), (0.19, 1.0, False), (0.76, 0.8, False),
])  # fmt: skip
def test_an_actor_below_its_target_goes_on_if_it_reads(skill, answered, goes_on, weights, tmp_path):
    config = cloning(weights, tmp_path / "run", target_skill=0.8)
    figures = {"retrieval_skill": skill, "answered_rate": answered}
    with nullcontext() if goes_on else pytest.raises(ConfigError, match="after 5120 chains"):
        assert require_reading(figures, config, 5120) == figures
