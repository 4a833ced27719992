"""No file has a module imported: the command line names it, or Python has it already."""

import sys

import pytest

from lactchain import ConfigError, EnvironmentConfig, Run, make_language_env
from lactchain.config.parsing import typed_modules
from lactchain.environments import registry
from lactchain.inspection.run_view import RunView
from lactchain.stages.collect_rollouts import CollectRolloutsConfig
from lactchain.storage.manifests import write_run_file

WORLD = """
import gymnasium
gymnasium.register("own/Taxi-v0", "gymnasium.envs.toy_text.taxi:TaxiEnv", max_episode_steps=9)
"""


@pytest.fixture
def own_world(tmp_path, monkeypatch):
    """The name of a module that nobody has imported, and that registers own/Taxi-v0."""
    (tmp_path / "own_world.py").write_text(WORLD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_named", set())
    yield "own_world"
    forget()


def forget():
    """As if another process began."""
    sys.modules.pop("own_world", None)
    registry.gym.registry.pop("own/Taxi-v0", None)
    registry._named.clear()


def test_an_id_of_a_file_has_no_module_imported(own_world):
    config = EnvironmentConfig(f"{own_world}:own/Taxi-v0")
    message = r"environment.id: own_world:own/Taxi-v0 is of the module .*; add --import own_world"
    with pytest.raises(ConfigError, match=message):
        make_language_env(config)
    assert own_world not in sys.modules
    registry.name_modules(typed_modules(["--environment.id", config.id]))
    assert make_language_env(config).spec is None and own_world in sys.modules


def test_modules_that_are_named_are_imported_or_said_to_be_missing(own_world, tmp_path):
    registry.import_modules([own_world])
    make_language_env(EnvironmentConfig("own/Taxi-v0"))
    with pytest.raises(ConfigError, match="--import own_word: No module .*on PYTHONPATH"):
        registry.import_modules(["own_word"])
    (tmp_path / "ends_by_itself.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(ConfigError, match=r"--import ends_by_itself: it called sys.exit\(0\)"):
        registry.import_modules(["ends_by_itself"])


def test_a_run_is_shown_without_a_world_that_nobody_has_imported(own_world, tmp_path, caplog):
    world = EnvironmentConfig("own/Taxi-v0")
    config = CollectRolloutsConfig(environment=world)
    registry.import_modules([own_world])
    with Run.open(tmp_path / "run", config) as run:
        run.log({"x": 1}, step=0)
    assert RunView(tmp_path / "run").env is not None
    forget()
    assert RunView(tmp_path / "run").env is None
    assert "shown without its world; add --import own_world" in caplog.text


def test_a_report_imports_nothing_that_a_run_only_says(own_world, tmp_path, caplog):
    settings = {"environment": {"id": "own_world:own/Taxi-v0"}}
    write_run_file(tmp_path, {"config": settings})
    assert RunView(tmp_path).env is None and own_world not in sys.modules
    assert "add --import own_world" in caplog.text
