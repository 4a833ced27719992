"""Every line that docs/errors.md explains can end a script, with the exit code of its row."""

import ast
import re
from collections.abc import Iterator

from pages import BY_PATH, ROOT

from lactchain import LactChainError, errors

PAGE = BY_PATH["docs/errors.md"]
FOLDERS = "lactchain", "lactchain_extras", "scripts"
SOURCES = [file for name in FOLDERS for file in (ROOT / name).rglob("*.py")]
CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, LactChainError) and value != LactChainError
}


def words(said: ast.expr) -> str:
    """The text of a message, … in the place of what is filled in."""
    parts = said.values if isinstance(said, ast.JoinedStr) else [said]
    return "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in parts)


def messages() -> Iterator[tuple[int, str]]:
    """The exit code and the words of every error that is made somewhere."""
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            name = node.func.id if isinstance(getattr(node, "func", None), ast.Name) else ""
            if name in CLASSES and name != "Interrupted" and node.args:
                yield CLASSES[name].exit_code, words(node.args[-1])


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
TEXT = "\n".join(source.read_text(encoding="utf-8") for source in SOURCES)
CODE = re.sub(r'"\s+f?"', "", re.sub(r"\{[^{}]*\}", "…", TEXT))
"""Strings are joined over lines, and … stands for what they fill in."""


def test_a_line_of_the_page_is_explained_once_and_said_with_that_exit_code():
    lines = explained()
    assert len({quoted for _, quoted in lines}) == len(lines) > 40
    for code, quoted in lines:
        codes = {made for made, text in MADE if quoted in text}
        assert code in codes or (quoted in CODE and not codes), quoted
