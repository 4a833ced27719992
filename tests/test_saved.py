"""What a run saved opens by its folder alone, and answers and values as it did in the run."""

import shutil
from dataclasses import replace

import cloudpickle
import pytest
from script_setups import LORA, config_of, run_here

import lactchain
from lactchain import DataError, LanguageActor, make_language_env

STATES = ["0 0 up 1 1", "1 0 left 0 1"]
SEEDS = [3, 4]


@pytest.fixture(scope="module", params=[None, LORA], ids=["all weights", "adapter"])
def simpo(request, weights, tmp_path_factory):
    values = {"actor.lora": request.param, "actor.strategy": "direct"}
    config = config_of("train_simpo", weights, tmp_path_factory.mktemp("runs") / "simpo", values)
    run_here("train_simpo", config)
    return config


def test_an_actor_is_asked_as_it_was_trained(simpo):
    folder = f"{simpo.run.run_dir}/actor"
    adapted = simpo.actor.lora is not None
    where = replace(simpo.actor, **{"adapter" if adapted else "model": folder})
    by_hand = LanguageActor.from_config(where, make_language_env(simpo.environment).grammar)
    expected = by_hand.act(STATES, SEEDS)
    for place in (folder, simpo.run.run_dir):
        assert lactchain.load_policy(place).act(STATES, SEEDS) == expected
    greedy = lactchain.load_policy(folder, temperature=0.0)
    assert greedy.act(STATES, [1, 2]) == greedy.act(STATES, [5, 6])


def test_an_actor_that_is_sent_to_a_worker_answers_as_here(simpo):
    """As Ray sends it: nothing in it, its memory of answers included, belongs to one process."""
    actor = lactchain.load_policy(simpo.run.run_dir)
    here = actor.act(STATES, SEEDS)
    assert cloudpickle.loads(cloudpickle.dumps(actor)).act(STATES, SEEDS) == here


def test_a_folder_that_does_not_say_how_its_actor_is_asked_is_refused(simpo, tmp_path):
    alone = shutil.copytree(f"{simpo.run.run_dir}/actor", tmp_path / "alone")
    (alone / "manifest.json").unlink()
    (alone / "policy.json").unlink()
    with pytest.raises(DataError, match=r"policy.json: no such file; expected an actor that train"):
        lactchain.load_policy(alone)
    (alone / "policy.json").write_text('{"actor": {}}')
    with pytest.raises(DataError, match=r"policy.json: damaged"):
        lactchain.load_policy(alone)


def test_folders_that_hold_nothing_of_the_kind_are_refused(simpo, tmp_path):
    other = tmp_path / "ppo_cartpole.zip"  # of another library
    other.write_bytes(b"PK")
    for name in ("policy", "critic", "values", "agent"):
        for path in (tmp_path / "none", other):
            with pytest.raises(DataError, match=f"{path}: no such folder; expected a run, or what"):
                getattr(lactchain, f"load_{name}")(path)
    with pytest.raises(DataError, match="holds no agent; expected what a run saved, such as"):
        lactchain.load_agent(tmp_path)
    with pytest.raises(DataError, match="this run has saved no critic; name one that has"):
        lactchain.load_critic(simpo.run.run_dir)
