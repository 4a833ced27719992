"""Whatever a server does on the wire: an answer or one of our errors, and never late."""

import random
import socket
import threading
import time
from contextlib import closing, suppress

import httpx2
import pytest

from lactchain.errors import LactChainError
from lactchain_extras.serving.transport import Unfinished, clients, parsed, text_of

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


@pytest.fixture
def server():
    """Sets the fault, and the address of a server that has it."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    chosen = {"fault": "good", "chance": random.Random(0)}

    def serve(peer):
        with closing(peer), suppress(OSError):
            peer.recv(65_536)
            FAULTS[chosen["fault"]](peer, chosen["chance"])

    def listen():
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=listen, daemon=True).start()
    yield chosen, f"http://127.0.0.1:{listening.getsockname()[1]}/generate"
    listening.close()


def exchange(client, address, body):
    """What came of one exchange, and how long it took."""
    began = time.monotonic()
    try:
        outcome = parsed(address, text_of(client, address, body))
    except (LactChainError, Unfinished, httpx2.RequestError) as error:
        outcome = error
        assert len(str(error)) < 1000
    return outcome, time.monotonic() - began


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_a_server_is_an_error_of_ours_within_the_time(server, fault):
    chosen, address = server
    (client,) = clients(1, PATIENCE)
    with client:
        chosen["fault"] = fault
        outcome, seconds = exchange(client, address, {"text": "x"})
        assert (outcome == {"a": 1}) == (fault == "good")
        assert seconds < 30, "the server sleeps for 60"
        chosen["fault"] = "good"
        again = [exchange(client, address, None)[0] for _ in range(3)]  # a connection may be stale
        assert {"a": 1} in again


@pytest.mark.slow
def test_two_thousand_exchanges_with_a_server_that_draws_its_faults(server):
    chosen, address = server
    chance = random.Random(1)
    (client,) = clients(1, PATIENCE)
    with client:
        for _ in range(2000):
            chosen["fault"] = chance.choice([*FAULTS])
            outcome, seconds = exchange(client, address, chance.choice([None, {"text": "x"}]))
            read = outcome == {"a": 1}
            stale = isinstance(outcome, httpx2.RequestError)  # a connection that was closed since
            assert read or stale if chosen["fault"] == "good" else not read, chosen["fault"]
            assert seconds < PATIENCE + 1.0, chosen["fault"]
