"""How hard the house is to find one's way in, counted from the code; the figures may only fall.

- *Circles*: groups of files of one room (a folder of the package) that all lead to each other by
  imports, those inside of functions and under `TYPE_CHECKING` included.
- *Walks*: a recipe read from its `main` on. Each function is read to its end when it is first
  called, so that what it calls comes before what its caller calls next. A call is followed by its
  name: of a function or class of the same file, of one that the file imports, of an attribute of an
  imported module or class, or of `self`. A class that is called stands for its `__init__` and
  `__post_init__`. What is called through a value (methods of objects, functions that are handed
  over, add-ons) is not followed. The *climbs* of a walk are its steps from one function to the next
  that open a file of a higher layer (`test_layers`) than the one before.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from test_layers import LAYERS, PACKAGE, unit_of

AT_MOST = {  # and the goals: 0, but for
    "files at the root": 6,  # 8
    "files of train_simpo": 48,  # 20
    "files of train_critic": 45,  # 20
    "files of run_pipeline": 41,  # 20
    "climbs of train_simpo": 5,
    "climbs of train_critic": 4,
    "climbs of run_pipeline": 6,
}
"""Today's figures; a figure that is not here is at most 0."""
ROOMS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file())
FILES = sorted(PACKAGE.rglob("*.py"))
RECIPES = ("train_simpo", "train_critic", "run_pipeline")

Place = tuple[Path, str]
"""A file, and a name in it: of a function, a class, or Class.method; empty: the file itself."""


# --- names ----------------------------------------------------------------------------------------


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


@cache
def file_of(module: str) -> Path | None:
    """The file of a module of the package, None where there is none."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in found if file.is_file() and PACKAGE in file.parents), None)


def imported(node: ast.AST) -> Iterator[tuple[str, Place]]:
    """The names that import statements give to things of the package, and where these are."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname and (file := file_of(alias.name)):
                yield alias.asname, (file, "")
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            if file := file_of(f"{node.module}.{alias.name}"):
                yield alias.asname or alias.name, (file, "")
            elif file := file_of(str(node.module)):
                yield alias.asname or alias.name, (file, alias.name)


@cache
def imports_of(file: Path) -> dict[str, Place]:
    return dict(pair for node in ast.walk(tree_of(file)) for pair in imported(node))


@cache
def definitions(file: Path) -> dict[str, ast.AST]:
    """The functions, classes and methods of a file, by their names."""
    found = {}
    for node in tree_of(file).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.FunctionDef):
                found[f"{node.name}.{inner.name}"] = inner
    return found


# --- walks ----------------------------------------------------------------------------------------


def home(place: Place | None) -> Place | None:
    """Where a name is defined, which a file may have from another one."""
    while place is not None and place[1] and place[1] not in definitions(place[0]):
        found = imports_of(place[0]).get(place[1])
        place = found if found != place else None
    return place


def named(node: ast.AST, at: Place) -> Place | None:
    """What an expression names, in the body of the function at a place."""
    file, function = at
    if isinstance(node, ast.Name):
        if node.id in ("self", "cls") and "." in function:
            return file, function.split(".")[0]
        is_own = node.id in definitions(file)
        return home((file, node.id) if is_own else imports_of(file).get(node.id))
    if isinstance(node, ast.Attribute) and (owner := named(node.value, at)):
        return home((owner[0], f"{owner[1]}.{node.attr}".lstrip(".")))
    return None


def calls(at: Place) -> list[Place]:
    """The functions that the one at a place calls, in the order of its lines."""
    nodes = [node for node in ast.walk(definitions(at[0])[at[1]]) if isinstance(node, ast.Call)]
    nodes.sort(key=lambda node: (node.lineno, node.col_offset))
    return [place for node in nodes if (place := named(node.func, at)) and place[1]]


def bodies(place: Place) -> list[Place]:
    """The functions that a call of what is at a place begins with."""
    file, name = place
    if not isinstance(definitions(file)[name], ast.ClassDef):
        return [place]
    begun = (f"{name}.__init__", f"{name}.__post_init__")
    return [(file, method) for method in begun if method in definitions(file)]


def walk(start: Place) -> list[Path]:
    """The files of the functions that are read, in their order; a class without code counts."""
    seen, files, waiting = set(), [], [start]
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        files.append(place[0])
        inside = bodies(place)
        waiting += reversed(calls(place) if inside == [place] else inside)
    return files


def climbs(files: list[Path]) -> int:
    """Steps of a walk into files of higher layers that were not opened before."""
    layers = [LAYERS.get(unit_of(file), max(LAYERS.values())) for file in files]
    steps = range(1, len(files))
    return sum(layers[n] > layers[n - 1] and files[n] not in files[:n] for n in steps)


# --- figures --------------------------------------------------------------------------------------


def circles(room: str) -> int:
    """Groups of files of a room, of more than one, that all lead to each other."""
    files = sorted((PACKAGE / room).rglob("*.py"))
    leads = [{file} | {place[0] for place in imports_of(file).values()} for file in files]
    steps = np.array([[other in targets for other in files] for targets in leads])
    reached = np.linalg.matrix_power(steps, len(files))
    groups = np.unique(reached & reached.T, axis=0)
    return int((groups.sum(axis=1) > 1).sum())


def shared_names() -> list[str]:
    """The names that several public classes have."""
    classes = (node for file in FILES for node in tree_of(file).body)
    count = Counter(node.name for node in classes if isinstance(node, ast.ClassDef))
    return sorted(name for name, number in count.items() if number > 1 and name[0] != "_")


def figures() -> dict[str, int]:
    found = {f"circles in {room}": circles(room) for room in ROOMS}
    lengths = [len(file.read_text("utf-8").splitlines()) for file in FILES]
    found["files over 400 lines"] = sum(length > 400 for length in lengths)
    found["files at the root"] = len(list(PACKAGE.glob("*.py")))
    found["shared names of classes"] = len(shared_names())
    for recipe in RECIPES:
        files = walk((PACKAGE / "stages" / f"{recipe}.py", "main"))
        found[f"files of {recipe}"], found[f"climbs of {recipe}"] = len({*files}), climbs(files)
    return found


def test_the_house_gets_no_harder_to_read():
    assert {n: figure for n, figure in figures().items() if figure > AT_MOST.get(n, 0)} == {}
