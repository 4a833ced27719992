"""Scripts: what each is, what its stage leaves, and what it refuses."""

import ast
import inspect
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import key_corridor  # noqa: F401  registers
import pytest
from PIL import Image
from rich.color import ColorSystem
from script_setups import (
    CLASSES,
    GRID,
    RESULTS,
    STAGES,
    TRAINING,
    build_weights,
    config_class,
    config_of,
    contents,
    figures_of,
    finished_runs,
    run_here,
)

from lactchain.config.parsing import parse
from lactchain.config.settings import ActorConfig, EnvironmentConfig
from lactchain.errors import ConfigError, DataError, DiskError
from lactchain.runs import process
from lactchain.runs.console import console
from lactchain.runs.run import read_metrics
from lactchain_extras.stages.play import PlayConfig

SCRIPTS = sorted((Path(__file__).parent.parent / "scripts").glob("*.py"))
WITH_WEIGHTS = [name for name in STAGES if name not in ("make_offline_data", "train_bc")]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return build_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def finished(weights, tmp_path_factory):
    return finished_runs(weights, tmp_path_factory.mktemp)


# --- what a script is ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_short_and_says_how_it_is_launched(path, root, capsys):
    source = path.read_text()
    assert len(source.splitlines()) <= 20
    described = ast.get_docstring(ast.parse(source))
    assert re.match(r"[A-Z][^\n]+[.:][^\n]*\.?\n\n", described)
    script = runpy.run_path(str(path))
    assert "writes" in inspect.getmodule(script["main"]).__doc__.lower()
    commands = re.findall(rf"scripts/{path.stem}\.py[\s\\]+--(?:config|run_dir) (\S+)", described)
    assert len(commands) >= 2
    for file in commands:
        assert (root / file).is_file() or file.startswith("runs/")
    with pytest.raises(SystemExit, match="0"):
        parse(config_class(path.stem), ["--help"], described)
    shown = capsys.readouterr().out
    assert described.splitlines()[0] in shown and "--config" in shown


def test_help_takes_no_time_since_scripts_import_nothing_heavy(root):
    names = [path.stem for path in SCRIPTS]
    heavy = {"torch", "transformers", "trl", "datasets", "peft", "accelerate"}
    code = f"import sys, {', '.join(names)}; print(*sys.modules.keys() & {heavy})"
    environment = os.environ | {"PYTHONPATH": str(root / "scripts")}
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert loaded.stdout == "\n"
    command = [sys.executable, "scripts/train_critic.py", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True)
    assert shown.stdout.count("\n") > 60 and "Departures from the founding text" in shown.stdout


# --- one after the other -------------------------------------------------------------------------


@pytest.mark.parametrize("script", STAGES)
def test_a_stage_leaves_its_files_and_a_finished_one_returns_at_once(script, finished, weights):
    run_dir = finished(script)
    assert all((run_dir / name).exists() for name in RESULTS[script])
    assert {"config.yaml", "environment.json", "metrics.jsonl"} <= {
        p.name for p in run_dir.iterdir()
    }
    files = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.name != "lock"}
    began = time.perf_counter()
    summary = run_here(script, config_of(script, weights, run_dir))
    assert time.perf_counter() - began < 0.5
    assert summary == json.loads((run_dir / "summary.json").read_text())
    changed = {path.name for path in files if path.stat().st_mtime_ns != files[path]}
    assert changed <= {"config.yaml", "environment.json"}


@pytest.mark.parametrize("script", STAGES)
def test_killed_before_its_summary_a_script_ends_with_the_same_bits(
    script, finished, weights, tmp_path
):
    shutil.copytree(finished(script), tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    run_here(script, config_of(script, weights, tmp_path / "run"))
    assert contents(tmp_path / "run", script) == contents(finished(script), script)
    last = [read_metrics(folder)[-1]["step"] for folder in (tmp_path / "run", finished(script))]
    assert last[0] == last[1]


@pytest.mark.parametrize("script", STAGES)
def test_another_configuration_is_refused(script, finished, weights):
    config = config_of(script, weights, finished(script))
    with pytest.raises(ConfigError, match=r"environment.max_chains was 4, now 5") as refusal:
        run_here(script, replace(config, environment=replace(GRID, max_chains=5)))
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize("script", STAGES)
def test_a_folder_that_cannot_be_written_is_a_disk_error(script, weights):
    with pytest.raises(DiskError, match="/proc/") as error:
        run_here(script, config_of(script, weights, Path("/proc/self/run")))
    assert error.value.exit_code == 5


@pytest.mark.parametrize("script", WITH_WEIGHTS)
def test_missing_weights_are_named_with_the_command_that_makes_them(script, weights, tmp_path):
    config = config_of(script, weights, tmp_path / "run")
    actor = replace(config.actor, model="weights/maze/tiny-actor")
    with pytest.raises(
        DataError, match=r"tiny-actor: no such folder.*lactchain prepare_weights --config"
    ):
        run_here(script, replace(config, actor=actor))
    assert not (tmp_path / "run" / "summary.json").exists()


# --- pairs ---------------------------------------------------------------------------------------


def test_pairs_and_drops_add_up_and_survive_a_restart(finished, weights, tmp_path):
    config = config_of("make_preferences", weights, tmp_path / "run")
    first = run_here("make_preferences", config)
    dropped = sum(count for name, count in first.items() if name.startswith("pairs/dropped_"))
    assert first["num_pairs"] + dropped == config.preferences.num_states
    assert first["ranked_by"] == "return" and first["rollout/invalid_rate"] == 0
    (tmp_path / "run/summary.json").unlink()
    (tmp_path / "run/pairs/00003-of-00006.parquet").unlink()
    assert figures_of(run_here("make_preferences", config)) == figures_of(first)


def test_nothing_but_dropped_pairs_is_an_error_with_the_counts(weights, tmp_path):
    config = config_of("make_preferences", weights, tmp_path / "run")
    settings = replace(config.preferences, min_margin=100.0)
    with pytest.raises(DataError, match="all 96 were dropped: .* because .*margin") as error:
        run_here("make_preferences", replace(config, preferences=settings))
    assert error.value.exit_code == 3


# --- play ----------------------------------------------------------------------------------------


def play(monkeypatch, lines: list[str], config: PlayConfig) -> float:
    def type_next(*_):
        if not lines:
            raise EOFError
        return lines.pop(0)

    monkeypatch.setattr("builtins.input", type_next)
    return run_here("play", config)


def test_a_dry_run_of_a_player_asks_for_nothing(monkeypatch, capsys):
    monkeypatch.setattr(process, "_dry_run", True)
    assert play(monkeypatch, [], PlayConfig(GRID)) == {}
    assert "no language model is loaded" in capsys.readouterr().out


def test_you_are_the_policy_until_you_leave(monkeypatch, capsys):
    drawn = replace(GRID, kwargs={"size": 2, "render_mode": "ansi"}, chain_cost=0.25)
    lines = ["0", '["[b]huh[/b]"] \x1b[31m', "?", "", "1 2 1", "0 0 0 0", "1"]
    assert play(monkeypatch, lines, PlayConfig(drawn, seed=1)) == -0.5
    shown = " ".join(capsys.readouterr().out.split(" "))
    assert "turn left" in shown and shown.count("nothing played: ") == 5
    told = "type the number or the name of an action, such as `0` or `move forward`, or up to 3"
    assert told in " ".join(shown.split())
    assert re.search(r"^[.^>v<G]{2}\n[.^>v<G]{2}$", shown, re.MULTILINE)
    assert "human did not reach the goal: 2 completions, return -0.5" in shown


def test_in_wordle_only_its_words_count_and_guesses_are_coloured(monkeypatch, capsys):
    monkeypatch.setattr(console, "_color_system", ColorSystem.STANDARD)
    monkeypatch.setattr(console, "no_color", False)
    world = EnvironmentConfig("lactchain/Wordle-v0", {"render_mode": "ansi"}, extractor="utterance")
    assert play(monkeypatch, ["1 2 1", "zzzzz", "?", "about"], PlayConfig(world)) == -1.0
    shown = capsys.readouterr().out
    assert shown.count("nothing played: ") == 3
    assert "a word of this world's list of 595, such as `about` or" in " ".join(shown.split())
    assert "a b o u t\nb b b b y\n" in shown
    assert "\x1b[1;97;100m U \x1b[0m\x1b[1;30;43m T \x1b[0m" in shown


def test_an_actor_is_watched_to_the_end(monkeypatch, weights, capsys):
    actor = ActorConfig(str(weights / "actor"), max_new_tokens=8, decoding="constrained")
    play(monkeypatch, [], PlayConfig(GRID, actor, seed=0))
    shown = capsys.readouterr().out
    assert re.search(r"reach(ed)? the goal: [1-4] completions", shown)
    assert not re.search(r"^[.^>v<G]{2}$", shown, re.MULTILINE)  # it was not asked to draw


def test_an_episode_that_was_played_is_left_as_a_moving_picture(monkeypatch, tmp_path, capsys):
    config = PlayConfig(GRID, seed=1, gif=str(tmp_path / "me.gif"))
    assert play(monkeypatch, ["1", "1 1"], config) == 0
    with Image.open(config.gif) as picture:
        assert picture.n_frames == 4  # the start, and three turns
    drawless = replace(config, environment=EnvironmentConfig("key_corridor:my/KeyCorridor-v0"))
    with pytest.raises(ConfigError, match="draws itself"):
        play(monkeypatch, ["1"], drawless)
    assert capsys.readouterr().out.count("goal") == 1  # it is refused before it begins


# --- every way in --------------------------------------------------------------------------------


def test_every_stage_has_its_class():
    elsewhere = {
        "doctor",
        "train_ilql",
        "train_mc",
        "train_dqn",
        "train_ddpg",
        "train_ppo",
        "train_cql",
    }
    elsewhere |= {"prepare_weights", "report", "play", "search", "export", "serve"}
    assert {path.stem for path in SCRIPTS} - CLASSES.keys() == elsewhere
    assert TRAINING.save_every_updates == 2
