"""Requests to servers: so many at once, tried again where that may help, in threads of their own.

A request in flight has a thread and a connection of its own, and the first answer of several that
come together is through before the second begins. In an event loop they wait for each other at
every step, so that the last one's time is that of all, and they come together again.

What may pass is tried again: connections that fail or break, and the answers 408, 409, 425, 429 and
5xx; after a random time below a bound that doubles ("full jitter", Brooker 2015, "Exponential
backoff and jitter"), or the time that `Retry-After` asks for. What will not pass is an error with
the server's own words.
"""

import atexit
import json
import math
import os
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import (
    FIRST_EXCEPTION,
    CancelledError,
    Future,
    InvalidStateError,
    TimeoutError,
    wait,
)
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.util import find_spec
from itertools import count
from queue import SimpleQueue
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

from lactchain.errors import ConfigError, Interrupted, ServerError
from lactchain.process import stop_requested
from lactchain.serving.connections import connections, proxy_passwords, server_key, traces
from lactchain.serving.replies import (
    NotJSON,
    Unfinished,
    asked_wait,
    one_line,
    own,
    parsed,
    said,
    whole,
)
from lactchain.settings import ServedConfig

if TYPE_CHECKING:
    import httpx2

Answer = TypeVar("Answer")

MAY_PASS = {408, 409, 425, 429}
FIRST_WAIT, LONGEST_WAIT = 0.1, 20.0
"""Seconds that the first repetition waits at most, and any of them."""
LISTEN_SECONDS = 1.0
"""How long answers are waited for before it looks whether it is to stop."""
ORDER_SECONDS = 10.0
"""How long an order that fails is repeated: engines refuse an adapter by a 500, which stays one."""
MOST_WORDS = 300
"""Letters of a server's own words in an error."""
UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
NOT_LOADED = re.compile("never been loaded|are not loaded")
"""How SGLang says, by a 400, that it has lost an adapter."""


@dataclass(frozen=True)
class Request:
    """What is asked of one server after another, until one answers.

    Attributes:
        content: of a POST; None: it is a GET.
        read: makes the answer of the text.
        lost: path and content of an order for a server that has lost what is asked for.
        patience: seconds without any answer after which it is given up.
        future: the answer.
    """

    urls: list[str]
    path: str
    content: bytes | None
    read: Callable[[str], Any]
    lost: tuple[str, bytes] | None = None
    patience: float = math.inf
    future: Future[Any] = field(default_factory=Future)


class Transport:
    """Requests to some servers that all answer alike.

    A request goes to the server that its `start` falls on, so that equal prompts meet in one cache,
    and each repetition to the next one.

    Args:
        settings: addresses, requests at once, time-out.
    """

    def __init__(self, settings: ServedConfig) -> None:
        if find_spec("httpx2") is None:
            raise ConfigError(
                "actor.served: servers are asked by httpx2: pip install -e '.[server]'"
            )
        import httpx2

        self.urls = [url.rstrip("/").removesuffix("/v1") for url in settings.urls]
        key = server_key()
        self._patience = settings.timeout_seconds
        self._secret = traces(key, *proxy_passwords())
        shown = {"Authorization": f"Bearer {key}"} if key else {}
        headers = {"User-Agent": "lactchain", "Content-Type": "application/json", **shown}
        self._written = partial(httpx2.Request, headers=httpx2.Headers(headers))
        self._broken = httpx2.RequestError
        self._senseless = (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol)
        self._answered = -math.inf
        self._closed = False
        self._asked: SimpleQueue[Request | None] = SimpleQueue()
        self._under_way: set[Future[Any]] = set()
        self._threads = [
            threading.Thread(target=self._work, args=(client,), name="requests", daemon=True)
            for client in connections(settings)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Gives up what is under way; connections close behind it. Once is enough."""
        self._closed = True
        for future in tuple(self._under_way):
            future.cancel()
        for _ in self._threads:
            self._asked.put(None)

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[Any], Answer],
        start: int = 0,
        lost: tuple[str, Mapping[str, Any]] | None = None,
    ) -> Future[Answer]:
        """The answer to a question, as `read` makes it of the JSON, on the thread of requests.

        Args:
            lost: path and body of an order for a server that has lost what is asked for, and
                says so by a 404 or in words; then it is asked once more.

        Raises:
            ServerError: by the future: nothing answers, or the answer is an error, or no JSON.
        """
        first = start % len(self.urls)
        urls = self.urls[first:] + self.urls[:first]
        content = json.dumps(body).encode()
        mend = lost and (lost[0], json.dumps(lost[1]).encode())
        return self._later(Request(urls, path, content, lambda text: read(parsed(text)), mend))

    def get(
        self,
        url: str,
        path: str,
        read: Callable[[str], Answer] = str,
        patience: float | None = None,
    ) -> Answer:
        """What `read` makes of the text of a page of one server; errors as of `answers`.

        Args:
            patience: the seconds that it is asked again; those of an order without.
        """
        seconds = ORDER_SECONDS if patience is None else patience
        return answers([self._later(Request([url], path, None, read, patience=seconds))])[0]

    def tell(self, url: str, path: str, body: Mapping[str, Any]) -> str:
        """What one server says to an order; errors as of `answers`."""
        content = json.dumps(body).encode()
        return answers([self._later(Request([url], path, content, str, None, ORDER_SECONDS))])[0]

    def hidden(self, text: str) -> str:
        """A text without the key, and without passwords of proxies."""
        return self._secret.sub("<key>", text) if self._secret else text

    def _later(self, request: Request) -> Future[Any]:
        """The answer to a request, from the first thread that is free for it."""
        if self._closed or not self._threads[0].is_alive():  # a fork has no threads
            raise RuntimeError("requests: expected an open transport of this process; make another")
        self._under_way.add(request.future)
        request.future.add_done_callback(self._under_way.discard)
        self._asked.put(request)
        return request.future

    def _work(self, client: "httpx2.Client") -> None:
        """Asks one question after another, until `close`.

        The one way out for errors, without the key: servers, proxies and the client itself may
        repeat what they were sent.
        """
        while (request := self._asked.get()) is not None:
            future = request.future
            if future.cancelled():
                continue
            with suppress(InvalidStateError):  # nobody waits for it any more
                try:
                    future.set_result(self._asked_again(client, request))
                except ServerError as error:
                    error.args = (self.hidden(str(error)),)
                    future.set_exception(error)
                except Exception as error:  # noqa: BLE001  - who asked is told of every kind
                    future.set_exception(error)
        client.close()

    def _asked_again(self, client: "httpx2.Client", request: Request) -> Any:
        failed_since, patience = None, min(request.patience, self._patience)
        urls = request.urls
        for attempt in count():
            url = urls[attempt % len(urls)]
            address = url + request.path
            try:
                answer = request.read(self._text_once_mended(client, request, url))
                self._answered = time.monotonic()
                return answer
            except Unfinished as error:
                failure = error
            except self._broken as error:
                failure = self._passing(address, error)
            except NotJSON as error:
                raise ServerError(
                    f"{address}: expected JSON, got {error}; give the address of the server "
                    "itself as actor.served.urls"
                ) from None
            now = time.monotonic()
            failed_since = failed_since or now
            quiet = now - max(failed_since, self._answered)
            too_late = quiet + failure.asked_for > patience
            if quiet > patience or (too_late and len(urls) == 1):
                raise ServerError(
                    f"{address}: no answer for {quiet:.0f} s, in the end {failure}; what is "
                    "finished is kept: start the server, then give the same command"
                )
            asked_for = 0.0 if too_late else failure.asked_for  # another server may be in time
            _pause(request.future, max(asked_for, waiting_time(attempt)))

    def _passing(self, address: str, error: "httpx2.RequestError") -> Unfinished:
        """A broken connection, as what is tried again; `ServerError` where it will not pass."""
        told = f"{type(error).__name__} {error}".strip()
        if isinstance(error, self._senseless):
            raise ServerError(f"{address}: cannot be sent, {told}; correct actor.served") from None
        if UNTRUSTED in told:
            raise ServerError(
                f"{address}: expected a certificate that is trusted here, got {told}; put the "
                "file of its authority into SSL_CERT_FILE"
            ) from None
        return Unfinished(told)

    def _text_once_mended(self, client: "httpx2.Client", request: Request, url: str) -> str:
        """The text of an answer, before which a server is given what it has lost.

        Raises:
            CancelledError: it has lost something, and nobody waits for the answer any more.
        """
        address, lost = url + request.path, request.lost
        try:
            return self._text(client, address, request.content)
        except RefusedError as error:
            if lost is None or not (error.status == 404 or NOT_LOADED.search(str(error))):
                raise
        if request.future.cancelled():
            raise CancelledError
        try:
            self._text(client, url + lost[0], lost[1])
        except RefusedError as error:
            if "already" not in str(error):  # another row was first
                raise
        return self._text(client, address, request.content)

    def _text(self, client: "httpx2.Client", address: str, content: bytes | None) -> str:
        """The text of an answer.

        Raises:
            Unfinished: it is an error that may pass.
            RefusedError: it is one that will not.
        """
        late, name = time.monotonic() + self._patience, f"row-{token_hex(8)}"
        method = "GET" if content is None else "POST"
        request = self._written(method, address, content=content)
        request.headers["X-Request-Id"] = name
        response = client.send(request, stream=True)
        try:
            text = whole(response, late)
        finally:
            response.close()
        if response.is_success:
            return own(text, name, address)
        told = response.headers["Location"] if response.has_redirect_location else said(text)
        words = f"{response.status_code} {one_line(told, MOST_WORDS)}".strip()
        if response.status_code in MAY_PASS or response.status_code >= 500:
            wait = asked_wait(response.headers.get("Retry-After"))
            raise Unfinished(f"{words} (again in {wait:.0f} s)" if wait else words, wait)
        raise RefusedError(response.status_code, f"{address}: refused, with {words}")


def answers(futures: Sequence[Future[Answer]]) -> list[Answer]:
    """The answers to all; else none is asked for any more, and requests under way run out.

    Raises:
        ServerError: no server answers, or an answer cannot be used.
        Interrupted: a signal asked to stop.
    """
    pending = set(futures)
    try:
        while pending:
            done, pending = wait(pending, LISTEN_SECONDS, FIRST_EXCEPTION)
            for future in done:
                future.result()
            if pending and (number := stop_requested()):
                raise Interrupted(
                    number, "stopped; what is finished is kept, give the same command to go on"
                )
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


def _pause(future: Future[Any], seconds: float) -> None:
    """Waits; `CancelledError` as soon as nobody waits for the answer any more."""
    with suppress(TimeoutError):
        future.result(seconds)


class RefusedError(ServerError):
    """A server will not do what it was asked, whatever the time.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def waiting_time(attempt: int) -> float:
    """Seconds until a request is tried again: uniform below a bound that doubles."""
    return random.uniform(0, min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(attempt, 30)))


def transport_of(settings: ServedConfig) -> Transport:
    """The one transport of this process for these settings: its connections outlive a stage."""
    return _transport(tuple(settings.urls), settings.in_flight, settings.timeout_seconds)


@cache
def _transport(urls: tuple[str, ...], in_flight: int, timeout_seconds: float) -> Transport:
    made = Transport(ServedConfig(list(urls), in_flight=in_flight, timeout_seconds=timeout_seconds))
    atexit.register(made.close)
    return made


os.register_at_fork(after_in_child=_transport.cache_clear)
