"""What the pages say is what is there: links, paths, settings, commands, tables, code, the tree."""

import inspect
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
import types
import typing
from contextlib import nullcontext
from functools import cache
from itertools import pairwise
from pathlib import Path

import gymnasium as gym
import pytest
import yaml
from pages import BY_PATH, MANUAL, PAGES, README, RECORDS, ROOT, Page, names
from script_setups import SHAPE, config_class

import lactchain
from lactchain import EnvironmentConfig, GuidedActorConfig, LactChainError, errors, parse
from lactchain.command import arguments_of
from lactchain.config.parsing import keys
from lactchain.config.strategies import STRATEGIES
from lactchain.data.alarms import RULES
from lactchain.data.base_models import prepare_tiny_actor
from lactchain.environments import extractors
from lactchain.stages.round_results import RoundResults

(TREE,) = map(str.splitlines, BY_PATH["docs/code.md"].blocks(""))
FOLDERS = "lactchain|scripts|configs|docs|benchmarks|notebooks|recipes|tests"
SCRIPTS = {file.stem for file in (ROOT / "scripts").glob("*.py")}
PROMPTS, RUNS = BY_PATH["docs/prompts.md"], BY_PATH["docs/runs.md"]


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


@pytest.fixture(scope="module")
def known() -> set[str]:
    return set().union(*(keys(config_class(script)) for script in SCRIPTS))


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_settings_that_a_page_names_exist(page, known):
    groups = "|".join({key.split(".")[0] for key in known if "." in key})
    code = " ".join(re.findall(r"`([^`\n]+)`", page.prose))
    named = re.findall(rf"(?:^|--| )((?:{groups})\.[a-z_.0-9]+)", code)
    # A key of a mapping follows `kwargs`; what ends in json or jsonl is a file.
    unknown = [key for key in named if key not in known and ".kwargs." not in key]
    assert {*unknown} <= {"environment.json"}


# --- commands ------------------------------------------------------------------------------------

LINES = "".join("".join(page.blocks("sh")) for page in PAGES).replace("\\\n", " ").splitlines()
INLINE = r"`((?:python scripts/|lactchain \w+ )[^`]+)`"
LINES += [line for page in PAGES for line in re.findall(INLINE, page.prose)]
LINES = [line.replace("$(lactchain configs)", "configs") for line in LINES]
COMMANDS = [words for line in LINES if (words := shlex.split(line, comments=True))]
BY_NAME = {("lactchain", script) for script in SCRIPTS}
LAUNCHES = [
    words for words in COMMANDS
    if BY_NAME & {*pairwise(words)} or any(word.startswith("scripts/") for word in words)
]  # fmt: skip


def launched(words: list[str]) -> tuple[list[str], str, tuple[str, ...]]:
    """The launcher's part of a command, the name of the script, and its arguments."""
    if "lactchain" in words:
        place = words.index("lactchain")
        name, *arguments = words[place + 1 :]
        launcher = [word for word in words[:place] if word != "-m"] or ["python"]
        return launcher, name, tuple(arguments_of(name, arguments))
    place = next(i for i, word in enumerate(words) if word.startswith("scripts/"))
    return words[:place], Path(words[place]).stem, tuple(words[place + 1 :])


@cache
def parsed(script: str, arguments: tuple[str, ...]) -> object:
    """The configuration of a command; None of one that asks for something else."""
    asks = {"--print_config", "--help"} & {*arguments}
    with pytest.raises(SystemExit, match="0") if asks else nullcontext():
        return parse(config_class(script), [*arguments])


@pytest.mark.parametrize("words", LAUNCHES, ids=" ".join)
def test_a_script_takes_its_arguments(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    launcher, script, arguments = launched(words)
    if launcher != ["python"]:
        assert launcher[:2] == ["accelerate", "launch"]
        assert launcher[2:3] in ([], ["--config_file"])
        assert all(Path(word).is_file() for word in launcher[3:4])
    parsed(script, arguments)


def test_other_commands_are_known_ones(monkeypatch):
    monkeypatch.chdir(ROOT)
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for words in (words for words in COMMANDS if words not in LAUNCHES):
        program, *arguments = [w for w in words if not re.match(r"[A-Z_]+=", w)]
        if program == "make":
            assert arguments[0] in targets
        elif program == "python" and arguments[0] != "-m":
            options = [word for word in arguments if word.startswith("--")]
            assert all(f'"{option}"' in (ROOT / arguments[0]).read_text() for option in options)
        elif program == "python" and arguments[1:3] == ["pip", "install"]:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            (extra,) = re.findall(r"^\.\[(.+)\]$", arguments[-1])
            assert extra in project["optional-dependencies"]
        elif program == "python":
            assert arguments[1] == "pytest"
            assert all((ROOT / word).exists() for word in arguments[2:] if "/" in word)
        elif program == "lactchain" and arguments[:1] == ["quickstart"]:
            parse(config_class("run_pipeline"), arguments_of("run_pipeline", arguments[1:]))
        elif program == "lactchain":
            assert arguments in ([], ["configs"])
        elif program in ("bash", "sbatch"):
            place = arguments.index("recipes/served.sh")
            assert all(number.isdigit() for number in arguments[place + 1 : place + 3])
            parse(config_class("run_pipeline"), arguments[place + 3 :])
        else:
            assert program in ("source", "export", "hf", "pip", "git", "cd", "pre-commit")


def test_every_script_is_in_a_command_and_no_two_want_one_folder_for_different_things(monkeypatch):
    monkeypatch.chdir(ROOT)
    commands = [launched(words)[1:] for words in LAUNCHES]
    assert {script for script, _ in commands} == SCRIPTS
    configs: dict[str, object] = {}
    for config in (parsed(*command) for command in commands):
        if hasattr(config, "run"):
            assert configs.setdefault(config.run.run_dir, config) == config


# --- tables --------------------------------------------------------------------------------------


def test_the_summary_is_explained_key_by_key():
    rows = RUNS.table("What the quickstart says", "`summary.json`")
    written = re.findall(r'^ +"(\w+)":', inspect.getsource(RoundResults.summary), re.MULTILINE)
    written.append("wall_seconds")  # of `Run.worked`
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
    for row, r in zip(RUNS.table("Alarms", "alarm"), RULES, strict=True):
        assert row == [f"`{r.name}`", f"`{r.figures[0]}`", f"{r.side} {r.threshold:g}", r.means]


def choices(config: type, key: str) -> list[str]:
    return [*typing.get_args(typing.get_type_hints(config)[key])]


def test_strategies_decoding_modes_and_extractors_are_those_that_there_are():
    (menu,) = re.findall(r"`lactchain/config/strategies.py`\s+\((.+?)\)", PROMPTS.prose, re.DOTALL)
    assert names(menu) == list(STRATEGIES)
    modes = re.findall(r"^- `(\w+)`:", PROMPTS.sections["Decoding"], re.MULTILINE)
    assert modes == choices(GuidedActorConfig, "decoding")
    rows = PROMPTS.table("Completion", "extractor")
    assert [names(row[0])[0] for row in rows] == choices(EnvironmentConfig, "extractor")
    for row in rows[:2]:
        extractor = extractors.make_extractor(names(row[0])[0], ("move forward", "turn left"))
        assert isinstance(extractor.parse(row[1].strip("`")), extractors.Chain)


def test_every_reason_of_a_refused_completion_is_listed_with_one():
    rows = PROMPTS.table("Completion", "`invalid_reason`")
    assert [names(row[0])[0] for row in rows] == [*typing.get_args(extractors.Reason)]
    actions = ("move forward", "turn left")
    for reason, _, example in rows:
        kind = "json_object" if example.startswith("`{") else "json_list"
        refused = extractors.make_extractor(kind, actions, 2).parse(example.strip("`"))
        assert refused.reason == reason.strip("`")


IN_OTHER_TESTS = "docs/notebook.md", "docs/ecosystems.md"  # they need a pipeline, and servers
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


# --- the tree, the package, and what tools of other people read ----------------------------------


def paths_in_tree() -> dict[str, str]:
    """The paths of the tree, by indentation, and what is said of each."""
    found, folders = {}, []
    for line in TREE[1:]:
        depth = (len(line) - len(line.lstrip())) // 2
        name, _, said = line.strip().partition(" ")
        del folders[depth:]
        found["".join([*folders, name])] = said.strip()
        folders.append(name)
    return found


def test_the_tree_has_a_line_for_each_folder():
    said = paths_in_tree()
    packages = (ROOT / "lactchain", ROOT / "lactchain_extras")
    folders = {file.parent for package in packages for file in package.rglob("*.py")}
    there = {f"{folder.relative_to(ROOT).as_posix()}/" for folder in folders}
    assert {path for path in said if path.startswith("lactchain")} == there
    assert all(said.values())


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git knows which files are of the project")
def test_everything_at_the_top_is_in_the_tree():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = listed.stdout.splitlines()
    top = {f"{path.split('/')[0]}/" if "/" in path else path for path in paths}
    shown = {*TREE[0].split(), *(path for path in paths_in_tree() if path.count("/") == 1)}
    assert shown - {"runs/"} == {path for path in top if not path.startswith(".")}


def test_the_readme_names_every_page_and_its_first_example_goes_as_it_says():
    assert {page.path for page in MANUAL} <= {path for path, _ in README.links}
    (example,) = (text for text in README.blocks("") if text.startswith("prompt"))
    prompt, completion, reward = (line.split(maxsplit=1)[1] for line in example.splitlines())
    env = lactchain.make_language_env(EnvironmentConfig())
    state = {"x": 2, "y": 0, "orientation": 3, "goal_x": 3, "goal_y": 1}
    observation, _ = env.reset(options={"state": state})
    assert observation.replace("\n", " ") == prompt
    assert env.step(completion)[1:3] == (float(reward), True)


def test_public_names_are_there_and_at_home_in_one_module():
    assert len(set(lactchain.__all__)) == len(lactchain.__all__)
    for name in lactchain.__all__:
        assert getattr(lactchain, name).__module__.startswith("lactchain.")
    assert {*lactchain.__all__} <= {*dir(lactchain)}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = lactchain.nothing


def test_the_citation_and_the_workflow_are_of_this_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    for key in ("version", "license", "keywords"):
        assert citation[key] == project[key]
    home = project["urls"]["Homepage"]
    assert citation["url"] == citation["repository-code"] == home
    for address in project["urls"].values():
        path = address.removeprefix(home).split("/main/")[1:]
        assert address.startswith(home) and all((ROOT / name).exists() for name in path)
    (job,) = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"].values()
    assert {"run": ".ci/run"} in job["steps"] and os.access(ROOT / ".ci/run", os.X_OK)
    supported = {c.split()[-1] for c in project["classifiers"] if "Python :: 3." in c}
    assert {*job["strategy"]["matrix"]["python"]} <= supported


def test_programs_of_the_pages_find_what_they_import(root):
    for file in ("draw_quickstart.py", "code_map.py"):
        runpy.run_path(str(root / "docs" / file), run_name="read")


def test_the_site_is_built_without_a_warning(root, tmp_path):
    """A page that is in no table of contents is one, and so is a docstring that does not parse."""
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package, reason=f"no {package}: pip install 'lactchain[docs]'")
    build = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "dummy", "-d", tmp_path / "trees"]
    command = [*build, root / "docs", tmp_path / "site"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
