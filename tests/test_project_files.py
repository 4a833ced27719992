"""The files that tools of other people read say what the project's own files say."""

import os
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HOME = "https://github.com/lactchain/lactchain"


def read(name: str) -> dict:
    return yaml.safe_load((ROOT / name).read_text())


def test_the_citation_is_of_this_project():
    citation = read("CITATION.cff")
    assert citation["version"] == PROJECT["version"] and citation["license"] == PROJECT["license"]
    assert citation["keywords"] == PROJECT["keywords"]
    assert citation["title"].lower() == f"LactChain: {PROJECT['description']}".lower()
    holders = (ROOT / "LICENSE").read_text().splitlines()[2]
    assert [author["name"] for author in citation["authors"]] == [holders.split(maxsplit=3)[3]]
    assert {citation["url"], citation["repository-code"], PROJECT["urls"]["Homepage"]} == {HOME}


def test_links_of_the_package_are_to_files_that_are_there():
    for address in PROJECT["urls"].values():
        path = address.removeprefix(HOME).split("/main/")[1:]
        assert address.startswith(HOME) and all((ROOT / name).exists() for name in path)


def test_a_commit_is_checked_as_make_lint_does_without_a_network():
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    entries = [hook["entry"] for hook in repository["hooks"]]
    assert entries == [f".venv/bin/ruff {verb} --force-exclude" for verb in ("check", "format")]
    assert all(hook["language"] == "system" for hook in repository["hooks"])
    linted = (ROOT / "Makefile").read_text().split("lint:")[1]
    assert ".venv/bin/ruff check" in linted and ".venv/bin/ruff format --check" in linted


def test_the_workflow_runs_what_every_change_has_to_pass():
    (job,) = read(".github/workflows/tests.yml")["jobs"].values()
    assert {"run": ".ci/run"} in job["steps"] and os.access(ROOT / ".ci/run", os.X_OK)
    supported = {c.split()[-1] for c in PROJECT["classifiers"] if "Python :: 3." in c}
    assert {*job["strategy"]["matrix"]["python"]} <= supported
