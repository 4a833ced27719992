"""The core runs without the second package, and asks add-ons by their names alone."""

import subprocess
import sys

import pytest
from trajectories import trajectory

import lactchain
from lactchain import ConfigError, plugins
from lactchain.data.sources import open_pairs, open_trajectories, write_trajectories
from lactchain.environments.registry import find_env

WITHOUT_EXTRAS = """
import sys
from pathlib import Path

sys.path[:] = [path for path in sys.path if not (Path(path) / "lactchain_extras").is_dir()]
from lactchain.command import main
main()
"""


def in_a_bare_environment(root, folder, *words):
    """What a command does where the folder of the second package was removed."""
    for name in ("lactchain", "scripts", "configs"):
        (folder / name).exists() or (folder / name).symlink_to(root / name)
    (folder / "bare.py").write_text(WITHOUT_EXTRAS)
    line = [sys.executable, str(folder / "bare.py"), *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, cwd=folder)


@pytest.mark.timeout(600)  # three processes, on a machine that may be busy
def test_the_whole_recipe_runs_without_the_second_package(tmp_path, root):
    counts = {
        "environment.kwargs": "{size: 3}", "warm_start.behavior.num_chains": 64, "num_rounds": 1,
        "critic.collect.num_episodes": 8, "critic.training.max_steps": 2,
        "simpo.preferences.num_states": 8, "simpo.training.num_epochs": 1,
        "evaluation.num_samples": 1,
    }  # fmt: skip
    words = [word for key, value in counts.items() for word in (f"--{key}", value)]
    tiny = ("run_pipeline", "--config", "tiny", "--run.run_dir")
    done = in_a_bare_environment(root, tmp_path, *tiny, tmp_path / "run", *words)
    assert done.returncode == 0, done.stderr
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"summary.json", "actor", "critic"} <= files
    assert not {"report.html", "episode.gif"} & files
    lake = ("--environment.id", "FrozenLake-v1")
    lines = {
        ("report", tmp_path / "run"): "a command of lactchain_extras",
        (*tiny, tmp_path / "lake", *lake): "no text view is shipped for this env",
        ("quickstart",): "quickstart, or `run_pipeline tiny` on one process: no installed package",
    }
    assert in_a_bare_environment(root, tmp_path, "quickstart", "--help").returncode == 0
    for words, line in lines.items():
        missing = in_a_bare_environment(root, tmp_path, *words)
        assert missing.returncode == ConfigError.exit_code and line in missing.stderr


def test_what_is_not_installed_is_nothing_or_an_error_that_names_the_setting(monkeypatch):
    monkeypatch.setattr(plugins, "names", lambda group=plugins.ADD_ONS: {})
    assert plugins.add_on("page") is None
    plugins.call("page", "no/folder")
    with pytest.raises(ConfigError, match="gif: no installed package has the add-on films"):
        plugins.required("films", "gif")
    with pytest.raises(ConfigError, match="load_values: no installed package has the add-on value"):
        lactchain.load_values("no/folder")
    with pytest.raises(ConfigError, match="no Gymnasium environment 'gem:Sudoku'|module gem"):
        find_env("gem:Sudoku")


def test_the_core_reads_files_of_runs_and_says_what_others_need(monkeypatch, tmp_path):
    monkeypatch.setattr(plugins, "names", lambda group=plugins.ADD_ONS: {})
    episode = trajectory(("a", "b"), ["c"])
    with lactchain.Run.open(tmp_path / "run", lactchain.TrainingConfig()) as run:
        for number in range(2):
            write_trajectories(run.path(f"trajectories/{number:05d}-of-00002.parquet"), [episode])
    folder = run.directory / "trajectories"
    for place in (run.directory, folder):
        assert open_trajectories(place) == 2 * [episode]
    assert open_trajectories(folder / "00000-of-00002.parquet") == [episode]
    (tmp_path / "a.jsonl").write_text('{"prompt": "p", "chosen": "a", "rejected": "b"}\n')
    for place in (tmp_path / "a.jsonl", tmp_path):
        with pytest.raises(ConfigError, match=f"{place}: no installed package has the add-on data"):
            open_pairs(place)
