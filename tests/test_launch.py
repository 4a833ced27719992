"""Scripts: their exit codes, their errors in one line, and what a signal does to them."""

import os
import random
import signal
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from run_setups import ROOT, Config, ended, launched, start

from lactchain import ConfigError, DataError, DiskError, EnvironmentFault, Interrupted
from lactchain.errors import NonFiniteError
from lactchain.runs.process import launch, seed_everything
from lactchain.runs.signals import STOPPING


@pytest.fixture
def script(monkeypatch):
    """Runs `main` as a script with arguments; returns its exit code, 0 when it just returns."""
    handlers = {number: signal.getsignal(number) for number in STOPPING}

    def run_script(main, *arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["script.py", *arguments])
        try:
            launch(main, Config)
        except SystemExit as ending:
            return ending.code
        return 0

    yield run_script
    for number, handler in handlers.items():
        signal.signal(number, handler)


ENDINGS = {
    2: ConfigError("x"), 3: DataError("x"), 4: NonFiniteError("x"), 5: DiskError("x"),
    6: EnvironmentFault("x"), 130: Interrupted(signal.SIGINT, "x"),
    143: Interrupted(signal.SIGTERM, "x"),
}  # fmt: skip


@pytest.mark.parametrize(("code", "error"), [*ENDINGS.items(), (130, KeyboardInterrupt())])
def test_every_way_to_end_has_its_exit_code(script, error, code):
    def main(config):
        raise error

    assert script(main) == code


def test_an_environment_cannot_end_a_script_as_if_its_work_were_done(script, capsys):
    def main(config):
        sys.exit(0)

    assert script(main) == 6
    line = capsys.readouterr().err
    assert "called sys.exit(0) in the middle of the work" in line and line.count("\n") == 1


def test_a_script_gets_its_configuration_and_a_programming_error_is_not_hidden(script):
    seen = []
    assert script(seen.append, "--critic.gamma", "0.5") == 0
    assert seen[0].critic.gamma == 0.5
    assert script(seen.append, "--critic.gama", "0.5") == 2
    with pytest.raises(ZeroDivisionError):
        script(lambda config: 1 / 0)


THREAD = 'threading.Thread(target=time.sleep, args=(1000,), name="left by a world").start()'
AT_THE_END = """
print("done", flush=True)
if CODE:
    raise EnvironmentFault("x")
"""


@pytest.mark.parametrize("code", [0, 6])
def test_threads_that_an_environment_leaves_keep_no_process(code):
    work = THREAD + AT_THE_END.replace("CODE", str(code))
    *told, error = ended(launched(work, "process.GRACE_SECONDS = 0.5"))
    assert told == [code, "done\n"]
    assert error.splitlines()[-1] == "ended without waiting for the threads left by a world"


DEAF = """
def wait():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)
multiprocessing.get_context("fork").Process(target=wait, daemon=DAEMON).start()
time.sleep(0.5)  # until it is deaf
"""


@pytest.mark.parametrize("is_daemon", [True, False])
def test_processes_that_an_environment_leaves_and_that_hear_no_signal_keep_no_process(is_daemon):
    work = DEAF.replace("DAEMON", str(is_daemon)) + AT_THE_END.replace("CODE", "6")
    before = "import multiprocessing; process.GRACE_SECONDS = 0.5"
    assert ended(launched(work, before)) == (6, "done\n", "error: x\n")


@pytest.mark.parametrize(
    "text", ["[red]", "\x1b[2J", "a\rb", "\x9b31m", "\u202eabc", "\ud800", "x" * 10**6]
)
def test_an_error_shows_what_it_is_about_in_plain_letters(script, text, capsys):
    def main(config):
        raise DataError(f"{text}: no such file")

    main.__module__ = "run_setups"
    assert script(main) == 3
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and len(said) < 2200
    assert all(c == "\n" or unicodedata.category(c)[0] != "C" for c in said)


def test_one_seed_repeats_all_random_streams():
    def draw() -> tuple:
        seed_everything(7, threads=1)
        return random.random(), np.random.rand(), torch.rand(1, requires_grad=True).item()

    first = draw()
    with torch.no_grad():  # as an environment may leave it, with its types and its device
        torch.set_default_dtype(torch.bfloat16)
        torch.set_default_device("meta")
        assert draw() == first and torch.is_grad_enabled()


POLLING = launched("""
    print("ready", flush=True)
    while not process.stop_requested():
        time.sleep(0.01)
    if config.run.seed == 1:
        time.sleep(60)
    print("saved", flush=True)
    raise Interrupted(process.stop_requested(), "stopped at step 3, saved in runs/x")
""")
BY_DEFAULT = "signal.signal(signal.{}, signal.SIG_DFL)"
SIGNALS = ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGQUIT")
ENDINGS = {
    "a signal": ("", ["SIGINT"], 130),
    "under nohup": ("signal.signal(1, signal.SIG_IGN)", ["SIGHUP", "SIGINT"], 130),
    **{  # twice, and also in a background
        name: (BY_DEFAULT.format(name), [name] * 2, 128 + getattr(signal, name)) for name in SIGNALS
    },
}


@pytest.mark.parametrize("heard, sent, code", ENDINGS.values(), ids=ENDINGS)
def test_every_signal_that_ends_a_process_saves_first(heard, sent, code):
    with start(f"import signal; {heard}\n{POLLING}") as process:
        assert process.stdout.readline() == "ready\n"
        for name in sent:
            process.send_signal(getattr(signal, name))
        out, err = process.communicate(timeout=20)
    assert (out, process.returncode) == ("saved\n", code), err
    assert err.endswith("\nstopped at step 3, saved in runs/x\n")


STOPPED_AT = """
import os, signal, sys
number = int(os.environ["SIGNAL"])  # what runs in a background may not hear it
signal.signal(number, signal.default_int_handler if number == 2 else signal.SIG_DFL)
class Finder:
    def find_spec(name, path=None, target=None):
        if name == os.environ["AT"]:
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Finder)
"""
COMMANDS = {
    "script": [sys.executable, str(ROOT / "scripts/train_critic.py")],
    "module": [sys.executable, "-m", "lactchain", "train_critic"],
    "command": [str(Path(sys.executable).with_name("lactchain")), "train_critic"],
}


@pytest.mark.parametrize("module", ["gymnasium", "lactchain.runs.process", "jsonargparse"])
@pytest.mark.parametrize("way", COMMANDS)
def test_a_command_that_is_stopped_while_it_is_imported_ends_without_a_word(way, module, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(STOPPED_AT)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        variables = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "AT": module, "SIGNAL": str(int(number))}
        how = {"env": os.environ | variables, "capture_output": True, "text": True}
        done = subprocess.run(COMMANDS[way], **how)
        assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")


def test_a_second_signal_ends_at_once():
    with start(POLLING, "--run.seed=1") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stderr.readline().startswith("stopping as soon as")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
        assert process.stdout.read() == ""


QUICK = "process.GRACE_SECONDS = 0.1"
ASKED_AT_ONCE = """
listen = signal.signal
def listen_and_be_asked(number, handler):
    listen(number, handler)
    if number == signal.SIGTERM:
        os.kill(os.getpid(), number)
signal.signal = listen_and_be_asked
"""


@pytest.mark.parametrize(("work", "before"), [
    ('hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)', ""),  # minutes outside Python
    ("time.sleep(1000)", ""),  # it hears the signal, and nothing looks for it before they meet
    ("time.sleep(1000)", ASKED_AT_ONCE),  # as it begins to listen
])  # fmt: skip
def test_one_of_several_processes_ends_whatever_it_waits_for(monkeypatch, work, before):
    monkeypatch.setenv("WORLD_SIZE", "2")
    stuck = f'print("ready", flush=True)\n{work}'
    with start(launched(stuck, f"{before}\n{QUICK}")) as process:
        try:
            if not before:
                assert process.stdout.readline() == "ready\n"
                time.sleep(1)  # until it is outside Python
                process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 143
        finally:
            process.kill()


ALARM = """
signal.signal(signal.SIGALRM, lambda number, frame: None)
signal.alarm(1)
time.sleep(3)
print("done")
"""


def test_a_signal_that_an_environment_sends_itself_ends_none_of_several_processes(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert ended(launched(ALARM, QUICK))[:2] == (0, "done\n")


@pytest.mark.parametrize(("given", "found"), [
    ({}, "10000"),
    ({"GOMP_SPINCOUNT": "7"}, "7"),
    ({"OMP_WAIT_POLICY": "active"}, None),
])  # fmt: skip
def test_threads_of_torch_sleep_soon_unless_somebody_says_how_they_wait(monkeypatch, given, found):
    """Set before torch is there, which reads it once."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    work = "print(os.environ.get('GOMP_SPINCOUNT'), before)"
    _, out, _ = ended(launched(work, "before = 'torch' in sys.modules"))
    assert out.split() == [str(found), "False"]
