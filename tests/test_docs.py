"""What the pages say is what is there: links, paths, settings, commands, tables, code."""

import importlib.util
import inspect
import json
import re
import shlex
import sys
import tomllib
import types
import typing
from dataclasses import fields, is_dataclass
from pathlib import Path
from xml.etree import ElementTree

import gymnasium as gym
import pytest
from pages import BY_PATH, PAGES, README, RECORDS, ROOT, Page, names
from run_folders import play, write_run
from script_setups import SHAPE, config_class

import lactchain
from lactchain import errors
from lactchain.command import arguments_of
from lactchain.config.parsing import parse
from lactchain.config.settings import EnvironmentConfig
from lactchain.config.strategies import STRATEGIES
from lactchain.data.alarms import RULES, Alarm
from lactchain.data.base_models import prepare_tiny_actor
from lactchain.data.evaluations import EpisodeResult, write_episodes
from lactchain.data.trajectories import write_trajectories
from lactchain.environments import extractors
from lactchain.errors import LactChainError
from lactchain.stages.round_results import RoundResults

FOLDERS = "lactchain|scripts|configs|docs|benchmarks|notebooks|recipes|tests"
PROMPTS, RUNS = BY_PATH["docs/prompts.md"], BY_PATH["docs/runs.md"]


# --- links, paths, settings ----------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES + RECORDS, ids=str)
def test_links_lead_to_pages_and_headings(page):
    for path, anchor in page.links:
        target = (ROOT / page.path).parent / path if path else ROOT / page.path
        assert target.exists(), path
        if anchor:
            assert anchor in Page(target.resolve().relative_to(ROOT).as_posix()).anchors, anchor


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_files_that_a_page_names_are_there(page):
    code = "\n".join(re.findall(r"`([^`\n]+)`", page.prose))
    paths = re.findall(rf"\b(?:{FOLDERS})/[\w./]*(?:/|\.py|\.sh|\.yaml|\.md|\.ipynb)(?!\S)", code)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def keys(config: type) -> set[str]:
    """Every key of a config class, those of nested classes behind a dot."""
    found = set()
    for field, hint in ((f.name, typing.get_type_hints(config)[f.name]) for f in fields(config)):
        inner = [kind for kind in (hint, *typing.get_args(hint)) if is_dataclass(kind)]
        found |= {field} | {f"{field}.{key}" for kind in inner for key in keys(kind)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_settings_that_a_page_names_exist(page):
    configs = [config_class(file.stem) for file in (ROOT / "scripts").glob("*.py")]
    known = set().union(*map(keys, configs))
    groups = "|".join({key.split(".")[0] for key in known if "." in key})
    code = " ".join(re.findall(r"`([^`\n]+)`", page.prose))
    named = re.findall(rf"(?:^|--| )((?:{groups})\.[a-z_.0-9]+)", code)
    # A key of a mapping follows `kwargs`; what ends in json or jsonl is a file.
    unknown = [key for key in named if key not in known and ".kwargs." not in key]
    assert {*unknown} <= {"environment.json", "trials.jsonl"}


# --- commands ------------------------------------------------------------------------------------

LINES = "".join("".join(page.blocks("sh")) for page in PAGES).replace("\\\n", " ").splitlines()
INLINE = r"`((?:python scripts/|lactchain \w+ )[^`]+)`"
LINES += [line for page in PAGES for line in re.findall(INLINE, page.prose)]
LINES = [line.replace("$(lactchain configs)", "configs") for line in LINES]
COMMANDS = [words for line in LINES if (words := shlex.split(line, comments=True))]
SCRIPTS = {file.stem for file in (ROOT / "scripts").glob("*.py")}


def is_launch(words: list[str]) -> bool:
    """Whether a command starts a script, by its path or as a sub-command."""
    named = zip(words, words[1:], strict=False)
    by_name = any(first == "lactchain" and second in SCRIPTS for first, second in named)
    return by_name or any(word.startswith("scripts/") for word in words)


LAUNCHES = [words for words in COMMANDS if is_launch(words)]


def launched(words: list[str]) -> tuple[list[str], str, list[str]]:
    """The launcher's part of a command, the name of the script, and its arguments."""
    if "lactchain" in words:
        place = words.index("lactchain")
        name, *arguments = words[place + 1 :]
        launcher = [word for word in words[:place] if word != "-m"] or ["python"]
        return launcher, name, arguments_of(name, arguments)
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
    if {"--print_config", "--help"} & {*arguments}:
        with pytest.raises(SystemExit, match="0"):
            parse(config_class(script), arguments)
    else:
        parse(config_class(script), arguments)


def test_other_commands_are_known_ones(monkeypatch):
    monkeypatch.chdir(ROOT)
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for words in (words for words in COMMANDS if words not in LAUNCHES):
        program, *arguments = [w for w in words if not re.match(r"[A-Z_]+=", w)]
        if program == "make":
            assert arguments[0] in targets
        elif program == "python":
            check_python(*arguments)
        elif program == "lactchain":
            assert arguments in ([], ["configs"])
        elif program in ("bash", "sbatch"):
            place = arguments.index("recipes/served.sh")
            assert all(number.isdigit() for number in arguments[place + 1 : place + 3])
            parse(config_class("run_pipeline"), arguments[place + 3 :])
        else:
            assert program in ("source", "export", "hf", "pip", "pre-commit")


def check_python(first: str, *arguments: str) -> None:
    """An extra that is installed, the tests, or a program of ours that knows its options."""
    if first != "-m":
        options = [word for word in arguments if word.startswith("--")]
        assert all(f'"{option}"' in (ROOT / first).read_text() for option in options)
    elif arguments[:2] == ("pip", "install"):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        (extra,) = re.findall(r"^\.\[(.+)\]$", arguments[-1])
        assert extra in project["optional-dependencies"]
    else:
        assert arguments[0] == "pytest"
        assert all((ROOT / word).exists() for word in arguments[1:] if "/" in word)


def test_every_script_is_in_a_command():
    used = {launched(words)[1] for words in LAUNCHES}
    assert used == SCRIPTS


def test_no_two_commands_want_one_run_folder_for_different_things(monkeypatch):
    monkeypatch.chdir(ROOT)
    configs: dict[str, object] = {}
    for _, script, arguments in map(launched, LAUNCHES):
        if not {"--print_config", "--help"} & {*arguments}:
            config = parse(config_class(script), arguments)
            if "run" in vars(config):
                assert configs.setdefault(config.run.run_dir, config) == config


# --- tables --------------------------------------------------------------------------------------


def test_the_summary_is_explained_key_by_key():
    rows = RUNS.table("What the quickstart says", "`summary.json`")
    written = re.findall(r'^ +"(\w+)":', inspect.getsource(RoundResults.summary), re.MULTILINE)
    assert sorted(name for row in rows for name in names(row[0])) == sorted(written)


def test_exit_codes_are_those_of_the_errors():
    rows = BY_PATH["docs/errors.md"].table("Exit codes", "exit code")
    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    made = {c.__name__: c for c in classes if c not in (LactChainError, errors.Interrupted)}
    written = {int(code) for row in rows for code in re.findall(r"\d+", row[0])}
    assert written == {c.exit_code for c in made.values()} | {0, 1, 130, 143}
    named = {name: int(row[0]) for row in rows for name in names(row[2]) if name in made}
    assert named == {name: c.exit_code for name, c in made.items()}


def test_alarms_are_those_of_the_rules():
    rules = [
        [f"`{rule.name}`", f"`{rule.figures[0]}`", f"{side(rule)} {rule.threshold:g}", rule.means]
        for rule in RULES
    ]
    assert RUNS.table("Alarms", "alarm") == rules


def side(rule: Alarm) -> str:
    return "below" if rule.from_below else "above"


def test_the_fields_of_the_grid_world_are_listed():
    rows = PROMPTS.table("State", "field")
    env = lactchain.make_language_env(EnvironmentConfig())
    observation, info = env.env.reset()
    described = env.view.describe(env.env, observation, info)
    assert [n for row in rows for n in names(row[0])] == [*described, "feedback"]
    state = {"x": 2, "y": 0, "orientation": 3, "goal_x": 3, "goal_y": 1}
    observation, info = env.env.reset(options={"state": state})
    shown = {name: str(v) for name, v in env.view.describe(env.env, observation, info).items()}
    for row in rows[:-1]:
        examples = re.findall(r"`(.+?)`", row[1])
        assert [shown[name] for name in names(row[0])] == examples
    assert env.view.bump_feedback in rows[-1][1]


def test_the_menu_of_strategies_is_listed():
    (menu,) = re.findall(r"`lactchain/config/strategies.py`\s+\((.+?)\)", PROMPTS.prose, re.DOTALL)
    assert names(menu) == list(STRATEGIES)


def test_completions_are_read_as_the_table_says():
    rows = PROMPTS.table("Completion", "extractor")
    (annotation,) = (typing.get_type_hints(EnvironmentConfig)["extractor"],)
    assert [names(row[0])[0] for row in rows] == list(typing.get_args(annotation))
    for row in rows[:2]:
        extractor = extractors.make_extractor(names(row[0])[0], ("move forward", "turn left"))
        assert isinstance(extractor.parse(row[1].strip("`")), extractors.Chain)


def test_every_reason_of_a_refused_completion_is_listed_with_one():
    rows = PROMPTS.table("Completion", "`invalid_reason`")
    assert [names(row[0])[0] for row in rows] == list(typing.get_args(extractors.Reason))
    actions = ("move forward", "turn left")
    for reason, _, example in rows:
        kind = "json_object" if example.startswith("`{") else "json_list"
        refused = extractors.make_extractor(kind, actions, 2).parse(example.strip("`"))
        assert refused.reason == reason.strip("`")


def test_decoding_modes_are_those_that_there_are():
    modes = re.findall(r"^- `(\w+)`:", PROMPTS.sections["Decoding"], re.MULTILINE)
    hints = typing.get_type_hints(lactchain.ActorConfig)
    assert modes == list(typing.get_args(hints["decoding"]))


# --- code ----------------------------------------------------------------------------------------


IN_OTHER_TESTS = {
    "docs/notebook.md",  # needs a finished pipeline: tests/test_notebook_snippets.py
    "docs/ecosystems.md",  # needs servers: tests/test_ecosystems_page.py
}
WITH_CODE = [p for p in PAGES if p.blocks("python") and p.path not in IN_OTHER_TESTS]


@pytest.mark.parametrize("page", WITH_CODE, ids=str)
def test_python_code_runs_from_the_first_block_to_the_last(page, tmp_path, monkeypatch, capsys):
    registered = {*gym.registry}
    module = types.ModuleType("a_page")
    monkeypatch.setitem(sys.modules, "a_page", module)
    monkeypatch.chdir(tmp_path)
    prepare_tiny_actor("weights/tiny-actor", SHAPE, EnvironmentConfig())
    try:
        for code in page.blocks("python"):
            assert all(len(line) <= 100 for line in code.splitlines())
            exec(compile(code, page.path, "exec"), vars(module))
    finally:
        for env_id in {*gym.registry} - registered:
            del gym.registry[env_id]
    if page.path == "docs/extending.md":
        assert lactchain.open_run("runs/train_weighted").summary == module.summary
        assert "my/CorridorText-v0, seed" in capsys.readouterr().out
        assert page.blocks("python")[0].count("\n") < 40


def test_what_is_added_in_the_readme_takes_ten_lines_each():
    section = README.text.split("## Add your own")[1].split("\n## ")[0]
    examples = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert len(examples) == 4
    for code in examples:
        assert sum(1 for line in code.splitlines() if line) <= 12


# --- what programs make --------------------------------------------------------------------------


def test_every_file_says_what_it_is():
    code_map = load("docs/code_map.py")
    for folder in code_map.folders():
        for file in folder.glob("*.py"):
            assert not file.stat().st_size or len(code_map.says(file)) > 20, file


def test_files_of_all_folders_are_listed_or_those_of_one(monkeypatch, capsys):
    code_map = load("docs/code_map.py")
    monkeypatch.setattr(sys, "argv", ["code_map.py"])
    code_map.main()
    listed = capsys.readouterr().out
    assert "\nlactchain_extras/wordle/\n" in listed and "  code_map.py" in listed
    monkeypatch.setattr(sys, "argv", ["code_map.py", "lactchain/functional/"])
    code_map.main()
    assert (said := capsys.readouterr().out) in listed and said.startswith(
        "lactchain/functional/\n"
    )


def test_the_picture_shows_the_farthest_state_that_was_failed_before_and_solved_after(tmp_path):
    states = [
        {"x": 3, "y": 3, "orientation": 0, "goal_x": x, "goal_y": 0} for x in (0, 3)
    ]  # the way to the first is longer, and found neither before nor after
    results = [EpisodeResult(state, n == 1, 1, 3, 8 - 5 * n) for n, state in enumerate(states)]
    run = write_quickstart(tmp_path / "run", states, results)
    picture = load("docs/draw_quickstart.py").draw(lactchain.open_run(run))
    shown = "".join(map(str.strip, ElementTree.fromstring(picture).itertext()))
    assert "1. []2. []3. []... and so on, 16 completionsgoal not reached" in shown
    assert "goal (3, 0)" in shown and "goal (0, 0)" not in shown
    assert shown.endswith('"move forward"]goal reached')


def write_quickstart(folder: Path, states: list[dict], results: list[EpisodeResult]) -> Path:
    """A pipeline of one round: before it nothing is said, after it three steps forward."""
    rounds = [
        {"round": n, "success_rate": n / 2, "success_within_2_chains": n / 2} for n in range(2)
    ]
    environment = {"id": "lactchain/GridWorld-v0", "kwargs": {}}
    write_run(folder, {"environment": environment}, 2, {"rounds": rounds})
    write_episodes(folder / "episodes.json", results)
    env = lactchain.make_language_env(EnvironmentConfig())
    for number, chain in enumerate(["[]", json.dumps(["move forward"] * 3)]):
        stage = folder / f"round_{number}" / "evaluation"
        write_run(stage, {"environment": environment}, 1, start=1000 * number)
        played = [play(env, lambda _, chain=chain: chain, 0, state) for state in states]
        write_trajectories(stage / "trajectories" / "0.parquet", played)
    return folder


def test_the_picture_is_small_and_whole():
    picture = (ROOT / "docs" / "quickstart.svg").read_bytes()
    assert len(picture) < 150_000
    assert ElementTree.fromstring(picture).tag.endswith("svg")


def load(path: str) -> types.ModuleType:
    """A program beside the pages, as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
