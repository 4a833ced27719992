"""The processes that serve a world, and how connections come to them.

One process serves alone; of several, each plays what one more hands it, who only accepts.
"""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import wait
from queue import SimpleQueue
from socket import AF_INET, AF_INET6, create_server, recv_fds, send_fds, socket, socketpair
from threading import Event, Lock, Thread
from typing import Any

from websockets.sync.server import ServerConnection

from lactchain.config.settings import EnvironmentConfig
from lactchain.environments.faults import ours
from lactchain.errors import ConfigError, ProcessLost
from lactchain.runs.console import tell
from lactchain.runs.signals import AT_ONCE
from lactchain_extras.ecosystems.openenv_server import FORK, Served, server_at

ENDING_SECONDS = 2.0
"""Who plays is told the end; a step that takes longer is not waited for."""
SWITCH_SECONDS = 0.02
"""How long a thread runs Python before another may. Python's own is 5 ms, and each change costs."""
SPARE = 64
"""Connections beside those of sessions: of clients who ask for pages, or find no room."""
FILES_EACH = 4
"""Files of a connection: a socket, a pair that wakes its thread, and what waits for both."""
FILES = 128
"""Open beside those of connections, by modules and worlds."""


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
    most = max_sessions + SPARE
    _allow_files(FILES_EACH * most + 3 * num_processes + FILES)
    served = Served(config, max_sessions, panel, num_processes)
    try:
        family = AF_INET6 if ":" in host else AF_INET
        listening = create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError, TypeError, ValueError) as error:
        raise ConfigError(
            f"port: cannot listen at {host}:{port} ({error}); the host is an address of this "
            "machine, such as 127.0.0.1; if the port is in use, take another, or 0 for a free one"
        ) from error
    count = sum(map(len, served.pages["/tasks"].values())) or "seeds for"
    name = f"[{host}]" if family == AF_INET6 else host
    url = f"http://{name}:{listening.getsockname()[1]}"
    line = f"{config.id} at {url} : {count} tasks, {max_sessions} sessions at most; Ctrl-C ends it"
    with suppress(KeyboardInterrupt):
        if num_processes == 1:
            say(line)
            _serve(served, _Listening(most, listening.detach()))
        else:
            _serve_by_several(served, listening, most, num_processes, line, say)


def _serve_by_several(
    served: Served,
    listening: socket,
    most: int,
    num_processes: int,
    line: str,
    say: Callable[[str], None],
) -> None:
    players: list[_Player] = []
    heard: list[int] = []
    # What a handler raises amid a fork is lost.
    before = {number: signal.signal(number, lambda n, _: heard.append(n)) for number in AT_ONCE}
    try:
        for number in range(num_processes):
            players.append(_Player(served, number, listening, most))
        for number, handler in before.items():
            signal.signal(number, handler)
        if heard:
            return
        say(line)
        _share_out(listening, players.copy(), most, say)
    finally:
        for player in players:
            player.process.terminate()
        late = time.monotonic() + ENDING_SECONDS + 1
        for player in players:
            player.process.join(max(0.0, late - time.monotonic()))
            player.process.kill()  # it is stopped


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


class _Listening(socket):
    """A socket to listen at.

    Args:
        most: connections at once; others wait for them in the system's queue.
        descriptor: of the socket.

    Attributes:
        connections: those that there are.
    """

    connections: Collection[Any] = ()

    def __init__(self, most: int, descriptor: int) -> None:
        super().__init__(fileno=descriptor)
        self._most = most

    def accept(self) -> tuple[socket, Any]:
        """The next connection, and its address; `OSError`: this socket was closed."""
        while self.fileno() >= 0:
            # A client may be gone already, and the system without a file or a thread for it.
            with suppress(OSError, RuntimeError, ValueError):
                if len(self.connections) < self._most and wait([self], 0.1):
                    probe = Thread(target=int)
                    probe.start()  # better refused here than to the server itself
                    probe.join()
                    return self._next()
            time.sleep(0.01)
        raise OSError("closed")

    def _next(self) -> tuple[socket, Any]:
        return super().accept()


class _Handed(_Listening):
    """The same, where connections arrive that another process has accepted.

    Attributes:
        forget: counts one that has ended.
    """

    forget: Callable[[], None]

    def listen(self, backlog: int = 0) -> None:
        """Nothing to do: the other process listens."""

    def _next(self) -> tuple[socket, Any]:
        message, descriptors, _, _ = recv_fds(self, 1, 1)
        if not descriptors:
            # The system had no file for it; or the other process has ended, as this one will.
            if message:
                self.forget()
            raise BlockingIOError
        return socket(fileno=descriptors[0]), None  # its peer may be gone, and has no address then


class _Player:
    """A process that plays what it is handed."""

    def __init__(self, served: Served, number: int, listening: socket, most: int) -> None:
        self._served, self._number, self._most = served, number, most
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
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._served.number, counting = self._number, Lock()

        def forget() -> None:
            with counting:
                self._ended.value += 1

        class Counted(ServerConnection):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                try:
                    super().__init__(*args, **kwargs)
                except BaseException:  # no file or thread for it
                    forget()
                    raise

            def recv_events(self) -> None:
                try:
                    super().recv_events()  # as long as there is a connection
                finally:
                    forget()

        handed = _Handed(self._most, theirs.detach())
        handed.forget = forget
        _serve(self._served, handed, (signal.SIGTERM,), Counted)


def _share_out(
    listening: socket, players: list[_Player], most: int, say: Callable[[str], None]
) -> None:
    """Hands each connection to who has the fewest; when all have `most`, the others wait.

    Where all listen at one port, the kernel shares 64 sessions among two as 38 and 26.
    """
    listening.setblocking(False)
    while players:
        ready = wait([listening, *(player.process.sentinel for player in players)])
        for player in [p for p in players if p.process.sentinel in ready]:
            players.remove(player)
            say(f"{player.bury()} has ended; {len(players)} processes go on")
        try:
            if all(player.num_open >= most for player in players):
                raise BlockingIOError
            connection, _ = listening.accept()
        except OSError:  # no room, no connection any more, or no file for it
            time.sleep(0.01)
            continue
        with connection:
            for player in sorted(players, key=lambda one: one.num_open):
                with suppress(OSError):
                    player.take(connection)
                    break
    raise ProcessLost("serve: all its processes have ended; is there memory for them?")


def _serve(
    served: Served,
    listening: _Listening,
    endings: Sequence[int] = AT_ONCE,
    connection: type[ServerConnection] = ServerConnection,
) -> None:
    """Serves until one of the signals `endings`."""
    server = server_at(listening, served.pages, served.play, connection)
    listening.connections = server.handler_threads
    asked, over = SimpleQueue[None](), Event()

    def end(*_: Any) -> None:  # in a handler, where no thread can be made, nor an event be set
        for number in endings:  # said once more, they end it at once
            signal.signal(number, signal.SIG_DFL)
        asked.put(None)
        asked.put(None)

    def shut_down() -> None:
        asked.get()
        server.shutdown()

    def end_at_last() -> None:
        asked.get()
        if not over.wait(ENDING_SECONDS):
            os._exit(0)

    for work in (shut_down, end_at_last):
        Thread(target=work, daemon=True).start()
    for number in endings:
        signal.signal(number, end)
    served.before = ours()
    if (parent := parent_process()) is not None:
        Thread(target=_end_with, args=[parent.pid], daemon=True).start()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        server.serve_forever()
    except RuntimeError as error:  # no thread for a connection, which the server never forgets
        tell(f"error: serve: {error}; allow it more, or ask for fewer sessions")
        os._exit(ProcessLost.exit_code)
    server.shutdown()
    over.set()


def _end_with(parent: int) -> None:
    """Ends this process when its parent has ended, whatever that left open in others."""
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(0)
