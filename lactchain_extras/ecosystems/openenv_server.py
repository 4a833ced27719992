"""Serves an environment by OpenEnv's protocol, so that other trainers play it by a URL.

`/ws` is a session: messages and replies are those of `Session`. What OpenEnv leaves open is
settled: the seed decides the episode; `truncated` and `success` stand beside `done` and the reward;
an argument of `reset` that is not known, or that another one makes void, is an error, and not
dropped.

Beside it are pages: `/health`, `/metadata`, `/schema`, `/manifest` (floors and optimum), and
`/tasks`, the start states by number. OpenEnv's `/reset` and `/step` over plain HTTP are not there:
each request would meet a new environment, so that no episode could be played by them.
"""

import asyncio
import ipaddress
import json
import logging
import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from socket import create_server, recv_fds, send_fds, socket, socketpair
from threading import Timer
from typing import Any
from urllib.parse import urlsplit

import websockets.asyncio.server as websocket_server
from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from lactchain.config.settings import EnvironmentConfig
from lactchain.environments.language import make_language_env
from lactchain.errors import ConfigError, ProcessLost
from lactchain.runs.signals import AT_ONCE
from lactchain_extras.ecosystems.sessions import Session, error_reply
from lactchain_extras.ecosystems.tasks import manifest, splits_of

REQUEST_SECONDS = 10.0
"""In which a request has to come, from its first byte to its last."""
MOST_BYTES = 1 << 24
"""Of a message in a session."""
FILES = 256
"""Open beside those of sessions: by modules and worlds, and for clients who find no room."""
ENDING_SECONDS = 2.0
"""Who plays is told the end; a step that takes longer is not waited for."""
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
        self._idle = [env]
        self.sessions, self.number = FORK.RawArray("i", num_processes), 0
        self._threads = ThreadPoolExecutor(max_sessions)

    async def play(self, connection: ServerConnection) -> None:
        """One session, from its first message to its last."""
        self.sessions[self.number] += 1  # of two who race for the last place none may get it
        if sum(self.sessions) > self._max_sessions:
            self.sessions[self.number] -= 1
            full, most = f"all {self._max_sessions} sessions are taken", self._max_sessions
            await connection.send(error_reply("CAPACITY_REACHED", full, max_sessions=most))
            return
        env = self._idle.pop() if self._idle else make_language_env(self._config)
        session, took = Session(env, self._splits), SLOW_SECONDS  # nobody knows yet
        try:
            async for message in connection:
                text = message if isinstance(message, str) else message.decode(errors="replace")
                began = time.perf_counter()
                if took < SLOW_SECONDS:
                    reply = session.answer(text)
                else:  # others are not to wait for it
                    loop = asyncio.get_running_loop()
                    reply = await loop.run_in_executor(self._threads, session.answer, text)
                took = time.perf_counter() - began
                if reply is None:
                    break
                await connection.send(reply)
        except ConnectionClosed:
            pass
        finally:
            self.sessions[self.number] -= 1
            self._idle.append(env)


def server_at(
    listening: socket,
    pages: dict[str, Any],
    play: Callable,
    connection: type[ServerConnection] = ServerConnection,
) -> websocket_server.serve:
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


def serve(
    config: EnvironmentConfig,
    host: str,
    port: int,
    max_sessions: int,
    say: Callable[[str], None],
    panel: str | None = None,
    num_processes: int = 1,
) -> None:
    """Serves until Ctrl-C, or SIGTERM.

    Args:
        port: 0 takes one that is free.
        say: is told a line once the world can be reached, and one for each process that dies.
        num_processes: among which the sessions are shared out.

    Raises:
        ConfigError: there is no such world, the port is taken, or the system allows too few files.
        ProcessLost: all of several processes have died.
    """
    _allow_files(2 * max_sessions + 3 * num_processes + FILES)
    served = Served(config, max_sessions, panel, num_processes)
    try:
        listening = create_server((host, port), backlog=1024)
    except (OSError, OverflowError, TypeError, ValueError) as error:
        raise ConfigError(
            f"port: cannot listen at {host}:{port} ({error}); the host is an address of this "
            "machine, such as 127.0.0.1; if the port is in use, take another, or 0 for a free one"
        ) from error
    count = sum(map(len, served.pages["/tasks"].values())) or "seeds for"
    url = f"http://{host}:{listening.getsockname()[1]}"
    line = f"{config.id} at {url} : {count} tasks, {max_sessions} sessions at most; Ctrl-C ends it"
    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        if num_processes == 1:
            say(line)
            asyncio.run(_serve(served, listening))
        else:
            players = [_Player(served, number, listening) for number in range(num_processes)]
            say(line)
            try:
                _share_out(listening, [*players], say)
            finally:
                for player in players:
                    player.process.terminate()
                for player in players:
                    player.process.join()


def _allow_files(count: int) -> None:
    """Has the system allow so many open files; `ConfigError`: it does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != hard < count:
        raise ConfigError(
            f"max_sessions: {count} open files are needed, and the system allows {hard} (ulimit "
            "-Hn); ask for fewer sessions, or have it allow more"
        )
    if resource.RLIM_INFINITY != soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


class _Handed(socket):
    """A socket to listen at, where connections arrive that another process has accepted.

    Attributes:
        ended: counts those that have ended.
    """

    ended: Any

    def listen(self, backlog: int = 0) -> None:
        """Nothing to do: the other process listens."""

    def accept(self) -> tuple[socket, None]:
        """The next connection; its peer may be gone, and has no address then."""
        message, descriptors, _, _ = recv_fds(self, 1, 1)
        if not descriptors:
            # The system had no file for it; or the other process has ended, as this one will.
            self.ended.value += bool(message)
            raise BlockingIOError
        return socket(fileno=descriptors[0]), None


class _Player:
    """A process that plays what it is handed."""

    def __init__(self, served: Served, number: int, listening: socket) -> None:
        self._served, self._number = served, number
        self._num_taken, self._ended = 0, FORK.RawValue("i", 0)
        self._ours, theirs = socketpair()
        self._ours.setblocking(False)  # who takes nothing, as when it is stopped, holds up nobody
        self.process = FORK.Process(target=self._play, args=(listening, theirs), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def num_open(self) -> int:
        """Connections that it was handed, and that have not ended."""
        return self._num_taken - self._ended.value

    def take(self, connection: socket) -> None:
        """Hands it a connection; `OSError`: it cannot be."""
        send_fds(self._ours, [b"."], [connection.fileno()])
        self._num_taken += 1

    def bury(self) -> str:
        """Frees what a process had that is dead, and says what it was."""
        self.process.join()
        sessions, self._served.sessions[self._number] = self._served.sessions[self._number], 0
        self._ours.close()
        return f"process {self.process.pid} ({self.process.exitcode}) with {sessions} sessions"

    def _play(self, listening: socket, theirs: socket) -> None:
        listening.close()
        self._ours.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who has handed it all says when to end
        ended, self._served.number = self._ended, self._number
        handed = _Handed(fileno=theirs.detach())
        handed.ended = ended

        class Counted(ServerConnection):
            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                ended.value += 1

        with suppress(asyncio.CancelledError):
            asyncio.run(_serve(self._served, handed, (signal.SIGTERM,), Counted))


def _share_out(listening: socket, players: list[_Player], say: Callable[[str], None]) -> None:
    """Hands each connection to who has the fewest.

    Where all listen at one port, the kernel shares 64 sessions among two as 38 and 26.
    """
    listening.setblocking(False)
    while players:
        ready = wait([listening, *(player.process.sentinel for player in players)])
        for player in [p for p in players if p.process.sentinel in ready]:
            players.remove(player)
            say(f"{player.bury()} has ended; {len(players)} processes go on")
        try:
            connection, _ = listening.accept()
        except OSError:  # there is none, it is gone, or the system has no file for it now
            time.sleep(0.01)
            continue
        with connection:
            for player in sorted(players, key=lambda one: one.num_open):
                with suppress(OSError):
                    player.take(connection)
                    break
    raise ProcessLost("serve: all its processes have ended; is there memory for them?")


async def _serve(
    served: Served,
    listening: socket,
    endings: Sequence[int] = AT_ONCE,
    connection: type[ServerConnection] = ServerConnection,
) -> None:
    """Serves until one of the signals `endings`."""
    loop, main = asyncio.get_running_loop(), asyncio.current_task()
    late = Timer(ENDING_SECONDS, os._exit, [0])
    late.daemon = True

    def end(*_: Any) -> None:
        for number in endings:  # said once more, they end it at once
            signal.signal(number, signal.SIG_DFL)
        late.start()
        loop.call_soon_threadsafe(main.cancel)

    for number in endings:  # also heard amid a step that keeps the loop
        signal.signal(number, end)
    if (parent := parent_process()) is not None:  # which this process does not outlive
        loop.add_reader(parent.sentinel, os._exit, 0)
    try:
        async with server_at(listening, served.pages, served.play, connection) as server:
            await server.serve_forever()
    finally:
        late.cancel()
