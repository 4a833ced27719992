"""Imports go one way, and the light layers stay light."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "lactchain"
# A unit may import units of a lower number, and itself.
LAYERS = {
    "types": 1.0, "errors": 1.0, "functional": 1.0, "random_streams": 1.0,
    "files": 1.05, "renamed_settings": 1.05, "shipped": 1.05, "manifests": 1.06, "yaml_texts": 1.07,
    "results": 1.08, "strategies": 1.0, "bounds": 1.1, "config": 1.1,
    "console": 1.1, "trackers": 1.1, "tunable": 1.1, "progress": 1.15,
    "settings": 1.2, "checkpoints": 1.3,
    "peers": 1.9, "environments": 2.0, "models": 2.0, "distributed": 2.0,
    "ecosystems": 2.1, "preflight": 2.1, "process": 2.15, "inputs": 2.16,
    "run_folder": 2.18, "run": 2.2,
    "serving": 2.5, "trl": 3.0, "data": 3.0, "trainers": 4.0, "baselines": 4.0,
    "saved": 4.1,
    "search": 5.0, "inspection": 5.0, "opened": 5.1, "worlds": 5.1, "stages": 6.0,
    "command": 7.0,
}  # fmt: skip
HEAVY = {"torch", "transformers", "trl", "peft", "datasets", "accelerate"}
FILES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem in LAYERS
)


def imports(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def unit_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_to_lower_layers(path):
    unit = unit_of(path)
    names = [name.split(".") for name in imports(ast.walk(ast.parse(path.read_text())))]
    ours = {parts[1] for parts in names if parts[0] == "lactchain"} - {unit}
    assert all(LAYERS[other] < LAYERS[unit] for other in ours), f"{unit} imports {ours}"
    assert "scripts" not in {parts[0] for parts in names}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_light_layers_import_nothing_heavy(path):
    tree, unit = ast.parse(path.read_text()), unit_of(path)
    never = (
        HEAVY
        if unit in ("environments", "inspection", "worlds", "types", "config", "settings")
        else set()
    )
    may = ("models", "trainers", "baselines", "search", "functional")
    at_import = HEAVY if unit not in may else set()
    found = {name.split(".")[0] for name in imports(ast.walk(tree))} & never
    found |= {name.split(".")[0] for name in imports(tree.body)} & (at_import | {"trl", "datasets"})
    assert not found, f"{path} imports {found}"
