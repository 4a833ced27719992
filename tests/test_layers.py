"""Imports go one way, and the light layers stay light."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "lactchain"
# A unit may import units of a lower number, and itself.
LAYERS = {
    "types": 1.0, "errors": 1.0, "functional": 1.0, "plugins": 1.05,
    "storage": 1.1, "config": 1.2, "environments": 2.0, "models": 2.0, "runs": 2.2,
    "data": 3.0, "trainers": 4.0, "baselines": 4.0,
    "search": 5.0, "inspection": 5.0, "worlds": 5.1, "stages": 6.0, "command": 7.0,
}  # fmt: skip
HEAVY = {"torch", "transformers", "trl", "peft", "datasets", "accelerate"}
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.stem in LAYERS)


def imports(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def unit_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def named(tree: ast.AST) -> set[tuple[str, ...]]:
    """The modules of this repository that a file names: imported, or as text."""
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    told = (text for text in texts if isinstance(text, str) and re.fullmatch(r"[\w.:]+", text))
    names = {tuple(re.split("[.:]", name)) for name in (*imports(ast.walk(tree)), *told)}
    return {name for name in names if name[0] in ("lactchain", "lactchain_extras") and name[1:]}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_names_point_to_lower_layers_never_to_the_extras_and_light_layers_stay_light(path):
    unit, tree = unit_of(path), ast.parse(path.read_text())
    names = named(tree)
    assert {name[0] for name in names} <= {"lactchain"}
    ours = {name[1] for name in names} & LAYERS.keys() - {unit}
    assert all(LAYERS[other] < LAYERS[unit] for other in ours), f"{unit} names {ours}"
    assert "scripts" not in {name.split(".")[0] for name in imports(ast.walk(tree))}
    # Light layers import nothing heavy.
    never = HEAVY if unit in ("environments", "inspection", "worlds", "types", "config") else set()
    may = ("models", "trainers", "baselines", "search", "functional")
    at_import = HEAVY if unit not in may else set()
    found = {name.split(".")[0] for name in imports(ast.walk(tree))} & never
    found |= {name.split(".")[0] for name in imports(tree.body)} & (at_import | {"trl", "datasets"})
    assert not found, f"{path} imports {found}"
