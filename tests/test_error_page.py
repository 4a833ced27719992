"""docs/errors.md has every line that a script can end with, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pages import BY_PATH, ROOT

from lactchain import errors
from lactchain.errors import LactChainError

PAGE = BY_PATH["docs/errors.md"]
SOURCES = [*(ROOT / "lactchain").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
CLASSES = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, LactChainError) and value != LactChainError
}
FEWEST_LETTERS = 8  # of its own, that a line needs to be looked for; others pass a text on


def words(node: ast.expr) -> str:
    """The text of a message, … in the place of what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            words(part) if isinstance(part, ast.Constant) else "…" for part in node.values
        )
    return "…"


def messages() -> Iterator[tuple[str, str]]:
    """The class and the words of every error that is made somewhere."""
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            name = node.func.id if isinstance(getattr(node, "func", None), ast.Name) else ""
            if name in CLASSES and node.args:
                yield name, words(node.args[-1])


def fragments() -> dict[str, list[str]]:
    """What the page quotes of the lines of each class."""
    found: dict[str, list[str]] = {}
    name = ""
    for heading, text in PAGE.sections.items():
        (name,) = re.findall(r"`(\w+)`\)", heading) or [name]
        cells = re.findall(r"^\| (`.+?) \|", text, re.MULTILINE)
        found.setdefault(name, []).extend(re.findall(r"`(.+?)`", " ".join(cells)))
    return found


def test_every_line_is_on_the_page():
    quoted = fragments()
    missing = {
        (name, text)
        for name, text in messages()
        if len(re.sub(r"\W", "", text)) >= FEWEST_LETTERS
        and not any(fragment in text for fragment in quoted[name])
    }
    assert missing == set()


def test_what_the_page_quotes_is_said_somewhere():
    told = "\n".join(text for _, text in messages()) + "\n".join(map(said_in, SOURCES))
    quoted = [fragment for found in fragments().values() for fragment in found]
    assert [fragment for fragment in quoted if fragment not in told] == []


def said_in(source: Path) -> str:
    """A file with its strings joined over lines, and … for what they fill in."""
    text = re.sub(r"\{[^{}]*\}", "…", source.read_text(encoding="utf-8"))
    return re.sub(r'"\s+f?"', "", text)
