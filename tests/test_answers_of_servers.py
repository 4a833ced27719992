"""What comes of servers, and of the way there, that is no answer: one line, and in time."""

import asyncio
import gzip
import json
import shutil
import ssl
import subprocess

import pytest
from engine_stand_in import Script, Server, answer, serving
from serving_setups import GRAMMAR, STATE, ask, asked_of, asking

from lactchain.errors import ConfigError, ServerError
from lactchain_extras.serving.policy import ServedActor
from lactchain_extras.serving.servers import models_at
from lactchain_extras.serving.transport import Transport


def told_of(ids=None, logprobs=None):
    """The parts of an answer that tell of tokens."""
    told = {} if ids is None else {"token_ids": ids}
    return told | {"logprobs": {"token_logprobs": logprobs}}


def told_by(reply, words, **more):
    """What is said when a server answers nothing but this; how often it was asked."""
    with serving(Script([reply])) as server, pytest.raises(ServerError, match=words) as error:
        ask(server, **more)
    return str(error.value), server.asked


COMPLETION = "^/v1/completions: expected a completion with"
NO_LOGPROBS = float("nan"), -float("inf"), 0.5, None, "-0.5"
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
    **{f"the token {t}": (told_of([t], [0.0]), COMPLETION) for t in ("a", -1, 1.5, 10**9)},
    **{f"a log-probability of {p!r}": (told_of([5], [p]), COMPLETION) for p in NO_LOGPROBS},
}


@pytest.mark.parametrize(("changes", "words"), WRONG.values(), ids=WRONG)
def test_parts_of_a_wrong_kind_or_request_are_one_line(engine, monkeypatch, changes, words):
    actor = ServedActor.from_config(asked_of(engine, decoding="constrained"), GRAMMAR)
    monkeypatch.setattr(engine, "changes", changes)
    with pytest.raises(ServerError, match=words) as error:
        actor.act([STATE], [3])
    assert "\n" not in str(error.value)


CHOICES = ["{}", "[null]", "[{}, {}]", '[["text"]]']
BODIES = ["[]", "{}", '[{"choices": 1}]', *(f'{{"choices": {told}}}' for told in CHOICES)]


@pytest.mark.parametrize("body", BODIES)
def test_bodies_of_a_wrong_kind_are_one_line(engine, body):
    actor = ServedActor.from_config(asked_of(engine), GRAMMAR)
    with serving(Script([answer(200, body)])) as server, asking(server) as transport:
        actor._transport = transport
        with pytest.raises(ServerError, match="expected a completion with"):
            actor.act([STATE], [3])


@pytest.mark.parametrize("cards", [5, {}, [None], [[]], [{"id": 5}], [{"id": "base"}, "x"], []])
def test_a_list_of_models_that_is_none_is_one_line(cards):
    with serving(Script([answer(200, {"data": cards})])) as server, asking(server) as transport:
        refused = pytest.raises(ServerError, models_at, transport, server.url)
    assert refused.match("expected a list of models")


def test_an_answer_without_end_or_measure_is_one_line(monkeypatch):
    told_by(answer(200, "[" * 100_000), "in the end a cut answer", timeout_seconds=0.3)
    monkeypatch.setattr("lactchain_extras.serving.transport.MOST_BYTES", 10_000)
    small = gzip.compress(b" " * 1_000_000)
    for huge in (answer(200, " " * 10_001), (200, {"Content-Encoding": "gzip"}, small)):
        assert told_by(huge, "expected an answer of 10,000 bytes at most")[1] == 1


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
    shown, _ = told_by(answer(400, words), r"with 400 \[2Jcl \]0;title ear gnorw$")
    assert shown.isprintable()


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


ODD = [("SSL_CERT_FILE", file) for file in ("/nowhere.pem", __file__)]
ODD += [("HTTP_PROXY", f"{scheme}://me:hunter22@proxy") for scheme in ("ftp", "socks5")]


@pytest.mark.parametrize(("name", "value"), ODD)
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
