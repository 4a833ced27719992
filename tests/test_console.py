"""The console: one live line while there is work, and plain lines for whoever pipes them away."""

import io
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from rich.console import Console
from run_setups import ended, launched, start
from script_setups import config_of, run_here

from lactchain.runs import console as console_module
from lactchain.runs.console import GrowingTable, Step, console, live_line, plain, table, under_way
from lactchain.stages.run_pipeline import command
from lactchain.storage.files import size_of
from lactchain_extras import films

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(console_module, "time", clock)
    return clock


def test_the_line_tells_what_is_under_way_and_how_long_it_takes(clock):
    with under_way("round", 14, most=True) as rounds:
        rounds.at(0)
        for number in (1, 2):
            clock.now = 16.0 * number
            rounds.at(number)
        rounds.note = "success 0.88"
        with under_way("Critic"), under_way("training", 240) as training:
            clock.now = 48.0  # the training would take 16 s more, as the innermost step
            training.at(120)
            told = "round 3/14 · Critic · training 120/240 · at most 3 min left · success 0.88"
            assert live_line() == told
    assert live_line() == ""


def test_what_was_done_before_tells_nothing_of_the_pace(clock):
    with under_way("training", 100) as step:
        step.resumed(80)
        clock.now = 2.0
        step.at(81)
        assert live_line() == "training 81/100"  # too early to tell
        clock.now = 10.0
        step.at(85)
        assert live_line() == "training 85/100 · about 30 s left"
        clock.now = 14.0
        assert step.seconds_left() == 26.0
    endless = Step("evaluation")
    endless.at(3)
    assert str(endless) == "evaluation" and endless.seconds_left() is None


def work(file, monkeypatch) -> None:
    """Something that is counted, and says something meanwhile."""
    console = Console(file=file, highlight=False)
    monkeypatch.setattr(console_module, "console", console)
    with under_way("rollouts", 12) as step:
        step.at(5)
        console.print("in between")


@pytest.mark.parametrize("force_color", [None, "1"])
def test_a_pipe_gets_no_live_line_and_no_control_character(force_color, monkeypatch):
    if force_color:
        monkeypatch.setenv("FORCE_COLOR", force_color)
    piped = io.StringIO()
    work(piped, monkeypatch)
    assert piped.getvalue() == "in between\n"


def test_a_pipe_gets_a_line_each_minute(clock, monkeypatch):
    piped = io.StringIO()
    monkeypatch.setattr(console_module, "console", Console(file=piped, highlight=False))
    with under_way("round", 2, most=True), under_way("training", 300) as step:
        for clock.now in range(1, 151):
            step.at(clock.now)
    told = ("60/300 · about 4 min left", "120/300 · about 3 min left")
    assert piped.getvalue() == "".join(f"round 1/2 · training {line}\n" for line in told)


def test_a_pipeline_prints_one_table_and_what_to_do_next(weights, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(films, "write_gif", lambda *_: console.print("of a film"))
    config = config_of("run_pipeline", weights, tmp_path / "run", num_rounds=1)
    run_here("run_pipeline", config)
    shown = capsys.readouterr().out
    assert not CONTROL.search(shown)
    assert shown.count("┏") == 1 and "Critic" not in shown
    assert re.findall(r"^ +(\d+) +[.\d]+ ", shown, re.MULTILINE) == ["0", "1"]
    assert "there is no target to meet" in shown.partition("of a film")[2]
    taken = float(re.search(rf"everything is in {tmp_path}/run \((.+) MB\)", shown)[1])
    assert taken == pytest.approx(size_of(tmp_path / "run") / 1e6, rel=0.2)
    commands = re.findall(r"^  (.+)$", shown, re.MULTILINE)[-3:]
    assert [line.split()[:2] for line in commands][0] == ["python", "-m"]
    assert f"--actor.model {tmp_path}/run" in commands[1] and "--run.seed 1" in commands[2]
    run_here("run_pipeline", config)
    again = capsys.readouterr().out  # a finished run says it once more
    assert again.count("┏") == 1 and commands[1] in again


def test_a_command_is_of_the_kind_that_was_given(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["scripts/run_pipeline.py"])
    options = {"actor.model": "my runs/x", "actor.temperature": 0, "environment.kwargs.walls": None}
    assert command("play", options) == (
        "python scripts/play.py --actor.model 'my runs/x' --actor.temperature 0"
        " --environment.kwargs.walls null"
    )
    monkeypatch.setattr(sys, "argv", ["/usr/bin/lactchain"])
    assert command("play", {}) == "lactchain play"


def test_text_of_a_model_reaches_the_console_as_it_is():
    with console.capture() as capture:
        table("[b]title", [{"chain": "[move forward]", "value": 0.123456}])
        console.print(plain("[red]x\x00\x1b\u202e"))
        table("a long path", [{"critic": "folder/" * 50}])
    shown = capture.get()
    assert "".join(re.findall("[folder/]", shown.partition("critic")[2])) == "folder/" * 50
    told = ("[b]title", "[move forward]", "0.1235", "[red]x\\x00\\x1b\\u202e")
    assert [text for text in told if text not in shown] == []


TALKATIVE = launched("""
    import transformers
    from lactchain.models import runtime
    from lactchain.runs.console import table

    for _ in range(2000):
        table("Figures", [{"loss": 0.5, "name": "x" * 20}])
    logging.getLogger("lactchain").warning("a \x1b[31mred\x1b[0m file \x9b2J, %s", "y" * 9999)
    transformers.utils.logging.get_logger("transformers.models").warning("a \x1b]0;title\x07 model")
    open(sys.argv[-1].partition("=")[2] + ".done", "w").close()
""")


@pytest.mark.parametrize("lost", [("stdout",), ("stderr",), ("stdout", "stderr")])
@pytest.mark.parametrize("why", ["its disk is full", "nobody reads it"])
def test_a_console_that_takes_nothing_costs_the_lines_and_not_the_run(tmp_path, why, lost):
    with open("/dev/full", "w") as disk:
        streams = dict.fromkeys(lost, disk) if why == "its disk is full" else {}
        with start(TALKATIVE, f"--run.run_dir={tmp_path / 'run'}", **streams) as process:
            for name in () if streams else lost:
                getattr(process, name).close()
            left = [s for s in (process.stdout, process.stderr) if s is not None and not s.closed]
            said = "".join(stream.read() for stream in left)
            process.wait(timeout=60)
    assert (process.returncode, (tmp_path / "run.done").exists()) == (0, True), said


def test_a_console_that_a_world_closes_shows_what_comes_after():
    source = launched("sys.stdout.close()\nsys.stderr.close()\nprint('shown')")
    assert ended(source) == (0, "shown\n", "")


def test_no_text_of_others_commands_a_terminal_and_no_line_fills_it(tmp_path):
    _, _, err = ended(TALKATIVE, f"--run.run_dir={tmp_path / 'run'}")
    assert not set("\x1b\x9b\x07") & set(err), ascii(err)
    assert "red" in err and "title" in err and max(map(len, err.splitlines())) < 2100


def test_letters_that_a_console_does_not_have_show_escaped():
    code = "from lactchain.runs.console import guard_streams as g; g(); print('\\xe9\\u2744')"
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, env=os.environ | plain, capture_output=True, check=True)
    assert shown.stdout == rb"\xe9\u2744" + b"\n"


def written(terminal: int) -> Iterator[str]:
    """What has come out of a terminal."""
    while select.select([terminal], [], [], 0.1)[0]:
        yield os.read(terminal, 10_000).decode()
    os.close(terminal)


def test_a_terminal_shows_the_line_and_keeps_nothing_of_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        work(terminal, monkeypatch)
        shown = "".join(written(ours))
    begun, _, rest = shown.partition("in between")
    assert "rollouts 0/12" in begun and "rollouts 5/12" in rest
    wiped, cursor_stays = rest.rindex("\x1b[2K"), "\x1b[?25h"
    assert rest.rindex("rollouts") < wiped
    assert cursor_stays in begun and rest.strip().endswith((cursor_stays, "\x1b[2K"))


def test_a_growing_table_is_a_line_for_each_row(capsys):
    table = GrowingTable()
    table.add({"round": 0, "success": 0.51349, "notes": ""})
    table.add({"round": 1, "success": float("nan"), "notes": "loops, bumps"})
    rows = ["  round  success  notes", "      0   0.5135", "      1           loops, bumps"]
    assert capsys.readouterr().out.splitlines() == rows
