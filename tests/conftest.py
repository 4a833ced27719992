"""What holds for every test: one thread, no network, no telemetry, no window, no colour.

The settings go into the environment before anything heavy is imported, so that they also hold for
the processes that tests start.
"""

import gc
import inspect
import os
import re
import runpy
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

OFFLINE = str(Path(__file__).parent / "offline")
ROOT = Path(__file__).parent.parent
IMPORTS_EXTRAS = re.compile(r"^\s*(from|import) lactchain_extras", re.M)
EXTRA_WORLDS = re.compile(
    r"\b(FrozenLake|CliffWalking|Taxi|lactchain/(Maze|Sokoban|Token|Wordle))-v|lactchain_extras"
)

os.environ.update(
    OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", CI="1", NO_COLOR="1",
    HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1",
    TRL_EXPERIMENTAL_SILENCE="1",
    PYTHONPATH=os.pathsep.join(filter(None, [OFFLINE, os.environ.get("PYTHONPATH")])),
)  # fmt: skip
os.environ.pop("HF_TOKEN", None)

runpy.run_path(f"{OFFLINE}/sitecustomize.py")  # blocks the sockets of this process


@pytest.fixture(autouse=True, scope="module")
def imports_are_no_garbage() -> None:
    """What is there before a file's tests stays: to look through it takes a quarter of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def environment_stays() -> Iterator[None]:
    """What a launch leaves in the environment of its process is gone for the next test."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of the second package: `pytest -m "not extras"` leaves them out.

    They are in a file that imports it, or play one of its worlds.
    """
    from lactchain.config.settings import EnvironmentConfig

    for item in items:
        given = item.callspec.params.values() if hasattr(item, "callspec") else ()
        worlds = [value.id for value in given if isinstance(value, EnvironmentConfig)]
        told = " ".join([inspect.getsource(item.function), item.name, *worlds])
        if IMPORTS_EXTRAS.search(item.path.read_text("utf-8")) or EXTRA_WORLDS.search(told):
            item.add_marker("extras")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A folder for one run, not yet there."""
    return tmp_path / "run"


@pytest.fixture
def run(run_dir: Path) -> Iterator[Any]:
    """The run of that folder, open, for a training of `training_setups`."""
    from training_setups import open_run

    with open_run(run_dir) as run:
        yield run


@pytest.fixture
def root() -> Path:
    return ROOT


def folder_of(module: str, function: str, what: str) -> Any:
    """A fixture: what a function builds in a folder, once; no test may change it."""

    @pytest.fixture(scope="session")
    def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
        return getattr(import_module(module), function)(tmp_path_factory.mktemp(function))

    built.__doc__ = what
    return built


weights = folder_of("script_setups", "build_weights", "A tiny actor and encoder.")
tiny = folder_of("training_setups", "build_weights", "An actor and encoder for its trainings.")
small = folder_of("test_tiny_models", "build_small", "Pairs of these, and other tokenizers.")
seeds = folder_of("browser", "two_seeds", "The folders of two seeds of a pipeline without models.")


@pytest.fixture
def actor(small: Path, tmp_path: Path) -> Path:
    """A copy of the small actor's folder to damage."""
    return shutil.copytree(small / "actor", tmp_path / "actor")


@pytest.fixture
def config(small: Path) -> Any:
    """The configuration of the small actor."""
    from lactchain import ActorConfig

    return ActorConfig(model=str(small / "actor"))


@pytest.fixture(scope="session")
def finished(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Gives the folder of a script's finished run, which no test may change."""
    from script_setups import finished_runs

    return finished_runs(weights, tmp_path_factory.mktemp)


@pytest.fixture(scope="session")
def runs(weights: Path, finished: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of every kind that leaves weights."""
    from script_setups import weighted_runs

    return weighted_runs(weights, finished, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, for the pages of a file's tests."""
    from browser import chromium

    with chromium() as opened:
        yield opened


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    """Opens pages from disk; each must have been quiet in the end."""
    from browser import Visit

    with ExitStack() as stack:
        yield lambda *args, **more: stack.enter_context(closing(Visit(browser, *args, **more)))


@pytest.fixture
def visit(opened: Any, page: Path) -> Any:
    """The `page` of a file's tests."""
    return opened(page)


@pytest.fixture(scope="session")
def adapters(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Adapters of the actor: two of rank 2, one of rank 4."""
    from serving_setups import draw_adapters

    return draw_adapters(weights, tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def engine(weights: Path) -> Iterator[Any]:
    """A server of the actor, in vLLM's dialect."""
    from engine_stand_in import Engine, serving
    from serving_setups import GRAMMAR

    with serving(Engine(weights / "actor", GRAMMAR)) as engine:
        yield engine
