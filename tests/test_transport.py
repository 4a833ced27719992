"""Requests to servers: what is tried again, what is an error, and who hears a signal."""

import os
import signal
import time
from types import SimpleNamespace

import pytest
from engine_stand_in import Script, Silent, answer, refusal, serving
from serving_setups import ask, asking

from lactchain.config.settings import ServedConfig
from lactchain.errors import ConfigError, Interrupted, ServerError
from lactchain_extras.serving.servers import models_at
from lactchain_extras.serving.transport import KEY, Transport, answers, transport_of


def test_what_may_pass_is_tried_again_and_as_late_as_it_asks_for():
    passing = [answer(503, "<p>soon</p>"), answer(425, ""), None, answer(200, '{"cut": ')]
    late = answer(429, "", **{"Retry-After": "0.4"})
    with serving(Script([*passing, late, answer(200, {"text": "there"})])) as server:
        start = time.monotonic()
        assert ask(server) == {"text": "there"}
        assert server.asked == 6 and time.monotonic() - start > 0.4


ECHO = "Bearer sk-12345-67890"


@pytest.mark.parametrize("reply", [
    answer(200, f"<html>{ECHO}</html>"), answer(200, {"echo": ECHO}),
    answer(200, f"<html>{'.' * 34} {ECHO}</html>"),  # cut in the middle of the key
    refusal(401, f"wrong key: {ECHO}\nask your admin"),
])  # fmt: skip
def test_what_will_not_pass_is_one_line_without_the_key(monkeypatch, reply):
    def read(body):
        raise ServerError(f"expected something else, got {body}")

    monkeypatch.setenv(KEY, "sk-12345-67890\n")
    with serving(Script([reply])) as server, asking(server) as transport:
        post = lambda: transport.post("/v1/completions", {}, read).result()  # noqa: E731
        for number, ask_it in enumerate((post, lambda: models_at(transport, server.url))):
            with pytest.raises(ServerError) as error:
                ask_it()
            said = str(error.value)
            assert "<key>" in said and "sk-12345" not in said and "\n" not in said
            assert server.asked == number + 1 and error.value.exit_code == 8


@pytest.mark.parametrize("key", ["sk-1\nsk-2", "schlüssel", "sk 12345"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(monkeypatch, key):
    monkeypatch.setenv(KEY, key)
    with pytest.raises(ConfigError, match=f"^{KEY}: expected letters") as error:
        Transport(["http://127.0.0.1:1"])
    assert key not in str(error.value)


def test_a_server_that_puts_off_beyond_the_time_out_is_given_up_at_once():
    late = answer(503, "closed for the night", **{"Retry-After": "300"})
    with serving(Script([late])) as server:
        start = time.monotonic()
        with pytest.raises(ServerError, match="no answer for 0 s, .* night"):
            ask(server, timeout_seconds=60.0)
        assert server.asked == 1
        with (
            serving(Script([answer(200, {"text": "there"})])) as other,
            asking(server, other, timeout_seconds=60.0) as transport,
        ):
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

    with serving(Busy([])) as server, asking(server, timeout_seconds=1.0) as transport:
        put_off = transport.post("/late", {}, dict)
        while not put_off.done():
            transport.post("/v1/completions", {}, dict).result()
            time.sleep(0.05)
        assert put_off.result() == {"text": "there"}


NO_URLS = ["node1:8000", "ftp://node1", "http://me:secret@node1", "me:secret@node1:8000"]


@pytest.mark.parametrize("url", [*NO_URLS, "https://me:sec#secret@node1"])
def test_addresses_are_plain_ones(url):
    with pytest.raises(ValueError, match="^urls: expected") as error:
        ServedConfig([url])
    assert "secret" not in str(error.value)


NOBODY = SimpleNamespace(url="http://127.0.0.1:1")
ORDERS = {
    "a row": lambda t: answers([t.post("/v1/completions", {}, dict) for _ in range(3)]),
    "a page": lambda t: models_at(t, t.urls[0]),
    "an order": lambda t: t.tell(t.urls[0], "/v1/load_lora_adapter", {}),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("dead", [False, True], ids=["silent", "dead"])
def test_who_waits_for_servers_hears_a_signal_and_asks_no_more(monkeypatch, order, dead):
    monkeypatch.setattr("lactchain_extras.serving.transport.LISTEN_SECONDS", 0.1)
    monkeypatch.setattr("lactchain.runs.process._requested_signal", 15)
    with serving(Silent([])) as server:
        with (
            asking(NOBODY if dead else server, timeout_seconds=120.0, in_flight=1) as transport,
            pytest.raises(Interrupted, match="^stopped") as stop,
        ):
            order(transport)
        time.sleep(0.2)
        assert server.asked == (not dead) and stop.value.exit_code == 143


def test_a_key_that_is_set_later_is_used(monkeypatch):
    settings = ServedConfig(["http://127.0.0.1:9"], in_flight=1, timeout_seconds=5.0)
    monkeypatch.delenv(KEY, raising=False)
    without = transport_of(settings)
    monkeypatch.setenv(KEY, "good")
    assert transport_of(settings) is transport_of(settings) is not without


def test_a_fork_has_a_transport_of_its_own():
    with serving(Script([answer(200, "[1]")])) as server:
        settings = ServedConfig([server.url], in_flight=1, timeout_seconds=5.0)
        assert transport_of(settings) is transport_of(settings)
        assert transport_of(settings).tell(server.url, "/") == [1]
        child = os.fork()
        if child == 0:
            os._exit(0 if transport_of(settings).tell(server.url, "/") == [1] else 2)
        late = time.monotonic() + 20.0
        while (found := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > late:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.05)
        assert os.waitstatus_to_exitcode(found[1]) == 0
