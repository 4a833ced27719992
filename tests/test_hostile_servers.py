"""Whatever a server does on the wire: an answer or one of our errors, and never late."""

import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import repeat

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


def sending(parts, every=0.0, then=0.0):
    """Part after part, and in the end silence for so long."""

    def play(peer, chance):
        for part in parts:
            peer.sendall(part)
            time.sleep(every)
        time.sleep(then)

    return play


def dripping(data):
    return sending([bytes([byte]) for byte in data], DRIP, then=60)


def endlessly(data):
    return sending(repeat(data), DRIP)


def saying(data, then=0.0):
    return sending([data], then=then)


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
    # Whoever follows it gets the good answer.
    "elsewhere": saying(b"HTTP/1.1 302 F\r\nLocation: /0/0\r\nContent-Length: 0\r\n\r\n"),
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


@pytest.mark.slow
def test_two_thousand_exchanges_with_a_server_that_draws_its_faults(url):
    made = clients(16, PATIENCE)  # first: reading certificates would make exchanges of others late

    def exchanges(seed):
        chance = random.Random(seed)
        with made[seed] as client:
            for number in range(125):
                fault, body = chance.choice([*FAULTS]), chance.choice([None, {"text": "x"}])
                yield fault, *exchange(client, url, fault, number, body)

    with ThreadPoolExecutor(16) as threads:
        found = [row for rows in threads.map(lambda n: [*exchanges(n)], range(16)) for row in rows]
    assert len(found) == 2000 and {fault for fault, _, _ in found} == {*FAULTS}
    for fault, outcome, seconds in found:
        read = outcome == {"a": 1}
        stale = isinstance(outcome, httpx2.RequestError)  # a connection that was closed since
        assert read or stale if fault == "good" else not read, fault
        assert seconds < PATIENCE + 1.0, fault
