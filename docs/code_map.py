"""Prints each file of the code with the first sentence of its docstring.

python docs/code_map.py                       # all of it
python docs/code_map.py lactchain/functional  # one folder
"""

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main() -> None:
    """Lists the folders that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="*", help="from the repository on; all if none is named")
    names = [name.strip("/") for name in parser.parse_args().folder]
    known = {folder.relative_to(ROOT).as_posix(): folder for folder in folders()}
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no folder with code: {', '.join(unknown)}; there are {', '.join(known)}")
    sys.stdout.write("\n".join(listing(known[name]) for name in names or known))


def folders() -> Iterator[Path]:
    """The folders with Python files that people use, the package first."""
    for package in ("lactchain", "lactchain_extras"):
        yield from sorted({file.parent for file in (ROOT / package).rglob("*.py")})
    yield from (ROOT / name for name in ("scripts", "examples", "benchmarks", "docs"))


def listing(folder: Path) -> str:
    """A folder's files, a line each; empty ones, such as most __init__.py, are left out."""
    files = sorted(file for file in folder.glob("*.py") if file.stat().st_size)
    width = max((len(file.name) for file in files), default=0)
    lines = (f"  {file.name:<{width}}  {says(file)}\n" for file in files)
    return f"{folder.relative_to(ROOT).as_posix()}/\n{''.join(lines)}"


def says(file: Path) -> str:
    """The first line of a file's docstring."""
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    return (docstring or "").partition("\n")[0]


if __name__ == "__main__":
    main()
