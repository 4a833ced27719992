"""The site that `make docs` builds of docs/ and of the docstrings."""

import sys
from subprocess import run

import pytest


def test_the_site_is_built_without_a_warning(root, tmp_path):
    """A page that is in no table of contents is one, and so is a docstring that does not parse."""
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package, reason=f"no {package}: pip install 'lactchain[docs]'")
    build = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "dummy", "-d", tmp_path / "trees"]
    done = run([*build, root / "docs", tmp_path / "site"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
