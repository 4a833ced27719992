"""Runs behind servers end as those with the actor here, and load nothing that they do not use."""

import shutil
import time
from dataclasses import replace

import pytest
from engine_stand_in import Engine, Script, Silent, answer, serving
from script_setups import SHAPE, config_of, run_here, start, start_two
from serving_setups import GRAMMAR, adapter_weights, pipeline
from training_setups import exit_codes, logs

from lactchain.config.settings import GuidedActorConfig, LoraSettings, ServedConfig
from lactchain.data.preferences import read_pairs
from lactchain.data.trajectories import read_trajectories
from lactchain.runs.run import read_metrics
from lactchain.stages.evaluate import EvaluationConfig
from lactchain.stages.train_bc import WarmStartConfig
from lactchain_extras.serving.servers import adapter_name


def test_an_evaluation_behind_servers_needs_no_weights_here(weights, tmp_path):
    reply = {"choices": [{"text": "hello", "finish_reason": "stop"}]}
    with serving(Script([answer(200, reply)])) as server:
        served = ServedConfig([server.url], dialect="text")
        actor = GuidedActorConfig(str(weights / "actor"), served=served)
        few = EvaluationConfig(num_envs=48, num_samples=0)
        stage = config_of("evaluate", weights, tmp_path, actor=actor, evaluation=few)
        assert run_here("evaluate", stage)["invalid_rate"] == 1.0


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "dead"])
def test_a_signal_ends_a_script_whose_server_does_not_answer(weights, tmp_path, silent):
    with serving(Silent([])) as server:
        served = ServedConfig([server.url if silent else "http://127.0.0.1:1"])
        config = config_of("collect_rollouts", weights, tmp_path / "run")
        config = replace(config, actor=replace(config.actor, served=served))
        process = start("collect_rollouts", config)
        while not (server.asked or (tmp_path / "run/config.yaml").exists()):
            time.sleep(0.05)
        time.sleep(1.0)
        process.terminate()
        process.join(10)
    assert process.exitcode == 143


class Elsewhere(Engine):
    """Has its model in a folder of its own."""

    def _models(self, asked):
        return answer(200, {"data": [{"id": "base", "root": "/srv/models/actor"}]})


@pytest.mark.slow
def test_processes_that_do_not_train_the_actor_load_no_weights_of_it(weights, tmp_path):
    """There are none at all: the tokenizer is all that two processes have of it."""
    shutil.copytree(weights / "actor", tmp_path / "actor")
    (tmp_path / "actor/model.safetensors").unlink()
    with serving(Elsewhere(weights / "actor", GRAMMAR)) as engine:
        served = ServedConfig([engine.url])
        for script, changes in (
            ("train_critic", {"compare_with_exact": False}),
            ("make_preferences", {}),
            ("evaluate", {"evaluation": EvaluationConfig(num_envs=48, num_samples=16)}),
        ):
            config = config_of(script, weights, tmp_path / script, **changes)
            actor = replace(config.actor, model=str(tmp_path / "actor"), served=served)
            ranks = start_two(script, replace(config, actor=actor))
            assert exit_codes(ranks) == [0, 0], logs(tmp_path / script)


class Upgraded(Engine):
    """Comes back with another flag as soon as it has an adapter."""

    flags = property(lambda self: {"dtype": "float16" if self.log else "float32"}, lambda *_: None)


@pytest.mark.slow
def test_a_pipeline_makes_the_pairs_and_weights_of_the_local_one(weights, tmp_path, caplog):
    with serving(Upgraded(weights / "actor", GRAMMAR, faults=0.1)) as engine:
        for name, behind in (("here", None), ("there", engine)):
            run_here("run_pipeline", pipeline(behind, weights, tmp_path / name))
        names = [adapter_name(tmp_path / f"there/round_{n}/simpo/actor") for n in (1, 2)]
        assert engine.log == [f"load {names[0]}", f"load {names[1]}", f"unload {names[0]}"]
    for number in (1, 2):
        ours, theirs = (tmp_path / name / f"round_{number}/simpo" for name in ("there", "here"))
        assert read_pairs(ours / "pairs") == read_pairs(theirs / "pairs")
        weights_of = [adapter_weights(folder / "actor") for folder in (ours, theirs)]
        assert weights_of[0] == weights_of[1]
    played = read_trajectories(tmp_path / "there/round_2/critic/trajectories")
    assert all(names[0] in trajectory.policy for trajectory in played)
    found = [r for r in read_metrics(tmp_path / "there") if "served/mean_drift" in r]
    assert [record["step"] for record in found] == [0, 1, 2]
    assert max(record["served/largest_drift"] for record in found) < 1e-5
    assert min(record["served/effective_samples"] for record in found) > 0.999
    assert sum("dtype was float32, is float16" in line for line in caplog.messages) == 1


def test_a_pipeline_behind_servers_trains_an_adapter_of_a_model_that_they_have(weights):
    config = config_of("run_pipeline", weights, "unused", tiny=None, warm_start=None)
    actor = replace(config.actor, served=ServedConfig(["http://127.0.0.1:1"]))
    adapted, texts = replace(actor, lora=LoraSettings()), replace(actor.served, dialect="text")
    for changes, setting in (
        ({"actor": actor}, "actor.lora"),
        ({"actor": replace(adapted, served=texts)}, "actor.served.dialect"),
        ({"actor": adapted, "tiny": SHAPE}, "tiny"),
        ({"actor": adapted, "warm_start": WarmStartConfig()}, "warm_start"),
    ):
        with pytest.raises(ValueError, match=f"^{setting}: expected"):
            replace(config, **changes)
