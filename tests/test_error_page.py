"""Every line that docs/errors.md explains can end a script, with the exit code of its row."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import BY_PATH, ROOT

from lactchain import errors
from lactchain.errors import LactChainError

PAGE = BY_PATH["docs/errors.md"]
SOURCES = [*(ROOT / "lactchain").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, LactChainError) and value != LactChainError
}


def words(node: ast.expr) -> str:
    """The text of a message, … in the place of what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            words(part) if isinstance(part, ast.Constant) else "…" for part in node.values
        )
    return "…"


def messages() -> Iterator[tuple[int, str]]:
    """The exit code and the words of every error that is made somewhere."""
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            name = node.func.id if isinstance(getattr(node, "func", None), ast.Name) else ""
            if name in CLASSES and name != "Interrupted" and node.args:
                yield CLASSES[name].exit_code, words(node.args[-1])


def lines_of_code(source: Path) -> str:
    """A file with its strings joined over lines, and … for what they fill in."""
    text = re.sub(r"\{[^{}]*\}", "…", source.read_text(encoding="utf-8"))
    return re.sub(r'"\s+f?"', "", text)


def explained() -> list[tuple[int, str]]:
    """The exit code, 0 for none, and the quoted words of each row of the page."""
    found = []
    for heading, text in PAGE.sections.items():
        (of_section,) = re.findall(r"exit code (\d)", heading) or ["0"]
        for row in re.findall(r"^\| ((?:[\d, ]+ \| )?`.+?) \|", text, re.MULTILINE):
            code, _, cell = row.rpartition(" | ") if row[0].isdigit() else (of_section, "", row)
            found += [(int(code.split(",")[0]), quoted) for quoted in re.findall(r"`(.+?)`", cell)]
    return found


MADE = list(messages())
CODE = "\n".join(map(lines_of_code, SOURCES))


@pytest.mark.parametrize(("code", "quoted"), explained())
def test_a_line_of_the_page_is_said_with_that_exit_code(code, quoted):
    codes = {made for made, text in MADE if quoted in text}
    assert code in codes or (quoted in CODE and not codes)


def test_the_page_has_the_lines_that_people_meet_and_no_more():
    quoted = [line for _, line in explained()]
    assert len(set(quoted)) == len(quoted)
    assert 40 <= len(quoted) <= 70
