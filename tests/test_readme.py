"""What the README says is what is there: its tree, its commands, its tables, its code."""

import inspect
import re
import shlex
import subprocess
import sys
import tomllib
import types
import typing
from pathlib import Path

import gymnasium as gym
import pytest
from script_setups import SHAPE, config_class

import lactchain
from lactchain import errors
from lactchain.config import parse
from lactchain.data.base_models import prepare_tiny_actor
from lactchain.environments.extractors import Chain, make_extractor
from lactchain.errors import LactChainError
from lactchain.models.memory import memory_table
from lactchain.models.prompting import STRATEGIES
from lactchain.settings import EnvironmentConfig, LoraSettings
from lactchain.stages.run_pipeline import Rounds

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PROSE = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
SECTIONS = dict(re.findall(r"^#+ (.+?)\n(.*?)(?=^#+ |\Z)", PROSE, re.MULTILINE | re.DOTALL))


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCKS if name == language]


def table(section: str, heading: str) -> list[list[str]]:
    """The rows of the table in a section whose heading begins so."""
    lines = iter(SECTIONS[section].splitlines())
    next(line for line in lines if line.startswith(f"| {heading} |"))
    next(lines)
    rows = []
    while (line := next(lines, "")).startswith("|"):
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return rows


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


# --- the tree ------------------------------------------------------------------------------------

(TREE,) = (text.splitlines() for name, text in BLOCKS if not name and "lactchain/\n" in text)


def paths_in_tree() -> list[tuple[str, str]]:
    """The paths of the tree, by indentation, and what is said of each."""
    found, folders = [], []
    for line in TREE[1:]:
        depth = (len(line) - len(line.lstrip())) // 2
        name, _, said = line.strip().partition(" ")
        del folders[depth:]
        found.append(("".join([*folders, name]), said.strip()))
        folders.append(name)
    return found


def test_the_tree_has_a_line_for_each_file():
    said = dict(paths_in_tree())
    assert len(said) == len(TREE) - 1
    files = [*(ROOT / "lactchain").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
    there = {file.relative_to(ROOT).as_posix() for file in files if file.stat().st_size}
    assert {path for path in said if path.endswith(".py")} == there
    assert all(said[path] for path in there)


def test_everything_in_the_tree_is_there():
    paths = TREE[0].split() + [path for path, _ in paths_in_tree()]
    assert all((ROOT / path).exists() for path in paths if path != "runs/")


def test_links_lead_to_files():
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", PROSE)
    assert {"LICENSE", "benchmarks/RESULTS.md"} <= {*targets}
    assert all((ROOT / target).exists() for target in targets)


# --- commands ------------------------------------------------------------------------------------

LINES = "".join(blocks("sh")).replace("\\\n", " ").splitlines()
COMMANDS = [words for line in LINES if (words := shlex.split(line, comments=True))]
LAUNCHES = [words for words in COMMANDS if any(word.startswith("scripts/") for word in words)]


def launched(words: list[str]) -> tuple[list[str], str, list[str]]:
    """The launcher's part of a command, the name of the script, and its arguments."""
    place = next(i for i, word in enumerate(words) if word.startswith("scripts/"))
    return words[:place], Path(words[place]).stem, words[place + 1 :]


@pytest.mark.parametrize("words", LAUNCHES, ids=" ".join)
def test_a_script_takes_its_arguments(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    launcher, script, arguments = launched(words)
    if launcher != ["python"]:
        assert launcher[:2] == ["accelerate", "launch"]
        assert launcher[2:3] in ([], ["--config_file"])
        assert all(Path(word).is_file() for word in launcher[3:4])
    if "--print_config" in arguments:
        with pytest.raises(SystemExit, match="0"):
            parse(config_class(script), arguments)
    else:
        parse(config_class(script), arguments)


def test_other_commands_are_known_ones():
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for words in (words for words in COMMANDS if words not in LAUNCHES):
        program, *arguments = [w for w in words if not re.match(r"[A-Z_]+=", w)]
        if program == "make":
            assert arguments[0] in targets
        elif program == "python":
            assert arguments[:3] == ["-m", "pip", "install"]
            (extra,) = re.findall(r"^\.\[(.+)\]$", arguments[-1])
            assert extra in project["optional-dependencies"]
        else:
            assert program in ("source", "export", "hf")


def test_every_script_is_in_a_command():
    used = {launched(words)[1] for words in LAUNCHES}
    assert used == {file.stem for file in (ROOT / "scripts").glob("*.py")}


def test_no_two_commands_want_one_run_folder_for_different_things(monkeypatch):
    monkeypatch.chdir(ROOT)
    configs: dict[str, object] = {}
    for _, script, arguments in map(launched, LAUNCHES):
        if "--print_config" not in arguments:
            config = parse(config_class(script), arguments)
            if "run" in vars(config):
                assert configs.setdefault(config.run.run_dir, config) == config


# --- tables --------------------------------------------------------------------------------------


def test_the_summary_is_explained_key_by_key():
    rows = table("Two commands", "`summary.json`")
    written = re.findall(r'^ +"(\w+)":', inspect.getsource(Rounds.summary), re.MULTILINE)
    assert sorted(name for row in rows for name in names(row[0])) == sorted(written)


def test_exit_codes_are_those_of_the_errors():
    rows = table("Runs", "exit code")
    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    codes = {c.exit_code for c in classes if c not in (LactChainError, errors.Interrupted)}
    written = {int(code) for row in rows for code in re.findall(r"\d+", row[0])}
    assert written == codes | {0, 1, 130, 143}


def test_the_fields_of_the_grid_world_are_listed():
    rows = table("How the actor is asked", "field")
    env = lactchain.make_language_env(EnvironmentConfig())
    observation, info = env.env.reset()
    fields = env.view.describe(env.env, observation, info)
    assert [n for row in rows for n in names(row[0])] == [*fields, "feedback"]
    state = {"x": 2, "y": 0, "orientation": 3, "goal_x": 3, "goal_y": 1}
    observation, info = env.env.reset(options={"state": state})
    shown = {name: str(v) for name, v in env.view.describe(env.env, observation, info).items()}
    for row in rows[:-1]:
        examples = re.findall(r"`(.+?)`", row[1])
        assert [shown[name] for name in names(row[0])] == examples
    assert env.view.bump_feedback in rows[-1][1]


def test_the_menu_of_strategies_is_listed():
    (menu,) = re.findall(r"`lactchain/models/prompting.py`\s+\((.+?)\)", PROSE, re.DOTALL)
    assert names(menu) == list(STRATEGIES)


def test_answers_are_read_as_the_table_says():
    rows = table("How the actor is asked", "extractor")
    (annotation,) = (typing.get_type_hints(EnvironmentConfig)["extractor"],)
    assert [names(row[0])[0] for row in rows] == list(typing.get_args(annotation))
    for row in rows[:2]:
        extractor = make_extractor(names(row[0])[0], ("move forward", "turn left"))
        assert isinstance(extractor.parse(row[1].strip("`")), Chain)


def test_decoding_modes_are_those_that_there_are():
    modes = re.findall(r"^- `(\w+)`:", SECTIONS["How the actor is asked"], re.MULTILINE)
    hints = typing.get_type_hints(lactchain.ActorConfig)
    assert modes == list(typing.get_args(hints["decoding"]))


def test_memory_is_what_the_dry_run_prints():
    rows = table("Mistral-7B and SFR-Embedding-Mistral", "GiB")
    assert rows == [list(row.values()) for row in memory_table(LoraSettings())]


# --- code ----------------------------------------------------------------------------------------


def test_python_code_runs_from_the_first_block_to_the_last(tmp_path, monkeypatch, capsys):
    registered = {*gym.registry}
    page = types.ModuleType("readme")
    monkeypatch.setitem(sys.modules, "readme", page)
    monkeypatch.chdir(tmp_path)
    prepare_tiny_actor("weights/tiny-actor", SHAPE, EnvironmentConfig())
    try:
        for code in blocks("python"):
            assert all(len(line) <= 100 for line in code.splitlines())
            exec(compile(code, "README.md", "exec"), vars(page))
        assert lactchain.open_run("runs/train_weighted").summary == page.summary
    finally:
        for env_id in {*gym.registry} - registered:
            del gym.registry[env_id]
    assert "my/CorridorText-v0, seed" in capsys.readouterr().out
    (example,) = (code for code in blocks("python") if "gym.register" in code)
    assert example.count("\n") < 40


# --- the package ---------------------------------------------------------------------------------


def test_public_names_are_there_and_at_home_in_one_module():
    assert len(set(lactchain.__all__)) == len(lactchain.__all__)
    for name in lactchain.__all__:
        assert getattr(lactchain, name).__module__.startswith("lactchain.")
    assert {*lactchain.__all__} <= {*dir(lactchain)}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = lactchain.nothing


def test_importing_the_package_registers_environments_and_loads_nothing_heavy():
    code = """
import sys, lactchain
loaded = {"torch", "transformers", "trl", "datasets", "pyarrow"} & sys.modules.keys()
import gymnasium
print(sorted(loaded), gymnasium.make("lactchain/GridWorld-v0").spec.id)
"""
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout == "[] lactchain/GridWorld-v0\n"
