"""Serves an environment by OpenEnv's protocol, so that other trainers play it by a URL.

`/ws` is a session: messages and replies are those of `Session`. What OpenEnv leaves open is
settled: the seed decides the episode; `truncated` and `success` stand beside `done` and the reward;
an argument of `reset` that is not known, or that another one makes void, is an error, and not
dropped.

Beside it are pages: `/health`, `/metadata`, `/schema`, `/manifest` (floors and optimum), and
`/tasks`, the start states by number. OpenEnv's `/reset` and `/step` over plain HTTP are not there:
each request would meet a new environment, so that no episode could be played by them.
"""

import ipaddress
import json
import logging
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from socket import SO_SNDTIMEO, SOL_SOCKET, socket
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import websockets.sync.server as websocket_server
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection

from lactchain.config.settings import EnvironmentConfig
from lactchain.environments.faults import ours, put_back
from lactchain.environments.language import LanguageEnv, make_language_env
from lactchain.errors import LactChainError
from lactchain_extras.ecosystems.sessions import Session, error_reply
from lactchain_extras.ecosystems.tasks import manifest, splits_of

REQUEST_SECONDS = 10.0
"""In which a request has to come, from the connection to its last byte."""
MOST_BYTES = 1 << 24
"""Of a message in a session."""
SENDING_SECONDS = 10
"""Who takes nothing of what is sent loses its place, within twice that time."""
FORK = get_context("fork")
TEXT = {"type": "string"}
SCHEMA = {
    "action": {
        "title": "CompletionAction",
        "type": "object",
        "properties": {"text": TEXT | {"description": "the completion: a chain of actions"}},
        "required": ["text"],
    },
    "observation": {
        "title": "TextObservation",
        "type": "object",
        "properties": {"text": TEXT} | dict.fromkeys(("truncated", "success"), {"type": "boolean"}),
        "required": ["text", "truncated"],
    },
    "state": {
        "title": "EpisodeState",
        "type": "object",
        "properties": {"episode_id": TEXT, "step_count": {"type": "integer"}, "state": {}},
    },
}
quiet = logging.getLogger(f"{__name__}.requests")
quiet.disabled = True  # a request that is none is a client's fault: a trace would show one of ours


class Served:
    """A world, and its sessions.

    Args:
        config: of the environment; each session makes one of its own.
        max_sessions: at once; one more is told that there is no room.
        panel: the tasks to number, see `splits_of`.
        num_processes: that serve it; each is to say its `number`.

    Attributes:
        sessions: of each process; only that process writes its own, as long as it lives.
        before: what a world may not change of its process, as it is to be.
        pages: what is told at each path, as JSON.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        max_sessions: int = 64,
        panel: str | None = None,
        num_processes: int = 1,
    ) -> None:
        self._config, self._max_sessions = config, max_sessions
        env = make_language_env(config)
        self._splits = splits_of(env, config, panel)
        name = config.id.rpartition("/")[2].partition("-v")[0]
        self.pages: dict[str, Any] = {
            "/health": {"status": "healthy"},
            "/metadata": {"name": name, "description": f"{config.id}, in words"},
            "/schema": SCHEMA,
            "/manifest": manifest(config, env, self._splits),
            "/tasks": {split: [t.state for t in tasks] for split, tasks in self._splits.items()},
        }
        self._idle, self.before = [env], ours()
        self.sessions, self.number = FORK.RawArray("i", num_processes), 0
        self._counting = Lock()

    def play(self, connection: ServerConnection) -> None:
        """One session, from its first message to its last, in a thread of its own."""
        if not self._takes_place():
            full, most = f"all {self._max_sessions} sessions are taken", self._max_sessions
            with suppress(ConnectionClosed):
                connection.send(error_reply("CAPACITY_REACHED", full, max_sessions=most))
            return
        env = None
        try:
            env = self._free_env()
            self._converse(Session(env, self._splits, self.before), connection)
        except LactChainError as error:  # there is no such world any more
            connection.send(error_reply("EXECUTION_ERROR", error))
        except ConnectionClosed:
            pass
        finally:
            if env is not None:
                self._idle.append(env)
            self._count(-1)

    def _converse(self, session: Session, connection: ServerConnection) -> None:
        for message in connection:
            text = message if isinstance(message, str) else message.decode(errors="replace")
            if (reply := session.answer(text)) is None:
                break
            connection.send(reply)

    def _takes_place(self) -> bool:
        """Whether there is room, asked for a while.

        Two in different processes who race for the last place may see each other there, and both
        step back; and who has left may hold a place for a moment. A full server says so after half
        a second.
        """
        for _ in range(50):
            if self._count(1) <= self._max_sessions:
                return True
            self._count(-1)
            time.sleep(0.01)
        return False

    def _count(self, change: int) -> int:
        with self._counting:
            self.sessions[self.number] += change
        return sum(self.sessions)

    def _free_env(self) -> LanguageEnv:
        with suppress(IndexError):  # all are taken
            return self._idle.pop()
        try:
            return make_language_env(self._config)
        finally:
            put_back(self.before)


def server_at(
    listening: socket,
    pages: dict[str, Any],
    play: Callable,
    connection: type[ServerConnection] = ServerConnection,
) -> websocket_server.Server:
    """What serves pages and sessions at a socket, from `serve_forever()` to `shutdown()`."""

    def answer(connection: ServerConnection, request: Request) -> Response | None:
        patience = struct.pack("ll", SENDING_SECONDS, 0)
        connection.socket.setsockopt(SOL_SOCKET, SO_SNDTIMEO, patience)
        if _is_of_a_page(request.headers):
            return connection.respond(403, "pages of other servers may not ask\n")
        if request.path == "/ws":
            return None
        if request.path not in pages:
            return connection.respond(404, f"expected one of {sorted(pages)}, or /ws\n")
        response = connection.respond(200, json.dumps(pages[request.path]))
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        return response

    return websocket_server.serve(
        play,
        sock=listening,
        process_request=answer,
        create_connection=connection,
        logger=quiet,
        open_timeout=REQUEST_SECONDS,
        close_timeout=1,
        max_size=MOST_BYTES,
        compression=None,  # texts are short, and compressing takes longer
    )


def _is_of_a_page(headers: Headers) -> bool:
    """Whether a page in somebody's browser asks that this server did not send.

    Programs name no origin. A name other than localhost may lead anywhere ("DNS rebinding").
    """
    origins = headers.get_all("Origin")
    if not origins:
        return False
    with suppress(ValueError):  # it is no address
        page = urlsplit(origins[0])
        is_here = page.hostname == "localhost" or ipaddress.ip_address(page.hostname or "")
        return not is_here or [page.netloc] != headers.get_all("Host")
    return True
