"""The command `lactchain`: every script by its name, every shipped configuration by its own."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from run_folders import write_text_run
from run_setups import ROOT
from script_setups import config_class, config_of

import lactchain
from lactchain import ConfigError, command, dump, parse
from lactchain.config.parsing import to_dict
from lactchain.config.yaml_files import with_files

NAMES = sorted(path.stem for path in (ROOT / "scripts").glob("*.py"))
FILES = sorted(f for f in (ROOT / "configs").glob("*/*.yaml") if f.parent.name != "accelerate")


def run(*words: str, **options) -> subprocess.CompletedProcess:
    words = (sys.executable, "-m", "lactchain", *words)
    return subprocess.run(words, capture_output=True, text=True, **options)


def test_alone_it_lists_every_script_in_a_line():
    alone = run()
    listed = re.findall(r"^  (\w+) +([A-Z].+\.)$", alone.stdout, re.MULTILINE)
    assert [name for name, _ in listed] == NAMES
    assert (alone.returncode, alone.stderr) == (0, "")
    assert command.overview() == alone.stdout


def test_a_name_stands_for_the_shipped_file_after_the_option_alone_and_paths_stay():
    for file in FILES:
        for words in (["--config", file.stem, "--a", "1"], [f"--config={file.stem}", "--a", "1"]):
            read = with_files(file.parent.name, words)
            assert read == ["--config", str(file), "--a", "1"]
    words = ["--config", "./mine", "--run.run_dir", "gridworld_tiny", "--config", "a/b.yaml"]
    assert with_files("evaluate", words) == words


def test_an_unknown_name_lists_those_there_are():
    with pytest.raises(ConfigError, match="one of cartpole, gridworld_mistral7b, gridworld_tiny;"):
        with_files("search", ["--config", "cartpol"])
    with pytest.raises(ConfigError, match=r"no such command; did you mean train_critic or"):
        command.script("train_critc")
    with pytest.raises(ConfigError, match=r"no such command; did you mean quickstart\?"):
        command.script("quickstrat")
    refused = run("evaluate", "--config", "tiny")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert re.fullmatch(r"error: --config tiny: expected a file, or one of .+\n", refused.stderr)


@pytest.mark.parametrize("name", NAMES)
def test_help_gives_commands_that_it_takes(name):
    said = command.usage(name, command.runpy.run_path(str(command.script(name)))["__doc__"])
    assert "scripts/" not in said
    commands = re.findall(rf"lactchain {name} (.+)", re.sub(r"\s*\\\n\s*", " ", said))
    assert len(commands) >= 2
    for words in map(shlex.split, commands):
        parse(config_class(name), command.arguments_of(name, words))


def test_it_runs_a_script_under_its_own_name():
    shown = run("train_dqn", "--config", "cartpole", "--loop.total_steps", "7", "--print_config")
    file = str(ROOT / "configs/train_dqn/cartpole.yaml")
    config = parse(config_class("train_dqn"), ["--config", file, "--loop.total_steps", "7"])
    assert yaml.safe_load(shown.stdout) == to_dict(config)
    assert run("play", "--help").stdout.startswith("usage: lactchain play [--config FILE ...]")


def test_a_run_is_reported_by_its_folder_alone(tmp_path):
    folder = write_text_run(tmp_path / "run")
    reported = run("report", str(folder), cwd=tmp_path)
    assert (reported.returncode, reported.stderr) == (0, "")
    assert Path(reported.stdout.strip()) == folder / "report.html"
    assert (folder / "report.html").exists()


def test_it_says_where_the_configurations_are():
    folder = Path(run("configs").stdout.removesuffix("\n"))
    assert (folder / "accelerate/cpu_2_processes.yaml").is_file()
    assert run("--version").stdout == f"{lactchain.__version__}\n"
    assert re.fullmatch(r"\d+\.\d+\.\d+", lactchain.__version__)


def test_a_first_word_is_a_configuration_and_one_that_is_none_is_told_those_there_are():
    named = command.arguments_of("run_pipeline", ["tiny", "--run.seed", "1"])
    assert named == command.arguments_of("run_pipeline", ["--config", "tiny", "--run.seed", "1"])
    assert command.arguments_of("report", ["runs/x"]) == ["--run_dir", "runs/x"]
    assert command.arguments_of("run_pipeline", ["my/own.yaml"]) == ["--config", "my/own.yaml"]
    with pytest.raises(ConfigError, match="--config tinny: expected a file, or one of .*tiny"):
        command.arguments_of("run_pipeline", ["tinny"])


def completed(*words: str) -> list[str]:
    """What bash offers in the place of the last word."""
    asked = " ".join(map(shlex.quote, words))
    script = f"""eval "$({shlex.quote(sys.executable)} -m lactchain completion)"
    COMP_WORDS=({asked}); COMP_CWORD={len(words) - 1}
    _lactchain; printf '%s\\n' "${{COMPREPLY[@]}}"; complete -p lactchain"""
    shell = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT)
    *found, registered = shell.stdout.splitlines()
    assert (shell.stderr, registered.endswith("-F _lactchain lactchain")) == ("", True)
    return sorted(filter(None, found))


def test_bash_completes_commands_configurations_and_files():
    assert completed("lactchain", "train_") == [n for n in NAMES if n.startswith("train_")]
    assert completed("lactchain", "qui") == ["quickstart"]
    of_critic = {f.stem for f in FILES if f.parent.name == "train_critic"}
    tiny = completed("lactchain", "train_critic", "--config", "gridworld_tiny_")
    assert tiny == ["gridworld_tiny_action_value"]
    assert of_critic <= {*completed("lactchain", "train_critic", "--config", "")}
    assert completed("lactchain", "report", "READ") == ["README.md"]


def test_the_quickstart_is_the_tiny_recipe_or_a_named_one_on_two_processes():
    for words, recipe in (([], ["tiny", "--run.run_dir", "runs/quickstart"]), (["maze_tiny"],) * 2):
        shown = run("quickstart", *words, "--run.seed", "3", "--print_config")
        words = with_files("run_pipeline", ["--config", *recipe, "--run.seed", "3"])
        assert yaml.safe_load(shown.stdout) == to_dict(parse(config_class("run_pipeline"), words))
    head, _, _ = run("quickstart", "--help").stdout.partition("The whole founding recipe")
    about = " ".join(head.split())
    assert "on two processes" in about and "writes into runs/quickstart" in about


def test_a_mistake_in_a_quickstart_is_one_line_and_starts_nothing(tmp_path):
    mistakes = {"--run.sed": "run.sed: no such key; did you mean run.seed"}
    mistakes["--num_rounds"] = "num_rounds: expected at least 1, got -3"
    for name, told in mistakes.items():
        refused = run("quickstart", name, "-3", cwd=tmp_path)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith(f"error: {told}") and refused.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_ctrl_c_stops_a_quickstart_with_one_line_and_its_own_code(weights, tmp_path):
    (tmp_path / "own.yaml").write_text(dump(config_of("run_pipeline", weights, tmp_path / "run")))
    words = [sys.executable, "-m", "lactchain", "quickstart", "--config", f"{tmp_path}/own.yaml"]
    words += ["--run.run_dir", f"{tmp_path}/run"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as p:
        while not (tmp_path / "run/environment.json").exists():
            assert p.poll() is None, p.stderr.read()
            time.sleep(0.05)
        p.send_signal(signal.SIGINT)  # the others hear SIGTERM
        said = p.stderr.read()
    assert p.returncode == 130, said
    assert "Traceback" not in said and "Root Cause" not in said
    assert said.count("stopping as soon as the state is saved") == 1
    assert said.count("give the same command to go on") == 1, said
    made = json.loads((tmp_path / "run/environment.json").read_text())
    assert (made["command"], made["world_size"]) == ("quickstart", 2)
