"""Generation behind servers is that of the actor here, token for token, in whole runs as well."""

import json
import shutil
from dataclasses import replace
from functools import partialmethod

import pytest
from engine_stand_in import Engine, Script, answer, serving
from script_setups import GRID, LORA, SHAPE, config_of, run_here, start_two
from serving_setups import GRAMMAR, STATE, adapter_weights, asked_of, pipeline, same
from training_setups import exit_codes, logs

from lactchain import LanguageActor, Rollouts, make_language_env, read_pairs, read_trajectories
from lactchain.config.settings import GuidedActorConfig, SamplerConfig, ServedConfig, recast
from lactchain.data.episodes import sampled_episodes
from lactchain.errors import ConfigError, ServerError
from lactchain.runs.run import Run, read_metrics
from lactchain.stages.evaluate import EvaluationConfig
from lactchain.stages.train_bc import WarmStartConfig
from lactchain_extras.serving.dialects import DIALECTS
from lactchain_extras.serving.policy import ServedActor
from lactchain_extras.serving.servers import adapter_name, may_be, record, sync, unload
from lactchain_extras.serving.transport import Transport, transport_of


@pytest.mark.parametrize("decoding", ["free", "constrained"])
def test_episodes_are_those_of_the_actor_here_though_a_third_of_the_requests_fail(engine, decoding):
    config = asked_of(engine, decoding=decoding)
    episodes = sampled_episodes(make_language_env(GRID), 60, seed=1)
    here = LanguageActor.from_config(replace(config, served=None), GRAMMAR)
    engine.faults = 0.3
    there = ServedActor.from_config(config, GRAMMAR)
    played = Rollouts(GRID, num_envs=16).play(there, episodes)
    engine.faults = 0.0
    same(played, Rollouts(GRID, num_envs=16).play(here, episodes))
    assert {t.policy for t in played} == {f"{config.model} ({decoding}), base of servers"}


def test_the_weights_here_are_loaded_once(engine):
    actor = ServedActor.from_config(asked_of(engine), GRAMMAR)
    other = actor.with_config(asked_of(engine, temperature=2.0, decoding="constrained"), GRAMMAR)
    third = other.with_config(asked_of(engine), GRAMMAR)
    assert "constrained" in other.local.name and "free" in third.local.name
    assert other.local.decoder.model is third.local.decoder.model is actor.local.decoder.model


def test_a_chain_that_was_asked_for_has_to_be_one(engine, monkeypatch):
    actor = ServedActor.from_config(asked_of(engine, decoding="constrained"), GRAMMAR)
    ids = [*actor.tokenizer("[]", add_special_tokens=False)["input_ids"]]
    end = actor.tokenizer.eos_token_id
    silent = {"text": "[]", "token_ids": [*ids, end]}
    silent["logprobs"] = {"token_logprobs": [0.0] * (len(ids) + 1)}
    monkeypatch.setattr(engine, "changes", silent)
    with pytest.raises(ServerError, match=r"expected a chain, as was asked for, got '\[\]'"):
        actor.act([STATE], [3])


def test_what_servers_cannot_do_is_refused_before_they_are_asked(engine, weights, tmp_path, caplog):
    config, same_name = asked_of(engine), shutil.copytree(weights / "actor", tmp_path / "actor")
    text = replace(config.served, dialect="text")
    guided = recast(config, GuidedActorConfig, values="runs/values")
    for wrong, words in (
        (guided, "actor.values: expected null where servers generate, got runs/values"),
        (replace(config, served=text, decoding="constrained"), "expected vllm or sglang"),
        (replace(config, model=str(weights / "encoder")), "which .* serves, got .*encoder"),
        (replace(config, model=str(same_name)), f"which .* serves, got {same_name}"),
    ):
        with pytest.raises(ConfigError, match=words):
            ServedActor.from_config(wrong, GRAMMAR)
    assert may_be("/srv/gone/actor", str(same_name)) and "by its last word alone" in caplog.text


def test_texts_alone_are_asked_without_the_beginning_that_the_server_adds(weights):
    """A server whose answers are texts: what it is sent, and what comes of what it says."""
    reply = {"choices": [{"text": " hello", "finish_reason": "length"}]}
    with serving(Script([answer(200, reply)])) as server:
        served = ServedConfig([server.url], dialect="text")
        config = SamplerConfig(str(weights / "actor"), served=served)
        actor = ServedActor.from_config(config, GRAMMAR)
        (said,) = actor.act([STATE], [3])
    assert (said.text, said.token_ids, said.stop_reason) == (" hello", (), "length")
    begins = actor.tokenizer("")["input_ids"][:1] == [actor.tokenizer.bos_token_id]
    assert actor._text("x").startswith(actor.tokenizer.bos_token) != begins


def test_a_run_says_what_its_servers_were_and_are(engine, tmp_path, monkeypatch, caplog):
    config = asked_of(engine)
    secret = {"api_key": "sk-12345", "hf_token": "hf-12345"}
    for dtype in ("bfloat16", "bfloat16", "float16"):
        flags = {"vllm_config": {"model_config": {"dtype": dtype}, **secret}}
        monkeypatch.setattr(engine, "flags", flags)
        with Run.open(tmp_path / "run", config) as run:
            record(config.served, run)
            run.log({"asked": 1}, step=0)
        written = (tmp_path / "run/environment.json").read_text()
        told = {"version": "0.stand-in", "base.root": str(engine.model)}
        told |= {"base.max_model_len": "512", "vllm_config.model_config.dtype": dtype}
        assert json.loads(written)["servers"] == {engine.url: told}
        assert "12345" not in written
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert line.endswith("before: vllm_config.model_config.dtype was bfloat16, is float16")


def test_adapters_are_asked_by_the_name_of_their_content_on_every_server(engine, weights, adapters):
    episodes = sampled_episodes(make_language_env(GRID), 20, seed=1)
    with serving(Engine(weights / "actor", GRAMMAR)) as second:
        names = []
        for folder in (adapters[0], adapters[1], adapters[0]):
            config = asked_of(engine, second, adapter=str(folder))
            actor = ServedActor.from_config(config, GRAMMAR)
            here = LanguageActor.from_config(replace(config, served=None), GRAMMAR)
            played = Rollouts(GRID).play(actor, episodes)
            same(played, Rollouts(GRID).play(here, episodes))
            assert all(actor.adapter in t.policy for t in played)
            names.append(actor.adapter)
        assert names[0] == names[2] == adapter_name(adapters[0]) != names[1]
        for server in (engine, second):
            assert server.log == [f"load {name}" for name in names[:2]]
            assert server.answered["/v1/completions"] > 0
        transport, dialect = transport_of(config.served), DIALECTS["vllm"]
        for _ in range(2):
            unload(transport, dialect, names[0], adapters[1])  # which it was not loaded from
            assert len(engine.log) == 2
        for _ in range(2):
            unload(transport, dialect, names[0], adapters[0])
        assert engine.log[2:] == second.log[2:] == [f"unload {names[0]}"]
        actor.act([STATE] * 8, range(8))  # a server that has lost it is given it again
        assert {f"load {names[0]}"} >= set(engine.log[3:] + second.log[3:]) != set()
        engine.log.clear(), engine.adapters.clear()


def test_the_next_adapter_is_loaded_before_the_last_one_goes(engine, adapters):
    names = [adapter_name(folder) for folder in adapters[:2]]
    for folder in adapters[:2]:
        sync(asked_of(engine, adapter=str(folder)), adapters[:2])
    assert engine.log == [f"load {names[0]}", f"load {names[1]}", f"unload {names[0]}"]
    sync(asked_of(engine), adapters)
    assert engine.adapters == {} and engine.log.pop() == f"unload {names[1]}"
    engine.log.clear()


def test_an_adapter_that_a_server_does_not_take_is_one_line(engine, adapters, monkeypatch):
    monkeypatch.setattr(engine, "max_rank", 3)
    quick = partialmethod(Transport.tell, patience=0.1)
    monkeypatch.setattr(Transport, "tell", quick)  # vLLM says so by a 500
    config = asked_of(engine, adapter=str(adapters[2]))
    with pytest.raises(ServerError, match="LoRA rank 4 is greater than max_lora_rank 3"):
        ServedActor.from_config(config, GRAMMAR)
    monkeypatch.setattr(engine, "max_rank", 0)
    with pytest.raises(ConfigError, match="takes no adapters; start it with --enable-lora"):
        ServedActor.from_config(config, GRAMMAR)


def test_servers_with_other_weights_stop_a_pipeline(weights, adapters, tmp_path):
    """The same name, and another adapter behind it; random weights hardly differ."""
    with serving(Engine(weights / "actor", GRAMMAR)) as engine:
        config = pipeline(engine, weights, tmp_path / "run")
        served = replace(config.actor.served, max_drift=1e-5)
        actor = replace(config.actor, adapter=str(adapters[0]), served=served)
        engine.adapters[adapter_name(adapters[0])] = str(adapters[1])
        with pytest.raises(ServerError, match="expected log-probabilities within 1e-05 of those"):
            run_here("run_pipeline", replace(config, actor=actor))
    assert not (tmp_path / "run/round_0/evaluation").exists()


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
    adapted, texts = replace(actor, lora=LORA), replace(actor.served, dialect="text")
    for changes, setting in (
        ({"actor": actor}, "actor.lora"),
        ({"actor": replace(adapted, served=texts)}, "actor.served.dialect"),
        ({"actor": adapted, "tiny": SHAPE}, "tiny"),
        ({"actor": adapted, "warm_start": WarmStartConfig()}, "warm_start"),
    ):
        with pytest.raises(ValueError, match=f"^{setting}: expected"):
            replace(config, **changes)
