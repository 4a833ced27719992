"""Serves an environment by OpenEnv's protocol, so that other trainers play it by a URL.

`/ws` is a session: messages and replies are those of `sessions.Session`. Beside it are pages:
`/health`, `/metadata`, `/schema`, `/manifest` (floors and optimum), and `/tasks`, the start states
by number. OpenEnv's `/reset` and `/step` over plain HTTP are not there: each request would meet a
new environment, so that no episode could be played by them.
"""

import asyncio
import ipaddress
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from socket import create_server, socket
from typing import Any
from urllib.parse import urlsplit

import websockets.asyncio.server as websocket_server
from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from lactchain.config.settings import EnvironmentConfig
from lactchain.environments.language import make_language_env
from lactchain.errors import ConfigError
from lactchain_extras.ecosystems.sessions import Session
from lactchain_extras.ecosystems.tasks import manifest, splits_of

REQUEST_SECONDS = 10.0
"""In which a request has to come, from its first byte to its last."""
MOST_BYTES = 1 << 24
"""Of a message in a session."""
SLOW_SECONDS = 0.002
"""A session that took longer for a reply has its next one made in a thread."""
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

    Attributes:
        pages: what is told at each path, as JSON.
    """

    def __init__(
        self, config: EnvironmentConfig, max_sessions: int = 64, panel: str | None = None
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
        self._idle = [env]
        self._num_sessions = 0
        self._threads = ThreadPoolExecutor(max_sessions)

    async def play(self, connection: ServerConnection) -> None:
        """One session, from its first message to its last."""
        if self._num_sessions == self._max_sessions:
            full = f"all {self._max_sessions} sessions are taken"
            data = {"message": full, "code": "CAPACITY_REACHED", "max_sessions": self._max_sessions}
            await connection.send(json.dumps({"type": "error", "data": data}))
            return
        self._num_sessions += 1
        env = self._idle.pop() if self._idle else make_language_env(self._config)
        session, took = Session(env, self._splits), 0.0
        try:
            async for message in connection:
                said = message if isinstance(message, str) else message.decode(errors="replace")
                began = time.perf_counter()
                if took < SLOW_SECONDS:
                    reply = session.answer(said)
                else:  # others are not to wait for it
                    loop = asyncio.get_running_loop()
                    reply = await loop.run_in_executor(self._threads, session.answer, said)
                took = time.perf_counter() - began
                if reply is None:
                    break
                await connection.send(reply)
        except ConnectionClosed:
            pass
        finally:
            self._num_sessions -= 1
            self._idle.append(env)


def server_at(listening: socket, pages: dict[str, Any], play: Callable) -> websocket_server.serve:
    """What serves pages and sessions at a socket, as long as its context lasts."""

    def answer(connection: ServerConnection, request: Request) -> Response | None:
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


def serve(
    config: EnvironmentConfig,
    host: str,
    port: int,
    max_sessions: int,
    say: Callable[[str], None],
    panel: str | None = None,
) -> None:
    """Serves until Ctrl-C, or SIGTERM.

    Args:
        port: 0 takes one that is free.
        say: is told one line, once the world can be reached.

    Raises:
        ConfigError: there is no such world, or the port is taken.
    """
    served = Served(config, max_sessions, panel)
    try:
        listening = create_server((host, port), backlog=1024)
    except (OSError, OverflowError, TypeError, ValueError) as error:
        raise ConfigError(
            f"port: cannot listen at {host}:{port} ({error}); the host is an address of this "
            "machine, such as 127.0.0.1; if the port is in use, take another, or 0 for a free one"
        ) from error
    count = sum(map(len, served.pages["/tasks"].values())) or "seeds for"
    url = f"http://{host}:{listening.getsockname()[1]}"
    say(f"{config.id} at {url} : {count} tasks, {max_sessions} sessions at most; Ctrl-C ends it")

    async def until_the_end() -> None:
        async with server_at(listening, served.pages, served.play) as server:
            await server.serve_forever()

    with suppress(KeyboardInterrupt):
        asyncio.run(until_the_end())
