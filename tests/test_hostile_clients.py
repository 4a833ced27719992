"""Whoever asks a server of ours, and however: it answers in a line, stays, and is not held up."""

import json
import socket
import time
import urllib.error
import urllib.request
from contextlib import suppress

import pytest
from openenv_servers import reset, running, running_world, said, session
from websockets.exceptions import ConnectionClosed, InvalidStatus

from lactchain.config.settings import EnvironmentConfig
from lactchain_extras.ecosystems import openenv_server
from lactchain_extras.ecosystems.openenv_server import Served


@pytest.fixture(scope="module")
def url():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openenv_server, "REQUEST_SECONDS", 0.5)
        with running_world(EnvironmentConfig("lactchain/GridWorld-v0", {"size": 2})) as url:
            yield url


def connected(url):
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def status(url, path="/health", **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, None, headers)) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        assert len(error.read()) < 400
        return error.code


FOREIGN = ["https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1:1", "file://"]
FOREIGN += ["http://[::1", "\xe9://\xff"]  # no addresses at all


@pytest.mark.parametrize("origin", FOREIGN)
def test_pages_of_other_servers_may_not_play(url, origin):
    with pytest.raises(InvalidStatus, match="403"):
        session(url, origin=origin)
    assert status(url, Origin=origin) == 403


def test_programs_and_own_pages_may_play_and_no_page_by_a_name_that_leads_here(url):
    name = f"evil.example:{url.rpartition(':')[2]}"
    assert status(url, Origin=f"http://{name}", Host=name) == 403
    for origin in (None, url):
        with session(url, origin=origin) as player:
            assert said(player, reset(seed=0))["type"] == "observation"
    assert status(url) == status(url, Origin=url) == 200
    assert status(url, "/passwd") == 404


HEAD = b"POST /tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
ASKS = b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
ASKS += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
FIRST = [b"", b"G", HEAD, HEAD + b"\r\n", ASKS, ASKS + b"Content-Length: 5\r\n\r\nhello"]
FIRST += [HEAD.replace(b"Content-Length: 1000", b"Transfer-Encoding: chunked") + b"\r\n"]
FIRST += [b"GET /" + b"x" * 100_000, b"x: y\r\n" * 100_000, b"\xff\xfe\r\n\r\n"]


@pytest.mark.parametrize("first", FIRST, ids=range(len(FIRST)))
@pytest.mark.parametrize("drip", [b"", b" ", b"1\r\na\r\n" * 40_000], ids=range(3))
def test_a_request_that_never_ends_is_closed_and_nobody_else_waits_for_it(url, first, drip):
    late = time.monotonic() + 10
    with connected(url) as client, suppress(ConnectionError):  # it is closed
        client.sendall(first)
        assert status(url) == 200 and time.monotonic() < late
        client.settimeout(0.05)
        while time.monotonic() < late:
            with suppress(TimeoutError):
                if client.recv(4096) == b"":
                    break
            with suppress(TimeoutError):
                client.sendall(drip)
        else:
            pytest.fail("it stayed open")


def test_bytes_that_are_no_text_end_their_session_alone(url, caplog, capfd):
    with connected(url) as client:
        client.sendall(ASKS + b"\r\n")
        assert b" 101 " in client.recv(4096)
        client.sendall(b"\x81\x82\0\0\0\0\xff\xfe")
        assert client.recv(4096)[:1] == b"\x88"  # an end
    assert status(url) == 200
    assert "Traceback" not in caplog.text + "".join(capfd.readouterr())


def test_a_session_outlives_the_time_for_a_request(url):
    with session(url) as player:
        time.sleep(1.0)
        assert said(player, reset(seed=0))["type"] == "observation"


def test_who_takes_no_replies_and_whose_world_is_not_made_keep_no_place(monkeypatch):
    monkeypatch.setattr(openenv_server, "SENDING_SECONDS", 1)
    served = Served(EnvironmentConfig(), max_sessions=1)
    with running(served.pages, served.play) as url:
        (env,) = served._idle
        served._idle.clear()
        with monkeypatch.context() as patch:
            patch.setitem(vars(served._config), "id", "gone")
            with session(url) as player:
                assert "no Gymnasium environment" in json.loads(player.recv())["data"]["message"]
        served._idle.append(env)
        with session(url, max_queue=1, close_timeout=1) as player, pytest.raises(ConnectionClosed):
            while True:  # it is told each time, at this length, that there is no such type
                player.send(json.dumps({"type": "x" * 100_000}))
        with session(url) as player:
            assert said(player, reset(seed=0))["type"] == "observation"
