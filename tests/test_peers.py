"""A process that dies or is stopped is noticed by the others of its machine; a slow one goes on."""

import os
import signal
import socket
import subprocess
import time

import pytest
from torch.distributed import HashStore

from lactchain.runs import distributed
from lactchain.runs.distributed import LOOKS, Peers


@pytest.fixture
def other():
    """Another process, which lives and does nothing."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def peers_with(process: subprocess.Popen) -> tuple[Peers, HashStore]:
    """Rank 0, beside that process as rank 1."""
    store = HashStore()
    store.set("peer-1", f"{process.pid} {socket.gethostname()}")
    return Peers(0, 2, store), store


def test_a_process_that_lives_is_waited_for_however_slow_it_is(other):
    peers, _ = peers_with(other)
    assert [peers.look() for _ in range(30)] == [None] * 30


def test_a_process_that_died_is_named_also_while_nobody_has_buried_it(other):
    peers, _ = peers_with(other)
    other.kill()
    time.sleep(0.1)
    found = [peers.look() for _ in range(LOOKS["died"])]
    assert found == [None, None, f"rank 1 (process {other.pid}) died"]
    other.wait()
    assert peers.look() == found[-1]
    assert peers.ended() == [1]


def test_a_process_that_is_stopped_for_long_is_named_and_one_that_goes_on_again_is_not(other):
    peers, _ = peers_with(other)
    looks = LOOKS["is stopped"]
    for number, signals in ((looks - 1, signal.SIGCONT), (looks, signal.SIGCONT)):
        os.kill(other.pid, signal.SIGSTOP)
        time.sleep(0.1)
        found = [peers.look() for _ in range(number)]
        os.kill(other.pid, signals)
        time.sleep(0.1)
        assert found[:-1] == [None] * (number - 1)
        assert peers.look() is None
    assert found[-1] == f"rank 1 (process {other.pid}) is stopped"


def test_a_process_that_has_left_in_good_order_is_not_missed(other):
    peers, store = peers_with(other)
    store.set("left-1", "")
    other.kill()
    other.wait()
    assert [peers.look() for _ in range(9)] == [None] * 9
    peers.wait_for_others()
    peers.leave()
    assert store.check(["left-0"])


@pytest.mark.parametrize("said, lost", [
    ("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1", True),
    ("sendBytes failed: Broken pipe", True),
    ("shapes do not match", False),
])  # fmt: skip
def test_what_collectives_say_of_a_lost_process_is_understood(said, lost, monkeypatch):
    assert not distributed.is_lost(RuntimeError(said))  # of one process
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert distributed.is_lost(RuntimeError(said)) == lost
