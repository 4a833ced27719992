"""What a run saved opens by its folder alone, and answers and values as it did in the run."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from script_setups import GRID, LORA, TRAINING, build_weights, config_of, run_here

import lactchain
from lactchain.config.settings import RunConfig
from lactchain.config.token_values import ValueConfig
from lactchain.environments.language import make_language_env
from lactchain.errors import DataError
from lactchain.models.actor import LanguageActor
from lactchain.stages.train_mc import TrainMCConfig

STATES = ["0 0 up 1 1", "1 0 left 0 1"]
SEEDS = [3, 4]
NEW, OLD = "policy.json", "config.yaml"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return build_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module", params=["all weights", "adapter"])
def simpo(request, weights, tmp_path_factory):
    """A finished run of SimPO, and its configuration."""
    config = config_of("train_simpo", weights, tmp_path_factory.mktemp("runs") / "simpo")
    lora = LORA if request.param == "adapter" else None
    config = replace(config, actor=replace(config.actor, lora=lora, strategy="direct"))
    run_here("train_simpo", config)
    return config


def actor_of(config, folder):
    """The actor of a run, put together by hand."""
    adapted = config.actor.lora is not None
    where = {"adapter": str(folder)} if adapted else {"model": str(folder)}
    grammar = make_language_env(config.environment).grammar
    return LanguageActor.from_config(replace(config.actor, **where), grammar)


def test_an_actor_is_asked_as_it_was_trained(simpo, tmp_path):
    folder = f"{simpo.run.run_dir}/actor"
    expected = actor_of(simpo, folder).act(STATES, SEEDS)
    assert lactchain.load_policy(folder).act(STATES, SEEDS) == expected
    assert lactchain.load_policy(simpo.run.run_dir).act(STATES, SEEDS) == expected
    greedy = lactchain.load_policy(folder, temperature=0.0)
    assert greedy.act(STATES, [1, 2]) == greedy.act(STATES, [5, 6])


def test_a_folder_that_does_not_say_how_its_actor_is_asked_is_refused(simpo, tmp_path):
    alone = shutil.copytree(f"{simpo.run.run_dir}/actor", tmp_path / "alone")
    (alone / "manifest.json").unlink()
    (alone / NEW).unlink()
    with pytest.raises(DataError, match=r"policy.json: no such file; expected an actor that train"):
        lactchain.load_policy(alone)
    (alone / NEW).write_text('{"actor": {}}')
    with pytest.raises(DataError, match=r"policy.json: damaged"):
        lactchain.load_policy(alone)


def test_folders_that_hold_nothing_of_the_kind_are_refused(simpo, tmp_path):
    for load in (lactchain.load_policy, lactchain.load_critic, lactchain.load_values):
        with pytest.raises(DataError, match="no such folder; expected a run, or what it saved"):
            load(tmp_path / "none")
    with pytest.raises(DataError, match="this run has saved no critic; name one that has"):
        lactchain.load_critic(simpo.run.run_dir)


def test_critics_and_values_are_found_in_their_runs(weights, tmp_path):
    config = config_of("train_critic", weights, tmp_path / "critic")
    run_here("train_critic", config)
    critic = lactchain.load_critic(tmp_path / "critic")
    assert (critic.gamma, critic.mode, critic.discount_per) == (0.9, "value", "action")
    inside = lactchain.load_critic(tmp_path / "critic/critic")
    np.testing.assert_array_equal(inside.values(STATES), critic.values(STATES))
    values = TrainMCConfig(
        run=RunConfig(run_dir=str(tmp_path / "mc")),
        environment=GRID,
        actor=config.actor,
        trajectories=str(tmp_path / "critic/trajectories"),
        mc=ValueConfig(cloning_weight=1.0),
        training=replace(TRAINING, max_steps=2),
    )
    run_here("train_mc", values)
    assert lactchain.load_values(tmp_path / "mc").meaning.method == "mc"
    # The trunk is a policy too, where it was trained to be one.
    assert len(lactchain.load_policy(tmp_path / "mc/values").act(STATES, SEEDS)) == 2


def test_the_last_actor_and_critic_of_a_pipeline_are_at_its_top(weights, tmp_path):
    config = config_of("run_pipeline", weights, tmp_path / "run", num_rounds=1)
    summary = run_here("run_pipeline", config)
    policy = lactchain.load_policy(tmp_path / "run/actor")
    assert policy.name.startswith(str(tmp_path / "run/actor"))
    assert lactchain.load_critic(tmp_path / "run").gamma == 0.9
    assert json.loads((tmp_path / "run/summary.json").read_text())["actor"] == summary["actor"]
