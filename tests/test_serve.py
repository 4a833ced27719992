"""The command that serves a world: one process or several, clients of any kind, and its end."""

import json
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import httpx2
import psutil
import pytest
from conftest import ROOT
from openenv_servers import reset, said, session, step
from websockets.exceptions import ConnectionClosed

from lactchain_extras.ecosystems import server_processes
from lactchain_extras.ecosystems.server_processes import _Listening

pytestmark = pytest.mark.extras
SERVE = [sys.executable, "-m", "lactchain", "serve", "--config", "gridworld_tiny"]
SERVE += ["--num_processes", "2", "--port"]


def play_on(player, begun):
    with suppress(ConnectionClosed):
        while True:
            said(player, reset(seed=0))
            begun.set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_says_where_it_serves_and_ends_in_silence_amid_play(number):
    """Two processes share the sessions; with the one that accepts them both end."""
    nine = ("--max_sessions", "9")
    with subprocess.Popen([*SERVE, "0", *nine], stdout=-1, stderr=-1, text=True) as process:
        line = process.stdout.readline()
        told = r"lactchain/GridWorld-v0 at (\S+) : 960 tasks, 9 sessions at most"
        (url,) = re.findall(told, line)
        with ExitStack() as sessions:
            players = [sessions.enter_context(session(url)) for _ in range(9)]
            replies = [said(player, reset(seed=0)) for player in players]
            with session(url) as player:
                full = json.loads(player.recv())
        port = url.rpartition(":")[2]
        taken = subprocess.run([*SERVE, port, *nine], capture_output=True, text=True)
        others = psutil.Process(process.pid).children()
        with ExitStack() as sessions:
            all_begun = [threading.Event() for _ in range(9)]
            for begun in all_begun:
                player = sessions.enter_context(session(url))
                threading.Thread(target=play_on, args=[player, begun], daemon=True).start()
            assert all(begun.wait(20) for begun in all_begun)
            process.send_signal(number)
            out, err = process.communicate(timeout=20)
    assert len({json.dumps(reply) for reply in replies}) == 1
    assert replies[0]["data"]["observation"]["text"]
    assert full["data"]["code"] == "CAPACITY_REACHED" and len(others) == 2
    assert not psutil.wait_procs(others, timeout=5)[1]
    assert (process.returncode, out, err) == (0, "", "")
    assert taken.returncode == 2 and "take another, or 0 for a free one" in taken.stderr


@contextmanager
def two_processes(*words):
    """A server of two, its URL, and both."""
    command = [sys.executable, "-m", "lactchain", "serve", "--num_processes", "2", *words]
    command += ["--port", "0"]  # the last word, whatever a configuration says
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as process:
        try:
            (url,) = re.findall(r"at (http\S+) :", process.stdout.readline())
            yield process, url, psutil.Process(process.pid).children()
        finally:
            process.kill()


def test_processes_have_equal_shares_of_the_sessions_and_one_that_died_leaves_its_places():
    words = ("--config", "gridworld_tiny", "--max_sessions", "6")
    with two_processes(*words) as (process, url, both):
        with ExitStack() as sessions:
            for _ in range(6):
                said(sessions.enter_context(session(url)), reset(seed=0))
            taken = [[c.status for c in one.net_connections()] for one in both]
            assert [states.count(psutil.CONN_ESTABLISHED) for states in taken] == [3, 3]
            assert httpx2.get(f"{url}/health").json() == {"status": "healthy"}
            both[0].kill()
            told = process.stdout.readline()
            for _ in range(3):
                player = sessions.enter_context(session(url))
                assert said(player, reset(seed=0))["type"] == "observation"
        assert f"{both[0].pid} (-9) with 3 sessions has ended; 1 processes go on" in told
        both[1].kill()
        _, err = process.communicate(timeout=20)
        assert process.returncode == 6 and "all its processes have ended" in err


def test_clients_that_reset_at_once_cost_nothing_and_are_told_by_nobody():
    def play_four():
        for _ in range(4):
            with session(url) as player:
                assert said(player, reset(seed=0))["type"] == "observation"

    with two_processes("--config", "gridworld_tiny") as (process, url, both):
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        play_four()
        files = [one.num_fds() for one in both]
        for _ in range(60):
            with socket.create_connection(address) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        play_four()
        late = time.monotonic() + 20
        while any(one.num_fds() > before for one, before in zip(both, files, strict=True)):
            assert time.monotonic() < late
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=20) == ("", "") and process.returncode == 0


def test_a_server_ends_in_spite_of_a_step_that_takes_long(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "benchmarks"))
    words = ("--environment.id", "ecosystems:benchmark/Slow-v0", "--environment.kwargs.waits", "60")
    words = (*words, "--import", "ecosystems")
    with two_processes(*words) as (process, url, _), session(url) as player:
        said(player, reset(seed=0))
        player.send(json.dumps(step("[0]")))
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=20) == ("", "") and process.returncode == 0


def test_a_process_that_is_stopped_holds_up_no_end():
    with two_processes("--config", "gridworld_tiny") as (process, _, both):
        both[1].suspend()
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=20) == ("", "") and process.returncode == 0
        assert not psutil.wait_procs(both, timeout=5)[1]
    with two_processes("--config", "gridworld_tiny") as (process, _, both):
        both[1].suspend()
        process.kill()
        try:
            assert not psutil.wait_procs(both[:1], timeout=20)[1]
        finally:
            both[1].kill()


def test_a_connection_waits_while_there_is_no_room_or_no_thread_for_it(monkeypatch):
    listening = _Listening(1, socket.create_server(("127.0.0.1", 0)).detach())
    listening.connections, accepted, tries = {1}, [], []

    def thread(**_):
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("can't start new thread")
        return threading.Thread()

    monkeypatch.setattr(server_processes, "Thread", thread)
    waiting = threading.Thread(target=lambda: accepted.append(listening.accept()), daemon=True)
    waiting.start()
    with socket.create_connection(listening.getsockname()) as client:
        time.sleep(0.2)
        assert not accepted and not tries
        listening.connections.clear()
        waiting.join(20)
        assert len(tries) == 3 and accepted[0][1] == client.getsockname()
        accepted[0][0].close()
    listening.close()
    with pytest.raises(OSError, match="closed"):
        listening.accept()


def test_an_address_of_version_6_is_one_of_this_machine():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("needs IPv6 on this machine")
    with two_processes("--config", "gridworld_tiny", "--host", "::1") as (_, url, _):
        assert url.startswith("http://[::1]:")
        assert httpx2.get(f"{url}/health").json() == {"status": "healthy"}


def test_sessions_that_need_more_files_than_are_allowed_are_refused():
    command = f"ulimit -n 300; exec {sys.executable} -m lactchain serve --port 0"
    found = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert found.returncode == 2 and "643 open files are needed" in found.stderr
