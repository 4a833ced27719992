"""Requests to servers: so many at once, each in a thread of its own, tried again where that helps.

What may pass is tried again: connections that fail or break, cut answers, and 408, 409, 425, 429
and 5xx; after a random time below a bound that doubles ("full jitter", Brooker 2015, "Exponential
backoff and jitter"), or the time that `Retry-After` asks for. What will not pass is an error with
the server's own words.
"""

import json
import math
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, InvalidStateError, TimeoutError, wait
from contextlib import contextmanager, suppress
from functools import cache
from itertools import cycle
from queue import SimpleQueue
from socket import SHUT_RDWR
from threading import Thread, Timer
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import httpx2

from lactchain.config.settings import ServedConfig
from lactchain.errors import ConfigError, Interrupted, ServerError
from lactchain.runs.process import stop_requested

Answer = TypeVar("Answer")
Body = Mapping[str, Any]
Ask = Callable[[httpx2.Client, str], Any]

KEY = "LACTCHAIN_SERVER_KEY"  # of the environment; nothing writes its value down
MAY_PASS = {408, 409, 425, 429}
FIRST_WAIT, LONGEST_WAIT = 0.1, 20.0  # seconds at most, of the first repetition and of any
LISTEN_SECONDS = 1.0  # after which it looks whether it is to stop
ORDER_SECONDS = 10.0  # for one that fails: engines refuse an adapter by a 500, which stays one
CUT_SECONDS = 0.5  # after the time for an answer, where not even its head has come
MOST_BYTES = 2**26  # of an answer; one of a million tokens has fewer
LOST = re.compile("refused, with 404|never been loaded|are not loaded")  # SGLang says it by a 400
PAUSES = random.SystemRandom()  # games play by the dice of the process
FIRST = re.compile("already (been )?loaded")  # an adapter, by another process or row
ITSELF = "give the address of the server itself as actor.served.urls"


_sockets: WeakKeyDictionary[httpx2.Client, Any] = WeakKeyDictionary()


class Unfinished(Exception):
    """There is no answer yet, so that it is asked for again, after the seconds asked for."""

    def __init__(self, problem: str, asked_for: float = 0.0) -> None:
        super().__init__(problem)
        self.asked_for = asked_for


class RefusedError(ServerError):
    """A server will not do what it was asked, whatever the time."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Transport:
    """Requests to some servers that all answer alike.

    A request goes to the server that its `start` falls on, so that equal prompts meet in one cache,
    and each repetition to the next one.
    """

    def __init__(
        self, urls: Sequence[str], in_flight: int = 64, timeout_seconds: float = 120.0
    ) -> None:
        self.urls = [url.rstrip("/").removesuffix("/v1") for url in urls]
        self._in_flight, self._patience, self._answered = in_flight, timeout_seconds, -math.inf
        self._asked: SimpleQueue[tuple | None] = SimpleQueue()
        for client in clients(in_flight, timeout_seconds):
            # A daemon: who waits for a dead server must not hold up the end of the process.
            Thread(target=self._work, args=(client,), daemon=True).start()

    def close(self) -> None:
        """Ends the threads, each behind what it is at. Nothing can be asked any more."""
        for _ in range(self._in_flight):
            self._asked.put(None)

    def post(
        self, path: str, body: Body, read: Callable[[Any], Answer], start: int = 0, lost: Any = None
    ) -> Future[Answer]:
        """The answer to a question, as `read` makes it of the JSON, on the thread of the request.

        Args:
            lost: path and body of the order for a server that has lost an adapter, if any.
        """

        def ask(client: httpx2.Client, url: str) -> Answer:
            try:
                text = text_of(client, url + path, body)
            except RefusedError as error:
                if lost is None or not LOST.search(str(error)):
                    raise
                text_of(client, url + lost[0], lost[1])
                text = text_of(client, url + path, body)
            return read(parsed(url + path, text))

        first = start % len(self.urls)
        return self._later(self.urls[first:] + self.urls[:first], ask, self._patience)

    def tell(
        self, url: str, path: str, body: Body | None = None, patience: float = ORDER_SECONDS
    ) -> Any:
        """What one server says to an order; without a body the JSON of a page."""

        def ask(client: httpx2.Client, url: str) -> Any:
            text = text_of(client, url + path, body)
            return parsed(url + path, text) if body is None else text

        return answers([self._later([url], ask, min(patience, self._patience))])[0]

    def _later(self, urls: Sequence[str], ask: Ask, patience: float) -> Future[Any]:
        """The answer of the first server that gives one, from the first thread that is free."""
        future: Future[Any] = Future()
        self._asked.put((future, urls, ask, patience))
        return future

    def _work(self, client: httpx2.Client) -> None:
        """Asks one question after another, until `close`; no error shows the key."""
        with client:
            for future, *asked in iter(self._asked.get, None):
                with suppress(InvalidStateError):  # nobody waits for it any more
                    try:
                        if not future.cancelled():
                            future.set_result(self._answer(client, future, *asked))
                    except Exception as error:  # noqa: BLE001  - who asked is told of every kind
                        error.args = (hidden(str(error)), *error.args[1:])
                        future.set_exception(error)

    def _answer(
        self, client: httpx2.Client, future: Future, urls: Sequence[str], ask: Ask, patience: float
    ) -> Any:
        failed_since = None
        for attempt, url in enumerate(cycle(urls)):
            try:
                answer = ask(client, url)
                self._answered = time.monotonic()
                return answer
            except Unfinished as error:
                failure = error
            except httpx2.RequestError as error:
                failure = Unfinished(f"{type(error).__name__} {error}".strip())
            now = time.monotonic()
            failed_since = failed_since or now
            quiet = now - max(failed_since, self._answered)
            asked_for = failure.asked_for if len(urls) == 1 else 0.0
            if quiet + asked_for > patience:
                mend = "what is finished is kept: start the server, then give the same command"
                since = f"no answer for {quiet:.0f} s, in the end {failure}"
                raise ServerError(f"{url}: {since}; {mend}")
            most = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(attempt, 30))
            with suppress(TimeoutError):  # the end of the pause; at once if nobody waits any more
                future.result(max(asked_for, PAUSES.uniform(0, most)))


def clients(in_flight: int, seconds: float) -> list[httpx2.Client]:
    """A client for each request in flight: one with many connections looks at all of them."""
    key = os.environ.get(KEY, "").strip()
    if not (key.isascii() and key.isprintable()) or set(key) & set(" '\"\\"):
        what = "letters, digits and signs of one line, without spaces and quotes"
        raise ConfigError(f"{KEY}: expected {what}, got others; set it to the key alone")
    headers = {"User-Agent": "lactchain", "Content-Type": "application/json"}
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx2.Timeout(seconds, connect=min(10.0, seconds))
    try:
        trusted = httpx2.create_ssl_context()
        options = {"headers": headers, "timeout": timeout, "verify": trusted}
        return [httpx2.Client(**options) for _ in range(in_flight)]
    except (OSError, ValueError, ImportError, httpx2.InvalidURL):  # the address of a proxy is one
        raise ConfigError(  # which may have a password
            "SSL_CERT_FILE, HTTP_PROXY, HTTPS_PROXY, ALL_PROXY: expected a file of certificates, "
            "and addresses such as http://proxy:3128, got others; correct the variables"
        ) from None


def text_of(client: httpx2.Client, address: str, body: Body | None = None) -> str:
    """The text of an answer, bounded in time and size; `Unfinished` or `RefusedError` of others."""
    late, text = time.monotonic() + client.timeout.read, bytearray()
    method, content = ("GET", None) if body is None else ("POST", json.dumps(body))
    with (
        cut_off(client) as note,
        client.stream(method, address, content=content, extensions={"trace": note}) as response,
    ):
        for part in response.iter_bytes():
            text += part
            if len(text) > MOST_BYTES:
                most = f"an answer of {MOST_BYTES:,} bytes at most"
                raise ServerError(f"{address}: expected {most}, got more; {ITSELF}")
            if time.monotonic() > late:
                raise Unfinished(f"{len(text):,} bytes of an answer that did not end")
    body_text, status = text.decode(errors="replace"), response.status_code
    if response.is_success or FIRST.search(body_text):
        return body_text
    words = f"{status} {quoted(response.headers.get('Location') or body_text, 300)}"
    if status in MAY_PASS or status >= 500:
        asked_for = response.headers.get("Retry-After", "")  # a date, as pages have it, is none
        is_number = asked_for.replace(".", "", 1).isdecimal()
        raise Unfinished(words, float(asked_for) if is_number else 0.0)
    raise RefusedError(status, f"{address}: refused, with {words}")


@contextmanager
def cut_off(client: httpx2.Client) -> Iterator[Callable[[str, Mapping[str, Any]], None]]:
    """Ends what a client waits for when its time is over, headers and `100 Continue` included.

    Its own limit is of each read alone, so that a byte a second would keep it for ever.

    Yields:
        What the client is to tell of its work (httpcore's extension `trace`).
    """

    def note(event: str, about: Mapping[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            _sockets[client] = about["return_value"].get_extra_info("socket")

    def cut() -> None:
        with suppress(OSError, KeyError):
            _sockets[client].shutdown(SHUT_RDWR)

    timer = Timer(client.timeout.read + CUT_SECONDS, cut)
    timer.daemon = True
    timer.start()
    try:
        yield note
    finally:
        timer.cancel()


def parsed(address: str, text: str) -> Any:
    """The JSON of an answer; `Unfinished` where it is cut, `ServerError` where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if text.lstrip().startswith(("{", "[")):
            raise Unfinished("a cut answer") from None
    raise ServerError(f"{address}: expected JSON, got {quoted(text, 60)!r}; {ITSELF}")


def hidden(text: str) -> str:
    """A text without the key of the servers."""
    key = os.environ.get(KEY, "").strip()
    return text.replace(key, "<key>") if key else text


def quoted(text: str, most: int) -> str:
    """The beginning of a text of somebody else's, without the key and what moves on the screen."""
    seen = (letter if letter.isprintable() else " " for letter in hidden(text)[:10_000])
    return " ".join("".join(seen).split())[:most]


def answers(futures: Sequence[Future[Answer]]) -> list[Answer]:
    """The answers to all; `ServerError`, or `Interrupted` by a signal, and no more is asked."""
    pending = set(futures)
    try:
        while pending:
            done, pending = wait(pending, LISTEN_SECONDS, FIRST_EXCEPTION)
            for future in done:
                future.result()
            if pending and (number := stop_requested()):
                message = "stopped; what is finished is kept, give the same command to go on"
                raise Interrupted(number, message)
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


def transport_of(settings: ServedConfig) -> Transport:
    """The one transport of this process for these settings: its connections outlive a stage."""
    asked = tuple(settings.urls), settings.in_flight, settings.timeout_seconds
    return _transport(asked, os.environ.get(KEY))


@cache
def _transport(asked: tuple[Any, ...], key: str | None) -> Transport:
    return Transport(*asked)  # with that key, as long as it is the key


os.register_at_fork(after_in_child=_transport.cache_clear)
