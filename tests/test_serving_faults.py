"""Servers that are not what they should be: one line, no secret in it, and nothing is lost."""

import asyncio
import gzip
import json
import shutil
import ssl
import subprocess
import time
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial

import pytest
from engine_stand_in import Engine, Script, Server, answer, refusal, serving
from script_setups import COLLECT, build_weights, config_of, run_here
from serving_setups import GRAMMAR, asked_of, same
from test_serving import adapters  # noqa: F401  - a fixture
from test_transport import ask

from lactchain.data.trajectories import read_trajectories
from lactchain.errors import ConfigError, LactChainError, ServerError
from lactchain.serving.connections import KEY
from lactchain.serving.doctor import examine
from lactchain.serving.policy import ServedActor
from lactchain.serving.transport import Transport, asked_wait
from lactchain.serving.weights import models_at
from lactchain.settings import GuidedActorConfig, PlayerConfig, RunConfig, ServedConfig

STATE = "0 0 up 1 1"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return build_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def engine(weights):
    with serving(Engine(weights / "actor", GRAMMAR)) as engine:
        yield engine


# --- a run ---------------------------------------------------------------------------------------


class Changing(Engine):
    """Answers some completions as it should, then in another way."""

    lives = 20

    async def answer(self, path, headers, body):
        if path != "/v1/completions" or self.answered[path] < self.lives:
            return await super().answer(path, headers, body)
        return await self.changed(path, headers, body)

    async def changed(self, path, headers, body):
        return self.instead


class Retokenised(Changing):
    """Its tokenizer has two of its tokens the other way round."""

    async def changed(self, path, headers, body):
        status, more, content = await super(Changing, self).answer(path, headers, body)
        told = json.loads(content)
        (choice,) = told["choices"]
        tokenizer = self._actor(None, None, 1.0, 8).tokenizer
        chains = ['["move forward"]', '["turn left"]']
        pair = [ids[-1] for ids in tokenizer(chains, add_special_tokens=False)["input_ids"]]
        swap = dict(zip(pair, reversed(pair), strict=True))
        choice["text"] = tokenizer.decode([swap.get(i, i) for i in choice["token_ids"]][:-1])
        return status, more, json.dumps(told).encode()


def turned(**changes):
    """Each choice has these parts instead of its own."""

    class Turned(Changing):
        async def changed(self, path, headers, body):
            status, more, content = await super(Changing, self).answer(path, headers, body)
            told = json.loads(content)
            told["choices"][0] |= changes
            return status, more, json.dumps(told).encode()

    return Turned


def becoming(instead):
    return type("Becoming", (Changing,), {"instead": instead})


CHANGES = {
    "a page": (
        becoming(answer(200, "<html>Welcome to nginx!</html>")),
        "expected JSON, got '<html>",
    ),
    "another place": (
        becoming(answer(302, "", Location="http://127.0.0.1:1/elsewhere")),
        "refused, with 302 http://127.0.0.1:1/elsewhere",
    ),
    "another key": (becoming(refusal(401, "wrong key")), "refused, with 401 wrong key"),
    "another model": (becoming(refusal(404, "The model `base` does not exist.")), "404 The model"),
    "other flags": (becoming(refusal(400, "maximum context length is 8")), "400 maximum context"),
    "other tokens": (Retokenised, "the completion's text: expected"),
    "no tokens": (turned(token_ids=None), "expected a completion with its tokens"),
    "no numbers": (turned(logprobs={"token_logprobs": [float("nan")] * 9}), "log-probability nan"),
}


def test_a_run_whose_server_turns_into_each_other_thing_loses_nothing(weights, tmp_path):
    """The same command after each; what was finished stays as it is, byte for byte."""
    few = replace(COLLECT, num_episodes=64)
    stage = partial(config_of, "collect_rollouts", weights, tmp_path / "run", collect=few)
    run_here("collect_rollouts", replace(stage(), run=RunConfig(str(tmp_path / "here"))))

    def at(engine):
        served = ServedConfig([engine.url], in_flight=4, timeout_seconds=10.0)
        return stage(actor=replace(stage().actor, served=served))

    finished = {}
    for kind, words in CHANGES.values():
        with serving(kind(weights / "actor", GRAMMAR)) as engine:
            engine.lives = 20 if finished else 70
            with pytest.raises(LactChainError) as error:
                run_here("collect_rollouts", at(engine))
            assert words in str(error.value) and "\n" not in str(error.value)
        files = (tmp_path / "run/trajectories").glob("*.parquet")
        now = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
        assert now and finished.items() <= now.items()
        finished = now
    with serving(Engine(weights / "actor", GRAMMAR)) as engine:
        run_here("collect_rollouts", at(engine))
    same(*(read_trajectories(tmp_path / name / "trajectories") for name in ("run", "here")))


def test_the_key_is_nowhere_in_a_run(weights, tmp_path, monkeypatch, capfd, caplog):
    key = "sk-CANARYcanaryCANARY"
    monkeypatch.setenv(KEY, key)
    stage = config_of("collect_rollouts", weights, tmp_path / "run", collect=COLLECT)
    with serving(Engine(weights / "actor", GRAMMAR, key=key, faults=0.2)) as engine:
        served = ServedConfig([engine.url], timeout_seconds=10.0)
        run_here("collect_rollouts", replace(stage, actor=replace(stage.actor, served=served)))
        assert engine.answered["/v1/completions"] > 0
        monkeypatch.setenv(KEY, f"{key}x")
        other = GuidedActorConfig(stage.actor.model, served=replace(served, in_flight=3))
        with pytest.raises(ServerError, match="401 wrong key: Bearer <key>") as error:
            run_here("evaluate", config_of("evaluate", weights, tmp_path / "second", actor=other))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    said = "".join((*capfd.readouterr(), caplog.text, str(error.value)))
    assert key not in said and len(files) > 5
    assert not [path for path in files if key.encode() in path.read_bytes()]


# --- answers -------------------------------------------------------------------------------------

WRONG = {
    "an order of letters": {"token_ids": "abc"},
    "tokens that are letters": {"token_ids": ["a"], "logprobs": {"token_logprobs": [0.0]}},
    "a negative token": {"token_ids": [-1], "logprobs": {"token_logprobs": [0.0]}},
    "a token and a half": {"token_ids": [1.5], "logprobs": {"token_logprobs": [0.0]}},
    "a token of nobody": {"token_ids": [10**9], "logprobs": {"token_logprobs": [0.0]}},
    "nan": {"token_ids": [5], "logprobs": {"token_logprobs": [float("nan")]}},
    "minus infinity": {"token_ids": [5], "logprobs": {"token_logprobs": [-float("inf")]}},
    "a probability above 1": {"token_ids": [5], "logprobs": {"token_logprobs": [0.5]}},
    "none": {"token_ids": [5], "logprobs": {"token_logprobs": [None]}},
    "a number as letters": {"token_ids": [5], "logprobs": {"token_logprobs": ["-0.5"]}},
    "no list of prompt tokens": {"prompt_token_ids": 7},
    "half a letter": {"text": "\ud800"},
    "a text of numbers": {"text": [1]},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_parts_of_a_wrong_kind_are_one_line(engine, monkeypatch, changes):
    actor = ServedActor.from_config(asked_of(engine), GRAMMAR)
    monkeypatch.setattr(engine, "changes", changes)
    with pytest.raises(ServerError, match="^/v1/completions: expected a completion with") as error:
        actor.act([STATE], [3])
    assert "\n" not in str(error.value)


BODIES = ["[]", "{}", '{"choices": {}}', '{"choices": [null]}', '{"choices": [{}, {}]}']


@pytest.mark.parametrize("body", [*BODIES, '{"choices": [["text"]]}', '[{"choices": 1}]'])
def test_bodies_of_a_wrong_kind_are_one_line(engine, body):
    actor = ServedActor.from_config(asked_of(engine), GRAMMAR)
    with serving(Script([answer(200, body)])) as server:
        actor._transport = Transport(ServedConfig([server.url], timeout_seconds=5.0))
        with (
            closing(actor._transport),
            pytest.raises(ServerError, match="expected a completion with"),
        ):
            actor.act([STATE], [3])


@pytest.mark.parametrize(
    "cards", [5, {"a": 1}, [None], [[]], [{"id": 5}], [{"id": "base"}, "x"], []]
)
def test_a_list_of_models_that_is_none_is_one_line(cards):
    reply = answer(200, {"data": cards})
    with serving(Script([reply])) as server:
        settings = ServedConfig([server.url], timeout_seconds=5.0)
        with (
            closing(Transport(settings)) as transport,
            pytest.raises(ServerError, match="expected a list of models"),
        ):
            models_at(transport, server.url)


def test_an_answer_without_end_or_measure_is_one_line(monkeypatch):
    deep = "[" * 100_000
    with (
        serving(Script([answer(200, deep)])) as server,
        pytest.raises(ServerError, match="expected JSON, got lists in lists without end"),
    ):
        ask(server)
    monkeypatch.setattr("lactchain.serving.replies.MOST_BYTES", 10_000)
    small = gzip.compress(b" " * 1_000_000)
    for huge in (answer(200, " " * 10_001), (200, {"Content-Encoding": "gzip"}, small)):
        with serving(Script([huge])) as server:
            with pytest.raises(ServerError, match="expected an answer of 10,000 bytes at most"):
                ask(server)
            assert server.asked == 1


class Raw(Server):
    """Writes what it likes."""

    async def _connection(self, reader, writer):
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
                await self.write(writer, head, json.loads(await reader.readexactly(length)))
                await writer.drain()


def written(content):
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content)


class Dripping(Raw):
    """A byte now and then, each of them in time."""

    async def write(self, writer, head, asked):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)


def test_an_answer_that_drips_is_given_up_in_the_time_of_one(monkeypatch):
    with serving(Dripping()) as server:
        start = time.monotonic()
        with pytest.raises(
            ServerError, match=r"in the end [\d,]+ bytes of an answer that did not end"
        ):
            ask(server, timeout_seconds=0.3)
        assert time.monotonic() - start < 10


class Twice(Raw):
    """Says everything twice, as a proxy may: what comes next on the line is one answer behind."""

    async def write(self, writer, head, asked):
        name = head.partition("x-request-id: ")[2].partition("\r\n")[0]
        writer.write(2 * written(json.dumps({"id": f"cmpl-{name}", "row": asked["row"]}).encode()))


def test_the_answer_to_another_row_is_never_taken():
    with serving(Twice()) as server:
        settings = ServedConfig([server.url], in_flight=1, timeout_seconds=5.0)
        with closing(Transport(settings)) as transport:
            rows = []
            with pytest.raises(ServerError, match="got that to another; leave out the proxy"):
                for row in range(10):
                    rows.append(
                        transport.post("/x", {"row": row}, lambda body: body["row"]).result()
                    )
            assert rows == list(range(len(rows)))


class Late(Raw):
    """The first answer comes after its time."""

    async def write(self, writer, head, asked):
        if asked["row"] == 0:
            await asyncio.sleep(1.0)
        writer.write(written(json.dumps({"row": asked["row"]}).encode()))


def test_an_answer_that_comes_too_late_is_not_that_of_the_next_row():
    with serving(Late()) as server:
        settings = ServedConfig([server.url], in_flight=1, timeout_seconds=0.3)
        with closing(Transport(settings)) as transport:
            with pytest.raises(ServerError, match="no answer for .* ReadTimeout"):
                transport.post("/x", {"row": 0}, dict).result()
            for row in range(1, 4):
                assert transport.post("/x", {"row": row}, dict).result() == {"row": row}


def test_a_time_that_is_no_number_is_not_waited_for():
    assert asked_wait("nan") == asked_wait("-inf") == 0.0 and asked_wait("inf") == 600.0


# --- the way there -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """The files of a certificate for this machine, which nobody has signed."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("certificate")
    words = [
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
    ]
    files = ["-keyout", folder / "key.pem", "-out", folder / "certificate.pem"]
    command = ["openssl", *words, "subjectAltName=IP:127.0.0.1", *files]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "certificate.pem", folder / "key.pem"


def test_a_certificate_is_trusted_where_the_environment_says_so(certificate, monkeypatch):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with serving(Script([answer(200, {"text": "there"})]), certificate=context) as server:
        assert server.url.startswith("https")
        start = time.monotonic()
        with pytest.raises(ServerError, match="expected a certificate that is trusted here, got"):
            ask(server, timeout_seconds=60.0)
        assert server.asked == 0 and time.monotonic() - start < 30
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        assert ask(server) == {"text": "there"}


@pytest.mark.parametrize("value", ["/nowhere.pem", __file__])
def test_a_file_without_certificates_is_one_line(monkeypatch, value):
    monkeypatch.setenv("SSL_CERT_FILE", value)
    with pytest.raises(ConfigError, match="^SSL_CERT_FILE: expected a file of certificates"):
        Transport(ServedConfig(["http://127.0.0.1:1"]))


class Proxy(Script):
    """Notes where it was asked to go."""

    async def answer(self, path, headers, body):
        self.path, self.shown = path, headers.get("proxy-authorization", "")
        status, more, content = await super().answer(path, headers, body)
        return status, more, content.replace(b"SHOWN", self.shown.encode())


def test_a_proxy_is_asked_as_the_environment_says_and_its_password_is_not_shown(monkeypatch):
    refused = answer(407, "not by SHOWN, nor by me:hunter22hunter22")
    with serving(Proxy([answer(200, {"text": "there"}), refused])) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("//", "//me:hunter22hunter22@"))
        far = Script([])
        far.url = "http://127.0.0.1:1"
        assert ask(far) == {"text": "there"}
        assert proxy.path == f"{far.url}/v1/completions" and "Basic " in proxy.shown
        with pytest.raises(ServerError, match="407 not by Basic <key>, nor by me:<key>") as error:
            ask(far)
        assert "hunter22" not in str(error.value)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with pytest.raises(ServerError, match="in the end ConnectError"):
            ask(far, timeout_seconds=0.2)
        assert proxy.asked == 2


@pytest.mark.parametrize("value", ["ftp://me:hunter22@proxy", "socks5://me:hunter22@proxy"])
def test_a_proxy_that_cannot_be_one_is_one_line_without_its_password(monkeypatch, value):
    monkeypatch.setenv("HTTP_PROXY", value)
    with pytest.raises(ConfigError, match="^HTTP_PROXY, .*: expected addresses such as") as error:
        Transport(ServedConfig(["http://127.0.0.1:1"]))
    assert "hunter22" not in str(error.value)


# --- adapters ------------------------------------------------------------------------------------


class Full(Engine):
    """Has room for one adapter."""

    def _load_adapter(self, asked):
        if self.adapters and asked["lora_name"] not in self.adapters:
            return refusal(500, "No free lora slots")
        return super()._load_adapter(asked)


def test_a_slot_that_is_full_is_one_line_and_what_was_loaded_stays(weights, adapters, monkeypatch):  # noqa: F811
    monkeypatch.setattr("lactchain.serving.transport.ORDER_SECONDS", 0.1)
    with serving(Full(weights / "actor", GRAMMAR)) as engine:
        first, second = (asked_of(engine, adapter=str(folder)) for folder in adapters[:2])
        actor = ServedActor.from_config(first, GRAMMAR)
        before = actor.act([STATE], [3])
        with pytest.raises(ServerError, match="in the end 500 No free lora slots"):
            ServedActor.from_config(second, GRAMMAR)
        assert list(engine.adapters) == [actor.adapter] and actor.act([STATE], [3]) == before
        engine.adapters.clear()
        assert ServedActor.from_config(second, GRAMMAR).adapter in engine.adapters


def test_an_engine_started_again_without_adapters_is_one_line(weights, adapters):  # noqa: F811
    with serving(Engine(weights / "actor", GRAMMAR)) as engine:
        actor = ServedActor.from_config(asked_of(engine, adapter=str(adapters[0])), GRAMMAR)
        engine.adapters.clear()
        engine.max_rank = 0
        with pytest.raises(ServerError, match="load_lora_adapter: refused, with 404 Not Found"):
            actor.act([STATE], [3])


class OneIdOther(Engine):
    """Its tokenizer says another number for one of the tokens."""

    def _tokenize(self, asked):
        status, more, content = super()._tokenize(asked)
        told = json.loads(content)
        other = self._actor(None, None, 1.0, 8).tokenizer('"', add_special_tokens=False)[
            "input_ids"
        ]
        told["tokens"] = [token + (token == other[-1]) for token in told["tokens"]]
        return status, more, json.dumps(told).encode()


def test_the_doctor_finds_a_tokenizer_that_differs_in_one_id(weights):
    with serving(OneIdOther(weights / "actor", GRAMMAR)) as engine:
        config = PlayerConfig(str(engine.model), served=asked_of(engine).served)
        found = {finding.what: finding for finding in examine(config, GRAMMAR, STATE)}
    assert [what for what, finding in found.items() if not finding.ok] == ["tokenizer"]
