"""What the README says is what is there: its first example, its tree, the package's names."""

import subprocess
import sys

import pytest
from pages import BY_PATH, MANUAL, README, ROOT

import lactchain
from lactchain.config.settings import EnvironmentConfig

(TREE,) = map(str.splitlines, BY_PATH["docs/code.md"].blocks(""))


def test_the_readme_can_be_read_in_two_minutes():
    assert len(README.text.splitlines()) <= 260


def test_the_first_example_goes_as_it_says():
    (example,) = (text for text in README.blocks("") if text.startswith("prompt"))
    prompt, completion, reward = (line.split(maxsplit=1)[1] for line in example.splitlines())
    env = lactchain.make_language_env(EnvironmentConfig())
    state = {"x": 2, "y": 0, "orientation": 3, "goal_x": 3, "goal_y": 1}
    observation, _ = env.reset(options={"state": state})
    assert observation.replace("\n", " ") == prompt
    assert env.step(completion)[1:3] == (float(reward), True)


# --- the tree ------------------------------------------------------------------------------------


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
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    top = {f"{path.split('/')[0]}/" if "/" in path else path for path in listed}
    shown = {*TREE[0].split(), *(path for path in paths_in_tree() if path.count("/") == 1)}
    assert shown - {"runs/"} == {path for path in top if not path.startswith(".")}


def test_every_page_of_the_manual_is_named():
    linked = {path for path, _ in README.links}
    assert {page.path for page in MANUAL} <= linked


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
