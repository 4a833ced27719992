"""How far a policy has moved is measured, bounded, and the same after a stop."""

import math
from dataclasses import replace

import pytest
import torch
from script_setups import config_of, run_here

from lactchain import Action, DataError, make_language_env, open_run, read_pairs, write_pairs
from lactchain.functional.losses import kl_from_sampler, kl_to_sampler
from lactchain.models.actor import load_player
from lactchain.runs.run import read_metrics

LIMIT = 0.05


def test_both_divergences_are_those_of_the_distributions():
    p, q = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.2, 0.2, 0.6]).double()
    ratios = (q / p).log()
    from_sampler, to_sampler = (p * ratios.neg()).sum(), (q * ratios).sum()
    torch.testing.assert_close((p * kl_from_sampler(ratios)).sum(), from_sampler)
    torch.testing.assert_close((p * kl_to_sampler(ratios)).sum(), to_sampler)
    assert (kl_from_sampler(ratios) >= 0).all() and (kl_to_sampler(ratios) >= 0).all()


def destroying(weights, run_dir, **simpo):
    """SimPO at a learning rate that destroys any model."""
    values = {"actor.decoding": "free", "training.learning_rate": 0.3, "training.max_steps": 6}
    values |= {f"loss.{name}": value for name, value in simpo.items()}
    return config_of("train_simpo", weights, run_dir, values)


@pytest.fixture(scope="module")
def free(weights, tmp_path_factory):
    """A training without a bound: its folder and its summary."""
    run_dir = tmp_path_factory.mktemp("free") / "run"
    return run_dir, run_here("train_simpo", destroying(weights, run_dir))


def test_a_step_that_would_destroy_ends_at_the_bound_and_the_training_too(free, weights, tmp_path):
    config = destroying(weights, tmp_path / "bound", target_kl=LIMIT)
    bound = run_here("train_simpo", config)
    assert free[1]["kl_from_sampling"] > 1
    assert 0 <= bound["kl_from_sampling"] <= LIMIT and bound["kl_to_sampling"] >= 0
    records = [r for r in read_metrics(tmp_path / "bound") if "kl/from_sampling" in r]
    assert 3 <= records[-1]["step"] < 6
    rates = [record["train/learning_rate"] for record in records]
    assert all(later <= 0.3 / 2 for later in rates[1:])  # half the rate behind the first cut
    trained = (tmp_path / "bound/actor/model.safetensors").read_bytes()
    (tmp_path / "bound/summary.json").unlink()
    again = run_here("train_simpo", config)
    assert (tmp_path / "bound/actor/model.safetensors").read_bytes() == trained
    assert again["kl_from_sampling"] == bound["kl_from_sampling"]


def test_a_bound_needs_what_the_policy_said(free, weights, tmp_path):
    pairs = read_pairs(free[0] / "pairs")
    assert all(pair.sampled_logprobs and sum(pair.sampled_logprobs) < 0 for pair in pairs)
    write_pairs(tmp_path / "pairs.parquet", [replace(p, sampled_logprobs=()) for p in pairs])
    config = destroying(weights, tmp_path / "other", target_kl=LIMIT)
    with pytest.raises(DataError, match="loss.target_kl is measured by, found none; make the"):
        run_here("train_simpo", replace(config, pairs=str(tmp_path / "pairs.parquet")))
    with pytest.raises(ValueError, match="decoding: expected free, at temperature 1"):
        replace(config, actor=replace(config.actor, decoding="constrained"))
    unbound = replace(destroying(weights, tmp_path / "unbound"), pairs=config.pairs)
    assert not math.isnan(run_here("train_simpo", unbound)["kl_from_sampling"])


def test_how_probable_a_training_has_left_its_pairs_is_kept(weights, tmp_path):
    config = config_of("train_simpo", weights, tmp_path / "run")
    run_here("train_simpo", config)
    view = open_run(tmp_path / "run")
    assert [*view.pairs_after] == [*range(len(view.pairs))]
    trained = replace(config.actor, decoding="free", model=str(tmp_path / "run/actor"))
    actor = load_player(trained, make_language_env(config.environment).grammar)
    for place, pair in enumerate(view.pairs):
        said = [(pair.chosen, pair.chosen_token_ids), (pair.rejected, pair.rejected_token_ids)]
        expected = actor.log_probs([pair.prompt], [Action(*each) for each in said])[0].tolist()
        assert view.pairs_after[place] == pytest.approx(expected, abs=1e-4)
