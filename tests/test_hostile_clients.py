"""Whoever asks a server of ours, and however: it answers in a line, stays, and is not held up."""

import json
import socket
import time
import urllib.error
import urllib.request
from contextlib import closing, suppress
from http.client import HTTPConnection

import pytest
from openenv_servers import reset, running, said, session
from websockets.exceptions import InvalidStatus

from lactchain.config.settings import EnvironmentConfig
from lactchain_extras.ecosystems import openenv_server
from lactchain_extras.ecosystems.openenv_server import MOST_BYTES, Served

GRID = EnvironmentConfig("lactchain/GridWorld-v0", {"size": 2})


@pytest.fixture(scope="module")
def url():
    with running(Served(GRID).app()) as url:
        yield url


def post(url, body, **headers):
    request = urllib.request.Request(f"{url}/GridWorld/task", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def asking(**data):
    return json.dumps({"split": "train"} | data).encode()


FOREIGN = ["https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1:1", "file://"]
FOREIGN += ["http://[::1", "\xe9://\xff"]  # no addresses at all


@pytest.mark.parametrize("origin", FOREIGN)
def test_pages_of_other_servers_may_not_play(url, origin):
    with pytest.raises(InvalidStatus, match="403"):
        session(url, origin=origin)
    assert post(url, asking(index=0), Origin=origin)[0] == 403


def test_a_name_that_leads_here_makes_no_page_one_of_ours(url):
    port = url.rpartition(":")[2]
    name = f"evil.example:{port}"
    assert post(url, asking(index=0), Origin=f"http://{name}", Host=name)[0] == 403


def test_programs_and_pages_of_this_server_may_play(url):
    for origin in (None, url):
        with session(url, origin=origin) as player:
            assert said(player, reset(seed=0))["type"] == "observation"
    assert post(url, asking(index=0))[0] == post(url, asking(index=0), Origin=url)[0] == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"x" * (MOST_BYTES + 1), 413),
        (b'{"split": "' + b"x" * (MOST_BYTES - 100) + b'"}', 400),
        (b"[" * 60_000, 400),
        (b"", 400),
        (b"null", 400),
        (b"\xff\xfe", 400),
        (asking(index=True), 400),
        (asking(index=-1), 400),
        (asking(index=0.0), 400),
        (asking(index=10**30), 400),
        (asking(), 400),
        (asking(split=["train"], index=0), 400),
    ],
)
def test_a_body_that_asks_for_nothing_there_is_one_short_line(url, body, status):
    found, told = post(url, body)
    assert found == status and len(told) < 400
    assert post(url, asking(index=1))[0] == 200


HEAD = b"POST /GridWorld/task HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"


@pytest.mark.parametrize(
    "first", [b"", b"G", HEAD, HEAD + b"\r\n", HEAD + b'\r\n{"split": '], ids=range(5)
)
@pytest.mark.parametrize("drip", [b"", b" "], ids=["silent", "dripping"])
def test_a_request_that_never_ends_is_closed(url, monkeypatch, first, drip):
    monkeypatch.setattr(openenv_server, "REQUEST_SECONDS", 0.3)
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(first)
        client.settimeout(0.05)
        with suppress(ConnectionError):  # it is closed
            for _ in range(600):
                with suppress(TimeoutError):
                    if client.recv(4096) == b"":
                        break
                client.sendall(drip)
            else:
                pytest.fail("it stayed open")


ASKS = b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
ASKS += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (ASKS + b"Content-Length: 5\r\n\r\nhello", b""),  # a session is never opened by it
        (HEAD.replace(b"Content-Length: 1000", b"Transfer-Encoding: chunked") + b"\r\n", b" 400 "),
        (ASKS + b"\r\n", b" 101 "),
    ],
    ids=["a body before a session", "parts of one byte", "bytes that are no text"],
)
def test_nobody_else_waits_for_a_client_that_breaks_the_rules(url, monkeypatch, caplog, sent, told):
    monkeypatch.setattr(openenv_server, "REQUEST_SECONDS", 0.5)
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(sent)
        heard = client.recv(4096) if b"101" in told else b""
        with suppress(ConnectionError):  # it may be closed in the middle
            if b"chunked" in sent:
                client.sendall(b"1\r\na\r\n" * 400_000)
            elif heard:
                client.sendall(b"\x81\x82\0\0\0\0\xff\xfe")
        begun = time.monotonic()
        assert post(url, asking(index=0))[0] == 200 and time.monotonic() - begun < 5
        with suppress(ConnectionError):
            while part := client.recv(4096):
                heard += part
    assert told in heard[:200] and "Traceback" not in caplog.text


def test_a_session_outlives_the_time_for_a_request(url, monkeypatch):
    monkeypatch.setattr(openenv_server, "REQUEST_SECONDS", 0.2)
    with session(url) as player:
        time.sleep(0.6)
        assert said(player, reset(seed=0))["type"] == "observation"


def test_one_connection_asks_again_and_again(url):
    with closing(HTTPConnection(url.removeprefix("http://"), timeout=30)) as client:
        ports = set()
        for _ in range(3):
            client.request("GET", "/health")
            assert b"healthy" in client.getresponse().read()
            ports.add(client.sock.getsockname())
        assert len(ports) == 1
