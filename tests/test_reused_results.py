"""What one run has left, another one starts from: weights, episodes and pairs."""

import shutil
from dataclasses import replace

import pytest
from script_setups import (
    LORA,
    build_weights,
    config_of,
    contents,
    figures_of,
    finished_runs,
    run_here,
)

from lactchain.config.settings import RunConfig
from lactchain.data.preferences import read_pairs
from lactchain.data.trajectories import read_trajectories
from lactchain.errors import DataError
from lactchain.storage.manifests import verify_manifest


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return build_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def finished(weights, tmp_path_factory):
    return finished_runs(weights, tmp_path_factory.mktemp)


def test_an_actor_starts_from_any_run_or_checkpoint(finished, weights, tmp_path):
    simpo = finished("train_simpo")
    checkpoint = max((simpo / "checkpoints").iterdir())
    for number, model in enumerate((simpo / "actor", checkpoint, finished("train_bc") / "actor")):
        config = config_of("collect_rollouts", weights, tmp_path / str(number))
        actor = replace(config.actor, model=str(model))
        run_here("collect_rollouts", replace(config, actor=actor))
    played = [read_trajectories(tmp_path / str(n) / "trajectories") for n in range(3)]
    bare = read_trajectories(finished("collect_rollouts") / "trajectories")
    completions = [[a.logprobs for t in ts for a in t.actions] for ts in (*played, bare)]
    assert completions[0] == completions[1]  # the last checkpoint is the result
    assert completions[0] != completions[2] != completions[3]


def test_adapters_start_from_any_run_or_checkpoint(weights, tmp_path):
    config = config_of("train_simpo", weights, tmp_path / "first")
    config = replace(config, actor=replace(config.actor, lora=LORA))
    run_here("train_simpo", config)
    checkpoint = max((tmp_path / "first/checkpoints").iterdir())
    for number, adapter in enumerate((tmp_path / "first/actor", checkpoint)):
        actor = replace(config.actor, adapter=str(adapter))
        run = RunConfig(run_dir=str(tmp_path / str(number)))
        run_here("train_simpo", replace(config, run=run, actor=actor))
    assert contents(tmp_path / "0", "make_preferences")["pairs"]
    results = [tmp_path / n / "actor/adapter_model.safetensors" for n in ("first", "0", "1")]
    first, from_actor, from_checkpoint = (path.read_bytes() for path in results)
    assert first != from_actor == from_checkpoint


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_a_critic_starts_from_any_run_or_checkpoint_and_ranks_pairs(lora, weights, tmp_path):
    config = config_of("train_critic", weights, tmp_path / "first", compare_with_exact=False)
    config = replace(config, critic=replace(config.critic, lora=lora))
    run_here("train_critic", config)
    checkpoint = max((tmp_path / "first/checkpoints").iterdir())
    summaries = []
    for number, folder in enumerate((tmp_path / "first/critic", checkpoint)):
        critic = replace(config.critic, checkpoint=str(folder))
        run = RunConfig(run_dir=str(tmp_path / f"critic-{number}"))
        summaries.append(
            figures_of(run_here("train_critic", replace(config, run=run, critic=critic)))
        )
        pairs = config_of("make_preferences", weights, tmp_path / f"pairs-{number}")
        ranked = run_here("make_preferences", replace(pairs, critic=str(folder)))
        assert ranked["ranked_by"] == f"critic {folder}"
    assert summaries[0] == summaries[1]
    first, second = (read_pairs(tmp_path / f"pairs-{n}" / "pairs") for n in range(2))
    # A checkpoint is of the gradient steps: the head that is solved for behind them is not in it.
    assert first and {pair.prompt for pair in first} == {pair.prompt for pair in second}


def test_trajectories_and_pairs_of_other_runs_are_taken_instead_of_own_ones(
    finished, weights, tmp_path
):
    episodes = str(finished("collect_rollouts") / "trajectories")
    config = config_of("train_critic", weights, tmp_path / "critic", trajectories=episodes)
    run_here("train_critic", config)
    assert not (tmp_path / "critic/trajectories").exists()
    same = [f / "critic/model.safetensors" for f in (tmp_path / "critic", finished("train_critic"))]
    assert same[0].read_bytes() == same[1].read_bytes()
    pairs = str(finished("make_preferences") / "pairs")
    run_here("train_simpo", config_of("train_simpo", weights, tmp_path / "simpo", pairs=pairs))
    assert not (tmp_path / "simpo/pairs").exists()
    same = [f / "actor/model.safetensors" for f in (tmp_path / "simpo", finished("train_simpo"))]
    assert same[0].read_bytes() == same[1].read_bytes()
    cloned = run_here("train_bc", config_of("train_bc", weights, tmp_path / "bc", pairs=pairs))
    assert cloned["num_examples"] == len(read_pairs(pairs))


def test_damage_of_results_is_found_before_they_are_used(finished, weights, tmp_path):
    for script, name in (("train_critic", "critic"), ("train_simpo", "actor")):
        folder = tmp_path / name
        shutil.copytree(finished(script) / name, folder)
        assert verify_manifest(folder)["run_id"]
        file = folder / "model.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    config = config_of("make_preferences", weights, tmp_path / "1", critic=str(tmp_path / "critic"))
    with pytest.raises(DataError, match="critic/model.safetensors: damaged"):
        run_here("make_preferences", config)
    config = config_of("make_preferences", weights, tmp_path / "2")
    damaged = replace(config.actor, model=str(tmp_path / "actor"))
    with pytest.raises(DataError, match="actor/model.safetensors: damaged"):
        run_here("make_preferences", replace(config, actor=damaged))
