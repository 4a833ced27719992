"""Servers of others, as worlds to play in."""

import logging
import socket
import threading
from dataclasses import replace

import pytest
from engine_stand_in import Script, answer, serving
from openenv_servers import FaultyGame, running
from test_openenv import GRID, there

from lactchain import ConfigError, EnvironmentConfig, EnvironmentFault, make_language_env
from lactchain_extras.ecosystems import free_text
from lactchain_extras.ecosystems.openenv_server import Served


@pytest.fixture
def faulty(caplog):
    free_text.say_once.cache_clear()
    game = FaultyGame()
    with game.running() as url:
        yield game, EnvironmentConfig(f"openenv:{url}", extractor="utterance"), caplog


def test_a_server_of_others_plays_and_its_faults_are_said_once(faulty):
    game, config, caplog = faulty
    env = make_language_env(config)
    assert env.reset(seed=3)[0].startswith("A digit, not ")
    for seed in range(3):
        env.reset(seed=seed)
        *_, (_, _, terminated, truncated, _) = (env.step(guess) for guess in ("x", "y", "z"))
        assert terminated and not truncated
    assert game.requests[-4] == {"type": "reset", "data": {"seed": 2}}
    warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 2 and any("does not keep to seeds" in line for line in warnings)
    assert any("has no field truncated" in line for line in warnings)


class Endless(FaultyGame):
    """Answers any message with one that is too long, or too deep."""

    def __init__(self, reply):
        self.reply = reply

    def play(self, connection):
        connection.recv()
        connection.send(self.reply)
        connection.wait_closed()


@pytest.mark.parametrize(
    ("reply", "told"), [(" " * (1 << 24) + "{}", "exceeds limit"), ("[" * 100_000, "Recursion")]
)
def test_a_reply_is_bounded_in_bytes_and_depth(reply, told):
    with Endless(reply).running() as url:
        env = make_language_env(EnvironmentConfig(f"openenv:{url}", extractor="utterance"))
        with pytest.raises(EnvironmentFault, match=told):
            env.reset(seed=0)


def test_partial_pay_is_no_success_unless_you_say_so(faulty):
    game, config, _ = faulty
    for least, success in ((1.0, False), (0.5, True)):
        env = make_language_env(replace(config, kwargs={"success_reward": least}))
        env.reset(seed=0)
        for guess in ("x", "y", game.digit):
            *_, terminated, _, info = env.step(guess)
        assert terminated and info["rewards"] == [0.5] and info["success"] is success


def test_errors_of_a_server_are_its_own_words_and_what_is_lost_or_late_is_made_anew(faulty):
    _, config, _ = faulty
    env = make_language_env(config)
    for said, words in (
        ("crash", "EXECUTION_ERROR: no digit"),
        ("hang up", "expected a reply to step"),
        ("hesitate", "expected a reply to step, got TimeoutError"),
    ):
        assert env.reset(seed=0)[0].startswith("A digit, not ")  # and not the late reply
        env.env.unwrapped.timeout = 0.01 if said == "hesitate" else 60.0
        with pytest.raises(EnvironmentFault, match=words):
            env.step(said)
        env.env.unwrapped.timeout = 60.0
    with pytest.raises(EnvironmentFault, match="expected a reset before step"):
        env.step("x")
    assert env.reset(seed=0)[0].startswith("A digit, not ")


def test_a_port_that_speaks_no_http_and_a_server_without_its_tasks_are_one_line():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=greet, args=[listening])
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"expected an OpenEnv server, got R\w+Error"):
            make_language_env(there(url))
        thread.join()
    served = Served(GRID)
    del served.pages["/tasks"]
    with running(served.pages, served.play) as url:
        env = make_language_env(there(url))
        with pytest.raises(ConfigError, match="/tasks: expected an OpenEnv server, got .*404"):
            env.start_states()


def greet(listening):
    """What is no HTTP, to the first who asks."""
    session, _ = listening.accept()
    with session:
        session.recv(4096)
        session.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")


def test_actions_of_two_required_fields_and_urls_of_something_else_are_refused(faulty, monkeypatch):
    monkeypatch.setattr(FaultyGame, "required", ("guess", "note"))
    with FaultyGame().running() as url:
        with pytest.raises(ConfigError, match=r"fields \['guess', 'note'\]; name the one"):
            make_language_env(EnvironmentConfig(f"openenv:{url}"))
        assert make_language_env(EnvironmentConfig(f"openenv:{url}", {"field": "guess"}))
    with pytest.raises(ConfigError, match="environment.id: openenv:.*expected an OpenEnv server"):
        make_language_env(EnvironmentConfig(f"openenv:{url}/"))
    page = answer(200, "<p>Welcome</p>")
    with serving(Script([page])) as server, pytest.raises(ConfigError, match="got JSONDecodeError"):
        make_language_env(EnvironmentConfig(f"openenv:{server.url}"))
