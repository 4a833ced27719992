"""Serves an environment by OpenEnv's protocol, so that other trainers play it by a URL.

`/ws` is a session: messages and replies are those of `sessions.Session`. Beside it: `/health`,
`/metadata`, `/schema`, `/manifest` (floors and optimum), and OpenEnv's Task API, which numbers the
start states. OpenEnv's `/reset` and `/step` over plain HTTP are not there: each request would meet
a new environment, so that no episode could be played by them.
"""

import asyncio
import ipaddress
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context, parent_process
from socket import create_server, socket
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from h11 import LocalProtocolError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from lactchain.config.settings import EnvironmentConfig
from lactchain.environments.language import make_language_env
from lactchain.errors import ConfigError
from lactchain_extras.ecosystems.sessions import Session
from lactchain_extras.ecosystems.tasks import manifest, splits_of

REQUEST_SECONDS = 10.0
"""In which a request has to come, from its first byte to its last."""
MOST_BYTES = 2**16
"""Of the body of a request; twice that with its headers and what frames its parts, since each part
takes its time, and nobody else is answered meanwhile."""
SLOW_SECONDS = 0.002
"""A session that took longer for a reply has its next one made in a thread."""
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
TYPES = {"train": "train", "test": "test"}


class Served:
    """A world, and its sessions.

    Args:
        config: of the environment; each session makes one of its own.
        max_sessions: at once; one more is told that there is no room.
        panel: the tasks to number, see `splits_of`.
    """

    def __init__(
        self, config: EnvironmentConfig, max_sessions: int = 64, panel: str | None = None
    ) -> None:
        self.config, self.max_sessions = config, max_sessions
        self.name = config.id.rpartition("/")[2].partition("-v")[0]
        env = make_language_env(config)
        self._splits = splits_of(env, config, panel)
        self.manifest = manifest(config, env, self._splits)
        self.tasks = {
            split: [
                {"id": f"{split}-{n}", "index": n, "split": split, "state": task.state}
                for n, task in enumerate(tasks)
            ]
            for split, tasks in self._splits.items()
        }
        self._idle = [env]
        self._num_sessions = FORK.Value("i", 0)  # of all processes that serve this world
        self._threads = ThreadPoolExecutor(max_sessions)

    def app(self) -> Starlette:
        """The application, for any ASGI server."""
        told: dict[str, Any] = {
            "/health": {"status": "healthy"},
            "/metadata": {"name": self.name, "description": f"{self.config.id}, in words"},
            "/schema": SCHEMA,
            "/manifest": self.manifest,
            "/list_environments": [self.name],
            f"/{self.name}/splits": [{"name": n, "type": TYPES[n]} for n in self.tasks],
        }
        asked = {
            "tasks": lambda tasks, _: {"tasks": tasks, "env_name": self.name},
            "num_tasks": lambda tasks, _: {"num_tasks": len(tasks)},
            "task": lambda tasks, data: {"task": tasks[_index(data)]},
            "task_range": lambda tasks, data: {
                "tasks": tasks[slice(data.get("start"), data.get("stop"))]
            },
        }
        routes = [Route(path, _telling(content)) for path, content in told.items()]
        routes += [
            Route(f"/{self.name}/{path}", self._answering(answer), methods=["POST"])
            for path, answer in asked.items()
        ]
        return Starlette(routes=[*routes, WebSocketRoute("/ws", self._play)])

    async def _play(self, websocket: WebSocket) -> None:
        """One session, from its first message to its last."""
        if _is_of_a_page(websocket):
            await websocket.close()
            return
        await websocket.accept()
        if not self._has_room():
            full = f"all {self.max_sessions} sessions are taken"
            data = {"message": full, "code": "CAPACITY_REACHED", "max_sessions": self.max_sessions}
            await websocket.send_text(json.dumps({"type": "error", "data": data}))
            await websocket.close()
            return
        env = self._idle.pop() if self._idle else make_language_env(self.config)
        session, took = Session(env, self._splits), 0.0
        try:
            while (message := await websocket.receive())["type"] == "websocket.receive":
                said = message.get("text") or (message.get("bytes") or b"").decode(errors="replace")
                began = time.perf_counter()
                if took < SLOW_SECONDS:
                    reply = session.answer(said)
                else:  # others are not to wait for it
                    loop = asyncio.get_running_loop()
                    reply = await loop.run_in_executor(self._threads, session.answer, said)
                took = time.perf_counter() - began
                if reply is None:
                    await websocket.close()
                    break
                await websocket.send_text(reply)
        except WebSocketDisconnect:
            pass
        finally:
            with self._num_sessions:
                self._num_sessions.value -= 1
            self._idle.append(env)

    def _has_room(self) -> bool:
        """Takes the place of one more session, if there is one."""
        with self._num_sessions:
            has_room = self._num_sessions.value < self.max_sessions
            self._num_sessions.value += has_room
        return has_room

    def _answering(self, answer: Callable) -> Callable:
        async def endpoint(request: Request) -> JSONResponse:
            if _is_of_a_page(request):
                raise HTTPException(403, "pages of other servers may not ask")
            try:
                data = json.loads(await _body(request))
                tasks = self.tasks[data["split"]]
                return JSONResponse(answer(tasks, data))
            except ClientDisconnect:
                return JSONResponse(None)  # nobody hears it
            except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
                detail = f"expected a split of {sorted(self.tasks)} and its tasks, got {error!r}"
                raise HTTPException(400, detail[:300]) from error

        return endpoint


class TimedProtocol(H11Protocol):
    """Closes a connection whose request does not come to its end: uvicorn 0.40 waits for ever."""

    _late: asyncio.TimerHandle | None = None
    _heard: Any = None
    _num_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        """The time runs before the first byte, too."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for."""
        self._late.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """The time ends with the request; it runs again from the first byte of the next one."""
        if self._late.cancelled():
            self._wait()
        self._num_bytes += len(data)
        if self._num_bytes > 2 * MOST_BYTES:
            with suppress(LocalProtocolError):  # it has an answer already
                self.send_400_response(f"expected a request of at most {MOST_BYTES:,} bytes")
            self.transport.close()
            return
        super().data_received(data)
        if self.cycle is not self._heard and not self.cycle.more_body:
            self._heard = self.cycle
            self._late.cancel()

    def _wait(self) -> None:
        self._num_bytes = 0
        self._late = self.loop.call_later(REQUEST_SECONDS, self._end)

    def _end(self) -> None:
        """What asks for a session has another protocol by now, and waits for ever for its hand."""
        protocol = self.transport.get_protocol()  # None where the session has ended
        if protocol is self or (protocol and not protocol.handshake_complete):
            self.transport.close()


def serve(
    config: EnvironmentConfig,
    host: str,
    port: int,
    max_sessions: int,
    say: Callable,
    panel: str | None = None,
    num_processes: int = 1,
) -> None:
    """Serves until Ctrl-C, or SIGTERM.

    Args:
        port: 0 takes one that is free.
        say: is told one line, once the world can be reached.
        num_processes: among which the kernel shares out the sessions.

    Raises:
        ConfigError: there is no such world, or the port is taken.
    """
    served = Served(config, max_sessions, panel)
    _listen(host, port).close()  # sockets that share a port are not refused by each other
    listening = [_listen(host, port, num_processes > 1)]
    port = listening[0].getsockname()[1]
    listening += [_listen(host, port, True) for _ in range(num_processes - 1)]
    for own in listening[1:]:
        FORK.Process(target=_serve_beside, args=(served, own), daemon=True).start()
    count = sum(map(len, served.tasks.values())) or "seeds for"
    server = server_of(served.app())
    url = f"http://{host}:{port}"
    say(f"{config.id} at {url} : {count} tasks, {max_sessions} sessions at most; Ctrl-C ends it")
    with suppress(KeyboardInterrupt):
        server.run(sockets=listening[:1])


def _serve_beside(served: Served, listening: socket) -> None:
    """Serves in a process of its own, for as long as the first one lives."""
    Thread(target=_end_with_parent, daemon=True).start()
    with suppress(KeyboardInterrupt):
        server_of(served.app()).run(sockets=[listening])


def _end_with_parent() -> None:
    parent_process().join()
    os._exit(0)


def server_of(app: Starlette) -> uvicorn.Server:
    """What runs an application."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        lifespan="off",
        http=TimedProtocol,
        ws="websockets-sansio",
        ws_per_message_deflate=False,  # texts are short, and compressing takes longer
        timeout_graceful_shutdown=1,
    )
    logging.getLogger("uvicorn.error").addFilter(_in_a_line)
    return uvicorn.Server(config)


def _in_a_line(record: logging.LogRecord) -> bool:
    """Bytes that are no text are a client's fault: a trace would show one of the server's."""
    if record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError):
        record.exc_info = None
    return True


def _is_of_a_page(connection: HTTPConnection) -> bool:
    """Whether a page in somebody's browser asks that this server did not send.

    Programs name no origin. A name other than localhost may lead anywhere ("DNS rebinding").
    """
    origin = connection.headers.get("origin")
    if origin is None:
        return False
    with suppress(ValueError):  # it is no address
        page = urlsplit(origin)
        is_here = page.hostname == "localhost" or ipaddress.ip_address(page.hostname or "")
        return not is_here or page.netloc != connection.headers.get("host")
    return True


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"expected at most {MOST_BYTES:,} bytes")
    return bytes(body)


def _index(data: Mapping[str, Any]) -> int:
    if type(data["index"]) is not int or data["index"] < 0:
        raise ValueError(f"index: expected a whole number of at least 0, got {data['index']!r}")
    return data["index"]


def _listen(host: str, port: int, is_shared: bool = False) -> socket:
    try:
        return create_server((host, port), backlog=1024, reuse_port=is_shared)
    except (OSError, OverflowError, TypeError, ValueError) as error:
        raise ConfigError(
            f"port: cannot listen at {host}:{port} ({error}); the host is an address of this "
            "machine, such as 127.0.0.1; if the port is in use, take another, or 0 for a free one"
        ) from error


def _telling(content: Any) -> Callable:
    async def endpoint(request: Request) -> JSONResponse:
        return JSONResponse(content)

    return endpoint
