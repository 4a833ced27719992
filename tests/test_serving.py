"""Generation behind servers is that of the actor here, token for token, and no fault changes it."""

import asyncio
import json
import shutil
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial

import numpy as np
import pytest
import torch
from engine_stand_in import Engine, Script, answer, refusal, serving
from script_setups import (
    COLLECT,
    GRID,
    PREFERENCES,
    SHAPE,
    TRAINING,
    build_weights,
    config_of,
    run_here,
    start,
    start_two,
)
from test_rollouts import heard
from training_setups import exit_codes, logs

from lactchain.data.episodes import sampled_episodes
from lactchain.data.preferences import read_pairs
from lactchain.data.rollouts import Rollouts
from lactchain.data.trajectories import read_trajectories
from lactchain.environments.language import make_language_env
from lactchain.errors import ConfigError, Interrupted, ServerError
from lactchain.models.actor import LanguageActor
from lactchain.models.adapters import save_adapter
from lactchain.models.loading import load_actor
from lactchain.run import Run, read_metrics
from lactchain.serving.connections import KEY
from lactchain.serving.dialects import DIALECTS, Row
from lactchain.serving.identity import record
from lactchain.serving.policy import ServedActor, _may_be
from lactchain.serving.transport import Transport, answers, asked_wait, transport_of
from lactchain.serving.weights import adapter_name, models_at, sync, unload
from lactchain.settings import (
    ActorConfig,
    GuidedActorConfig,
    LoraSettings,
    RunConfig,
    SamplerConfig,
    ServedConfig,
)
from lactchain.stages.evaluate import EvaluationConfig
from lactchain.stages.run_pipeline import ActorStageConfig
from lactchain.stages.train_bc import WarmStartConfig

GRAMMAR = make_language_env(GRID).grammar


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return build_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def engine(weights):
    with serving(Engine(weights / "actor", GRAMMAR)) as engine:
        yield engine


def adapter_weights(folder):
    return (folder / "adapter_model.safetensors").read_bytes()


def asked_of(engine, *more, decoding="free", **changes):
    """The configuration of an actor behind an engine, and others."""
    served = ServedConfig([engine.url, *(e.url for e in more)], timeout_seconds=10.0)
    config = SamplerConfig(str(engine.model), max_new_tokens=8, decoding=decoding, served=served)
    return replace(config, **changes)


def same(ours, theirs):
    """Whether episodes are the same, but for the names of who played, and the last bits."""
    bare = [[replace(t, policy="") for t in heard(played)] for played in (ours, theirs)]
    assert bare[0] == bare[1]
    for one, other in zip(ours, theirs, strict=True):
        for a, b in zip(one.actions, other.actions, strict=True):
            np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=1e-6)


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


# --- requests ------------------------------------------------------------------------------------


def ask(server, timeout_seconds=5.0, **more):
    settings = ServedConfig([server.url], timeout_seconds=timeout_seconds, **more)
    with closing(Transport(settings)) as transport:
        return transport.post("/v1/completions", {}, lambda body: body).result()


def test_what_may_pass_is_tried_again_and_as_late_as_it_asks_for():
    passing = [answer(503, "<p>soon</p>"), answer(425, ""), None, answer(200, '{"cut": ')]
    late = answer(429, "", **{"Retry-After": "0.4"})
    with serving(Script([*passing, late, answer(200, {"text": "there"})])) as server:
        start = time.monotonic()
        assert ask(server) == {"text": "there"}
        assert server.asked == 6 and time.monotonic() - start > 0.4


def test_the_time_that_is_asked_for_is_a_number_or_a_date():
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    assert asked_wait("7") == 7.0 and 98 < asked_wait(date) <= 100
    assert [asked_wait(text) for text in (None, "-3", "soon")] == [0.0] * 3
    assert asked_wait("1e9") == 600.0


def test_what_will_not_pass_is_one_line_in_the_servers_words_without_the_key(monkeypatch):
    monkeypatch.setenv(KEY, "sk-12345")
    with (
        serving(Script([refusal(401, "wrong key: Bearer sk-12345\nask your admin")])) as server,
        pytest.raises(ServerError, match="refused, with 401 wrong key: Bearer <key> ask") as error,
    ):
        ask(server)
    assert server.asked == 1 and "\n" not in str(error.value) and error.value.exit_code == 8


ECHO = "Bearer sk-12345-67890"


@pytest.mark.parametrize(
    "reply",
    [
        answer(200, f"<html>{ECHO}</html>"),
        answer(200, f"<html>{'.' * 34} {ECHO}</html>"),  # cut in the middle of the key
        answer(200, {"echo": ECHO}),
        answer(404, {"echo": ECHO}),
    ],
)
def test_no_error_has_the_key_whatever_a_server_repeats(monkeypatch, reply):
    monkeypatch.setenv(KEY, "sk-12345-67890\n")
    with serving(Script([reply])) as server:
        settings = ServedConfig([server.url], timeout_seconds=5.0)
        with closing(Transport(settings)) as transport:
            for ask_it in (
                lambda: transport.post("/v1/completions", {}, refuse).result(),
                lambda: models_at(transport, server.url),
            ):
                with pytest.raises(ServerError) as error:
                    ask_it()
                assert "<key>" in str(error.value) and "sk-12345" not in str(error.value)


def refuse(body):
    raise ServerError(f"expected something else, got {body}")


@pytest.mark.parametrize("key", ["sk-1\nsk-2", "schlüssel", "sk 12345"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(monkeypatch, key):
    monkeypatch.setenv(KEY, key)
    with pytest.raises(ConfigError, match=f"^{KEY}: expected letters") as error:
        Transport(ServedConfig(["http://127.0.0.1:1"]))
    assert key not in str(error.value)


def test_what_cannot_be_sent_at_all_is_not_tried_again(monkeypatch):
    monkeypatch.setattr("lactchain.serving.transport.server_key", lambda: "sk\n12345678")
    with (
        serving(Script([answer(200, {})])) as server,
        pytest.raises(ServerError, match="cannot be sent, LocalProtocolError"),
    ):
        ask(server)


def test_a_page_in_the_place_of_json_is_an_error_at_once():
    with serving(Script([answer(200, "<html>Welcome to nginx!</html>")])) as server:
        with pytest.raises(ServerError, match="expected JSON, got '<html>Welcome to nginx!"):
            ask(server)
        assert server.asked == 1


def test_a_server_that_is_gone_ends_the_wait():
    with serving(Script([])) as server:
        pass
    with pytest.raises(ServerError, match=r"no answer for \d+ s, in the end ConnectError"):
        ask(server, timeout_seconds=0.2)


def test_closing_twice_is_closing_once():
    transport = Transport(ServedConfig(["http://127.0.0.1:1"], in_flight=1))
    transport.close()
    transport.close()


def test_a_server_that_puts_off_beyond_the_time_out_is_given_up_at_once():
    late = answer(503, "closed for the night", **{"Retry-After": "300"})
    with serving(Script([late])) as server:
        start = time.monotonic()
        with pytest.raises(ServerError, match=r"no answer for 0 s, .* night \(again in 300 s\)"):
            ask(server, timeout_seconds=60.0)
        assert server.asked == 1
        with serving(Script([answer(200, {"text": "there"})])) as other:
            settings = ServedConfig([server.url, other.url], timeout_seconds=60.0)
            with closing(Transport(settings)) as transport:
                assert transport.post("/v1/completions", {}, dict).result() == {"text": "there"}
        assert time.monotonic() - start < 30


def test_a_request_is_not_given_up_while_others_are_answered():
    """One is put off for longer than a dead server is waited for; the server is merely busy."""
    late = time.monotonic() + 2.5

    class Busy(Script):
        async def answer(self, path, headers, body):
            if path == "/late" and time.monotonic() < late:
                return answer(429, "busy")
            return answer(200, {"text": "there"})

    with serving(Busy([])) as server:
        settings = ServedConfig([server.url], timeout_seconds=1.0)
        with closing(Transport(settings)) as transport:
            put_off = transport.post("/late", {}, dict)
            while not put_off.done():
                transport.post("/v1/completions", {}, dict).result()
                time.sleep(0.05)
            assert put_off.result() == {"text": "there"}


@pytest.mark.parametrize(
    "url",
    [
        "node1:8000",
        "ftp://node1",
        "http://me:secret@node1",
        "me:secret@node1:8000",
        "ftp://me:secret@node1",
        "https://me:sec#secret@node1",
    ],
)
def test_addresses_are_plain_ones(url):
    with pytest.raises(ValueError, match="^urls: expected") as error:
        ServedConfig([url])
    assert "secret" not in str(error.value)


# --- answers -------------------------------------------------------------------------------------

BROKEN = {
    "prompt": ({"prompt_token_ids": [1, 2]}, "the prompt's tokens"),
    "no tokens": ({"token_ids": None}, "expected a completion with its tokens"),
    "too few": ({"logprobs": {"token_logprobs": [-1.0]}}, "a log-probability for each token"),
    "text": ({"text": "something else"}, "the completion's text"),
    "end": ({"token_ids": [5], "logprobs": {"token_logprobs": [-1.0]}}, "the end of the"),
    "no choice": ({"finish_reason": "stop", "text": None}, "expected a completion with its tokens"),
}


@pytest.mark.parametrize(("changes", "words"), BROKEN.values(), ids=BROKEN)
def test_answers_that_cannot_be_trusted_end_the_run(engine, monkeypatch, changes, words):
    actor = ServedActor.from_config(asked_of(engine, decoding="constrained"), GRAMMAR)
    monkeypatch.setattr(engine, "changes", changes)
    with pytest.raises(ServerError, match=words):
        actor.act(["0 0 up 1 1"], [3])


def test_a_chain_that_was_asked_for_has_to_be_one(engine, monkeypatch):
    actor = ServedActor.from_config(asked_of(engine, decoding="constrained"), GRAMMAR)
    ids = [*actor.tokenizer("[]", add_special_tokens=False)["input_ids"]]
    end = actor.tokenizer.eos_token_id
    silent = {"text": "[]", "token_ids": [*ids, end]}
    silent["logprobs"] = {"token_logprobs": [0.0] * (len(ids) + 1)}
    monkeypatch.setattr(engine, "changes", silent)
    with pytest.raises(ServerError, match=r"expected a chain, as was asked for, got '\[\]'"):
        actor.act(["0 0 up 1 1"], [3])


def test_what_servers_cannot_do_is_refused_before_they_are_asked(engine, weights):
    config = asked_of(engine)
    text = replace(config.served, dialect="text")
    for wrong, words in (
        (replace(config, decoding="scored"), "expected free or constrained"),
        (replace(config, served=text, decoding="constrained"), "expected vllm or sglang"),
        (replace(config, model=str(weights / "encoder")), "which .* serves, got .*encoder"),
    ):
        with pytest.raises(ConfigError, match=words):
            ServedActor.from_config(wrong, GRAMMAR)


def test_a_folder_of_the_same_name_is_another_model(engine, weights, tmp_path, caplog):
    shutil.copytree(weights / "actor", tmp_path / "actor")
    config = asked_of(engine, model=str(tmp_path / "actor"))
    with pytest.raises(ConfigError, match="which .* serves, got .*actor"):
        ServedActor.from_config(config, GRAMMAR)
    assert _may_be("/srv/gone/actor", config.model) and "by its last word alone" in caplog.text


class Silent(Script):
    """Takes every request, and answers none."""

    async def answer(self, path, headers, body):
        self.asked += 1
        await asyncio.sleep(3600)


ORDERS = {
    "a row": lambda t: answers([t.post("/v1/completions", {}, dict) for _ in range(3)]),
    "a page": lambda t: models_at(t, t.urls[0]),
    "an order": lambda t: t.tell(t.urls[0], "/v1/load_lora_adapter", {}),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_who_waits_for_servers_hears_a_signal_and_asks_no_more(monkeypatch, order):
    monkeypatch.setattr("lactchain.serving.transport.LISTEN_SECONDS", 0.1)
    monkeypatch.setattr("lactchain.process._requested_signal", 15)
    with serving(Silent([])) as server:
        with (
            closing(Transport(ServedConfig([server.url], in_flight=1))) as transport,
            pytest.raises(Interrupted, match="^stopped") as stop,
        ):
            order(transport)
        time.sleep(0.2)
        assert server.asked == 1 and stop.value.exit_code == 143


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "dead"])
def test_a_signal_ends_a_script_whose_server_does_not_answer(weights, tmp_path, silent):
    with serving(Silent([])) as server:
        served = ServedConfig([server.url if silent else "http://127.0.0.1:1"])
        config = config_of("collect_rollouts", weights, tmp_path / "run")
        process = start(
            "collect_rollouts", replace(config, actor=replace(config.actor, served=served))
        )
        while not (server.asked or (tmp_path / "run/config.yaml").exists()):
            time.sleep(0.05)
        time.sleep(1.0)
        process.terminate()
        process.join(10)
    assert process.exitcode == 143


ROW = Row("base", "lactchain-1", "hi", [1, 5, 6], 9, 0.5, 12, 2, "a|b")


def test_sglang_is_asked_and_read_by_its_own_words():
    """The words are those of its page on `/generate`."""
    written = DIALECTS["sglang"].write(ROW)
    assert written["input_ids"] == [1, 5, 6] and written["lora_path"] == "lactchain-1"
    said = written["sampling_params"]
    assert (said["max_new_tokens"], said["sampling_seed"], said["regex"]) == (12, 9, "a|b")
    assert "lora_path" not in DIALECTS["sglang"].write(replace(ROW, adapter=None))
    body = {
        "text": "a",
        "output_ids": [7, 2],
        "prompt_token_ids": [1, 5, 6],
        "meta_info": {
            "finish_reason": {"type": "stop", "matched": 2},
            "output_token_logprobs": [[-0.25, 7, None], [0.0, 2, None]],
        },
    }
    reply = DIALECTS["sglang"].read(body)
    assert (reply.text, reply.ended, reply.token_ids) == ("a", "stop", (7, 2))
    assert reply.logprobs == (-0.25, 0.0) and reply.prompt_ids == (1, 5, 6)


def test_texts_alone_are_asked_without_the_beginning_that_the_server_adds(weights):
    """A server whose answers are texts: what it is sent, and what comes of what it says."""
    reply = {"choices": [{"text": " hello", "finish_reason": "length"}]}
    with serving(Script([answer(200, reply)])) as server:
        served = ServedConfig([server.url], dialect="text")
        actor = ServedActor.from_config(
            SamplerConfig(str(weights / "actor"), served=served), GRAMMAR
        )
        (said,) = actor.act(["0 0 up 1 1"], [3])
    assert (said.text, said.token_ids, said.stop_reason) == (" hello", (), "length")
    begins = actor.tokenizer("")["input_ids"][:1] == [actor.tokenizer.bos_token_id]
    assert actor._text("x").startswith(actor.tokenizer.bos_token) != begins


# --- runs ----------------------------------------------------------------------------------------


def test_an_evaluation_behind_servers_needs_no_weights_here(weights, tmp_path):
    reply = {"choices": [{"text": "hello", "finish_reason": "stop"}]}
    with serving(Script([answer(200, reply)])) as server:
        actor = GuidedActorConfig(
            str(weights / "actor"), served=ServedConfig([server.url], dialect="text")
        )
        few = EvaluationConfig(num_envs=48, num_samples=0)
        stage = config_of("evaluate", weights, tmp_path, actor=actor, evaluation=few)
        assert run_here("evaluate", stage)["invalid_rate"] == 1.0


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


def test_a_run_whose_servers_die_goes_on_at_another_address(weights, tmp_path):
    """The second of three files of episodes is under way; the first one is kept as it is."""
    few = replace(COLLECT, num_episodes=48)
    stage = partial(config_of, "collect_rollouts", weights, tmp_path / "run", collect=few)
    run_here("collect_rollouts", replace(stage(), run=RunConfig(str(tmp_path / "here"))))

    def at(url, seconds):
        served = ServedConfig([url], in_flight=4, timeout_seconds=seconds)
        return stage(actor=replace(stage().actor, served=served))

    with (
        serving(Mortal(weights / "actor", GRAMMAR)) as engine,
        pytest.raises(ServerError, match="no answer for .* what is finished is kept"),
    ):
        run_here("collect_rollouts", at(engine.url, 1.0))
    finished = {p: p.stat().st_mtime_ns for p in (tmp_path / "run/trajectories").glob("*.parquet")}
    assert len(finished) == 1
    with serving(Engine(weights / "actor", GRAMMAR)) as engine:
        run_here("collect_rollouts", at(engine.url, 30.0))
    assert finished == {path: path.stat().st_mtime_ns for path in finished}
    same(*(read_trajectories(tmp_path / name / "trajectories") for name in ("run", "here")))
    assert len(json.loads((tmp_path / "run/environment.json").read_text())["servers"]) == 2


def test_a_run_says_what_its_servers_were_and_when_one_is_another(
    engine, tmp_path, monkeypatch, caplog
):
    config = asked_of(engine)
    secret = {"api_key": "sk-12345", "hf_token": "hf-12345"}
    for dtype in ("bfloat16", "bfloat16", "float16"):
        monkeypatch.setattr(
            engine, "flags", {"vllm_config": {"model_config": {"dtype": dtype}, **secret}}
        )
        with Run.open(tmp_path / "run", config) as run:
            record(config.served, run)
            run.log({"asked": 1}, step=0)
        written = (tmp_path / "run/environment.json").read_text()
        assert json.loads(written)["servers"] == {
            engine.url: {
                "version": "0.stand-in",
                "base.root": str(engine.model),
                "base.max_model_len": "512",
                "vllm_config.model_config.dtype": dtype,
            }
        }
        assert "12345" not in written
    (line,) = caplog.messages
    assert line.endswith("before: vllm_config.model_config.dtype was bfloat16, is float16")


class Upgraded(Engine):
    """Comes back with another flag as soon as it has an adapter."""

    flags = property(lambda self: {"dtype": "float16" if self.log else "float32"}, lambda *_: None)


class Mortal(Engine):
    """Breaks every connection after so many completions."""

    lives = 80

    async def answer(self, path, headers, body):
        if path == "/v1/completions" and self.answered[path] >= self.lives:
            return None
        return await super().answer(path, headers, body)


# --- adapters ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapters(weights, tmp_path_factory):
    """Two adapters of rank 2 and one of rank 4, with weights drawn at random."""
    folders = []
    for number, rank in enumerate((2, 2, 4)):
        config = ActorConfig(str(weights / "actor"), lora=LoraSettings(r=rank))
        with torch.random.fork_rng():
            torch.manual_seed(number)
            model, _ = load_actor(config, trainable=True)
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(parameter, std=0.5)
        folders.append(tmp_path_factory.mktemp("adapters") / str(number))
        save_adapter(model, folders[-1])
    return folders


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
        actor.act(["0 0 up 1 1"] * 8, range(8))  # a server that has lost it is given it again
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
    monkeypatch.setattr("lactchain.serving.transport.ORDER_SECONDS", 0.1)  # vLLM says so by a 500
    config = asked_of(engine, adapter=str(adapters[2]))
    with pytest.raises(ServerError, match="LoRA rank 4 is greater than max_lora_rank 3"):
        ServedActor.from_config(config, GRAMMAR)
    monkeypatch.setattr(engine, "max_rank", 0)
    with pytest.raises(ConfigError, match="takes no adapters; start it with --enable-lora"):
        ServedActor.from_config(config, GRAMMAR)


# --- a pipeline ----------------------------------------------------------------------------------


def pipeline(engine, weights, run_dir):
    """Two rounds of an adapter, behind an engine or with a local actor."""
    config = config_of("run_pipeline", weights, run_dir, tiny=None, warm_start=None)
    few = replace(PREFERENCES, num_states=32)
    steady = {"lr_scheduler_type": "constant", "warmup_steps": 0}
    actor = replace(config.actor, model=str(weights / "actor"), lora=LoraSettings(r=2))
    if engine is not None:
        actor = replace(actor, served=ServedConfig([engine.url]))
    return replace(
        config,
        actor=actor,
        critic=replace(config.critic, collect=replace(COLLECT, num_episodes=32)),
        simpo=ActorStageConfig(few, training=replace(TRAINING, learning_rate=0.01, extra=steady)),
        evaluation=replace(config.evaluation, num_samples=16),
    )


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
