"""Writes the tables of docs/code.md: each file with the first sentence of its docstring.

python docs/code_map.py
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "code.md"
BEGIN, END = "<!-- made by docs/code_map.py -->\n", "<!-- end -->\n"


def with_tables(page: str) -> str:
    """The page, with new tables between its two marks."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + "".join(map(table, folders())) + "\n" + END + rest.partition(END)[2]


def folders() -> Iterator[Path]:
    """The folders with Python files that people use, the package first."""
    yield from sorted({file.parent for file in (ROOT / "lactchain").rglob("*.py")})
    yield from (ROOT / name for name in ("scripts", "benchmarks", "docs"))


def table(folder: Path) -> str:
    """A folder's files as a table; empty ones, such as most __init__.py, are left out."""
    files = sorted(file for file in folder.glob("*.py") if file.stat().st_size)
    rows = (f"| [{f.name}](../{f.relative_to(ROOT).as_posix()}) | {says(f)} |\n" for f in files)
    title = folder.relative_to(ROOT).as_posix()
    return f"\n## {title}/\n\n| file | what it is |\n|---|---|\n{''.join(rows)}"


def says(file: Path) -> str:
    """The first line of a file's docstring, as a cell of a table."""
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    return (docstring or "").partition("\n")[0].replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
