"""What comes of servers, and of the way there, that is no answer: one line, and in time."""

import asyncio
import gzip
import json
import random
import shutil
import socket
import ssl
import subprocess
import threading
import time
from contextlib import closing, suppress

import httpx2
import pytest
from engine_stand_in import Script, Server, answer, serving
from serving_setups import GRAMMAR, STATE, ask, asked_of, asking

from lactchain.errors import ConfigError, LactChainError, ServerError
from lactchain_extras.serving.policy import ServedActor
from lactchain_extras.serving.servers import models_at
from lactchain_extras.serving.transport import Transport, Unfinished, clients, parsed, text_of


def told_of(ids=None, logprobs=None):
    """The parts of an answer that tell of tokens."""
    told = {} if ids is None else {"token_ids": ids}
    return told | {"logprobs": {"token_logprobs": logprobs}}


COMPLETION = "^/v1/completions: expected a completion with"
WRONG = {
    "an order of letters": ({"token_ids": "abc"}, COMPLETION),
    "no tokens": ({"token_ids": None}, COMPLETION),
    "no choice": ({"finish_reason": "stop", "text": None}, COMPLETION),
    "no list of prompt tokens": ({"prompt_token_ids": 7}, COMPLETION),
    "another prompt": ({"prompt_token_ids": [1, 2]}, "the prompt's tokens"),
    "another text": ({"text": "something else"}, "the completion's text"),
    "half a letter": ({"text": "\ud800"}, COMPLETION),
    "a text of numbers": ({"text": [1]}, COMPLETION),
    "more than asked for": (told_of([5] * 10_001, [0.0] * 10_001), "the number of tokens"),
    "too few numbers": (told_of(logprobs=[-1.0]), "a log-probability for each token"),
    "no end": (told_of([5], [-1.0]), "the end of the"),
    "tokens that are letters": (told_of(["a"], [0.0]), COMPLETION),
    "a negative token": (told_of([-1], [0.0]), COMPLETION),
    "a token and a half": (told_of([1.5], [0.0]), COMPLETION),
    "a token of nobody": (told_of([10**9], [0.0]), COMPLETION),
    "nan": (told_of([5], [float("nan")]), COMPLETION),
    "minus infinity": (told_of([5], [-float("inf")]), COMPLETION),
    "a probability above 1": (told_of([5], [0.5]), COMPLETION),
    "none": (told_of([5], [None]), COMPLETION),
    "a number as letters": (told_of([5], ["-0.5"]), COMPLETION),
}


@pytest.mark.parametrize(("changes", "words"), WRONG.values(), ids=WRONG)
def test_parts_of_a_wrong_kind_or_request_are_one_line(engine, monkeypatch, changes, words):
    actor = ServedActor.from_config(asked_of(engine, decoding="constrained"), GRAMMAR)
    monkeypatch.setattr(engine, "changes", changes)
    with pytest.raises(ServerError, match=words) as error:
        actor.act([STATE], [3])
    assert "\n" not in str(error.value)


BODIES = ["[]", "{}", '{"choices": {}}', '{"choices": [null]}', '{"choices": [{}, {}]}']


@pytest.mark.parametrize("body", [*BODIES, '{"choices": [["text"]]}', '[{"choices": 1}]'])
def test_bodies_of_a_wrong_kind_are_one_line(engine, body):
    actor = ServedActor.from_config(asked_of(engine), GRAMMAR)
    with serving(Script([answer(200, body)])) as server, asking(server) as transport:
        actor._transport = transport
        with pytest.raises(ServerError, match="expected a completion with"):
            actor.act([STATE], [3])


@pytest.mark.parametrize("cards", [5, {}, [None], [[]], [{"id": 5}], [{"id": "base"}, "x"], []])
def test_a_list_of_models_that_is_none_is_one_line(cards):
    reply = answer(200, {"data": cards})
    with (
        serving(Script([reply])) as server,
        asking(server) as transport,
        pytest.raises(ServerError, match="expected a list of models"),
    ):
        models_at(transport, server.url)


def test_an_answer_without_end_or_measure_is_one_line(monkeypatch):
    with (
        serving(Script([answer(200, "[" * 100_000)])) as server,
        pytest.raises(ServerError, match="in the end a cut answer"),
    ):
        ask(server, timeout_seconds=0.3)
    monkeypatch.setattr("lactchain_extras.serving.transport.MOST_BYTES", 10_000)
    small = gzip.compress(b" " * 1_000_000)
    for huge in (answer(200, " " * 10_001), (200, {"Content-Encoding": "gzip"}, small)):
        with serving(Script([huge])) as server:
            with pytest.raises(ServerError, match="expected an answer of 10,000 bytes at most"):
                ask(server)
            assert server.asked == 1


class Late(Server):
    """The first answer comes after its time."""

    async def answer(self, path, headers, body):
        if json.loads(body)["row"] == 0:
            await asyncio.sleep(1.0)
        return 200, {}, body


def test_an_answer_that_comes_too_late_is_not_that_of_the_next_row():
    with serving(Late()) as server, asking(server, in_flight=1, timeout_seconds=0.3) as transport:
        with pytest.raises(ServerError, match="no answer for .* (ReadTimeout|did not end)"):
            transport.post("/x", {"row": 0}, dict).result()
        for row in range(1, 4):
            assert transport.post("/x", {"row": row}, dict).result() == {"row": row}


def test_words_of_a_server_move_nothing_on_the_screen():
    words = "\x1b[2Jcl\x1b]0;title\x07ear\r\n \u202egnorw"
    with (
        serving(Script([answer(400, words)])) as server,
        pytest.raises(ServerError, match=r"with 400 \[2Jcl \]0;title ear gnorw$") as error,
    ):
        ask(server)
    assert str(error.value).isprintable()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """The files of a certificate for this machine, which nobody has signed."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("certificate")
    command = [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
        "-keyout", folder / "key.pem", "-out", folder / "certificate.pem",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return folder / "certificate.pem", folder / "key.pem"


def test_a_certificate_is_trusted_where_the_environment_says_so(certificate, monkeypatch):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with serving(Script([answer(200, {"text": "there"})]), certificate=context) as server:
        assert server.url.startswith("https")
        with pytest.raises(ServerError, match="ConnectError .*CERTIFICATE_VERIFY_FAILED"):
            ask(server, timeout_seconds=0.3)
        assert server.asked == 0
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        assert ask(server) == {"text": "there"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SSL_CERT_FILE", "/nowhere.pem"),
        ("SSL_CERT_FILE", __file__),
        ("HTTP_PROXY", "ftp://me:hunter22@proxy"),
        ("HTTP_PROXY", "socks5://me:hunter22@proxy"),
    ],
)
def test_certificates_and_proxies_that_are_none_are_one_line(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="^SSL_CERT_FILE, .*: expected a file of cert") as error:
        Transport(["http://127.0.0.1:1"])
    assert "hunter22" not in str(error.value)


class Proxy(Script):
    """Notes where it was asked to go."""

    async def answer(self, path, headers, body):
        self.path = path
        return await super().answer(path, headers, body)


def test_a_proxy_is_asked_as_the_environment_says(monkeypatch):
    with serving(Proxy([answer(200, {"text": "there"})])) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        far = Script([])
        far.url = "http://127.0.0.1:1"
        assert ask(far) == {"text": "there"}
        assert proxy.path == f"{far.url}/v1/completions"
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with pytest.raises(ServerError, match="in the end ConnectError"):
            ask(far, timeout_seconds=0.2)
        assert proxy.asked == 1


PATIENCE = 0.3
"""Seconds of an answer."""
DRIP = 0.05

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
GOOD = HEAD + b'Content-Length: 8\r\n\r\n{"a": 1}'
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def dripping(data):
    """A byte at a time, and in the end nothing but silence."""

    def play(peer, chance):
        for byte in data:
            peer.sendall(bytes([byte]))
            time.sleep(DRIP)
        time.sleep(60)

    return play


def endlessly(data):
    def play(peer, chance):
        while True:
            peer.sendall(data)
            time.sleep(DRIP)

    return play


def saying(data, then=0.0):
    def play(peer, chance):
        peer.sendall(data)
        time.sleep(then)

    return play


def cut_anywhere(peer, chance):
    peer.sendall(GOOD[: chance.randrange(len(GOOD))])


def noise(peer, chance):
    peer.sendall(chance.randbytes(chance.randrange(1, 400)))


FAULTS = {
    "good": saying(GOOD),
    "silent": saying(b"", then=60),
    "drips its head": dripping(HEAD * 40),
    "drips its body": dripping(HEAD + b"Content-Length: 9999\r\n\r\n" + b" " * 9999),
    "drips chunks": dripping(CHUNKED + b"1\r\n \r\n" * 900),
    "continues for ever": endlessly(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "hints for ever": endlessly(b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"),
    "a head without an end": endlessly(HEAD + b"X: y\r\n"),
    "closes": saying(b""),
    "cut anywhere": cut_anywhere,
    "noise": noise,
    "deep": saying(HEAD + b"Content-Length: 200000\r\n\r\n" + b"[" * 200_000),
    "no JSON": saying(HEAD + b"Content-Length: 5\r\n\r\nhello"),
    "another length": saying(HEAD + b"Content-Length: 99\r\n\r\n{}"),
    "a negative length": saying(HEAD + b"Content-Length: -1\r\n\r\n{}"),
    "two lengths": saying(HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
    "bad chunks": saying(CHUNKED + b"zz\r\n{}\r\n"),
    "no gzip": saying(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"),
    "a status that is none": saying(b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n"),
    "elsewhere": saying(
        b"HTTP/1.1 302 F\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"
    ),
    "busy": saying(b"HTTP/1.1 503 Busy\r\nRetry-After: 1e999\r\nContent-Length: 0\r\n\r\n"),
    "another protocol": saying(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", then=60),
}


@pytest.fixture(scope="module")
def url():
    """A server that has the fault whose number a path begins with; the rest is its chance."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)

    def serve(peer):
        with closing(peer), suppress(OSError):
            number, chance = peer.recv(65_536).split(b" ", 2)[1].strip(b"/").split(b"/")
            [*FAULTS.values()][int(number)](peer, random.Random(int(chance)))

    def listen():
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=listen, daemon=True).start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    listening.close()


def exchange(client, url, fault, chance=0, body=None):
    """What came of one exchange, and how long it took."""
    address, began = f"{url}/{[*FAULTS].index(fault)}/{chance}", time.monotonic()
    try:
        outcome = parsed(address, text_of(client, address, body))
    except (LactChainError, Unfinished, httpx2.RequestError) as error:
        outcome = error
        assert len(str(error)) < 1000
    return outcome, time.monotonic() - began


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_a_server_is_an_error_of_ours_within_the_time(url, fault):
    (client,) = clients(1, PATIENCE)
    with client:
        outcome, seconds = exchange(client, url, fault, body={"text": "x"})
        assert (outcome == {"a": 1}) == (fault == "good")
        assert seconds < 30, "the server sleeps for 60"
        again = [exchange(client, url, "good")[0] for _ in range(3)]  # a connection may be stale
        assert {"a": 1} in again
