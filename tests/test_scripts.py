"""Scripts: what each is, what its stage leaves and refuses, and what others start from."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from unittest.mock import Mock

import key_corridor  # noqa: F401  registers
import pytest
from PIL import Image
from script_setups import GRID, LORA, RESULTS, STAGES, contents, figures_of, run_here, run_smallest

from lactchain import ConfigError, DataError, read_pairs, read_trajectories
from lactchain.baselines.settings import TrainDQNConfig, TrainPPOConfig
from lactchain.config.settings import ActorConfig, EnvironmentConfig, RunConfig
from lactchain.runs import process
from lactchain.runs.run import read_metrics
from lactchain.stages import train_agent
from lactchain.storage.manifests import verify_manifest
from lactchain_extras.stages.play import PlayConfig


def test_help_takes_no_time_since_scripts_import_nothing_heavy(root):
    names = sorted(path.stem for path in (root / "scripts").glob("*.py"))
    heavy = {"torch", "transformers", "trl", "datasets", "peft", "accelerate"}
    code = f"import lactchain, sys, {', '.join(names)}; lactchain.make_vector_env\n"
    code += f"print(*sys.modules.keys() & {heavy})"
    environment = os.environ | {"PYTHONPATH": str(root / "scripts")}
    options = {"capture_output": True, "text": True, "check": True}
    loaded = subprocess.run([sys.executable, "-c", code], env=environment, **options)
    assert loaded.stdout == "\n"
    command = [sys.executable, "scripts/train_critic.py", "--help"]
    shown = subprocess.run(command, cwd=root, **options)
    assert shown.stdout.count("\n") > 60 and "Departures from the founding text" in shown.stdout


@pytest.mark.parametrize("script", STAGES)
def test_a_stage_leaves_its_files_and_a_finished_one_loads_nothing_again(script, finished, weights):
    run_dir = finished(script)
    always = ["config.yaml", "environment.json", "metrics.jsonl"]
    assert all((run_dir / name).exists() for name in RESULTS[script] + always)
    files = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.name != "lock"}
    hidden = weights.rename(weights.with_name("hidden"))  # no model is loaded again
    try:
        summary = run_smallest(script, weights, run_dir)
    finally:
        hidden.rename(weights)
    assert summary == json.loads((run_dir / "summary.json").read_text())
    changed = {path.name for path in files if path.stat().st_mtime_ns != files[path]}
    assert changed <= {"config.yaml", "environment.json"}


@pytest.mark.parametrize("script", STAGES)
def test_killed_before_its_summary_it_ends_with_the_same_bits(script, finished, weights, tmp_path):
    run_dir = shutil.copytree(finished(script), tmp_path / "run")
    (run_dir / "summary.json").unlink()
    before = read_metrics(run_dir)
    run_smallest(script, weights, run_dir)
    assert contents(run_dir, script) == contents(finished(script), script)
    after = read_metrics(run_dir)
    assert after[-1]["step"] == before[-1]["step"]
    assert after == before or not script.startswith("train_")


def play(monkeypatch, lines: list[str], config: PlayConfig) -> float:
    monkeypatch.setattr("builtins.input", Mock(side_effect=[*lines, EOFError]))
    return run_here("play", config)


def test_a_dry_run_of_a_player_or_an_agent_asks_and_trains_nothing(run_dir, monkeypatch, capsys):
    monkeypatch.setattr(process._options, "dry_run", True)
    assert play(monkeypatch, [], PlayConfig(GRID)) == {}
    for agent in (TrainDQNConfig, TrainPPOConfig):
        assert train_agent.main(agent(RunConfig(str(run_dir)))) == {}
    assert capsys.readouterr().out.count("no memory is estimated") == 3 and not run_dir.exists()


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


def test_in_wordle_only_its_words_count(monkeypatch, capsys):
    world = EnvironmentConfig("lactchain/Wordle-v0", {"render_mode": "ansi"}, extractor="utterance")
    assert play(monkeypatch, ["1 2 1", "zzzzz", "?", "about"], PlayConfig(world)) == -1.0
    shown = capsys.readouterr().out
    assert shown.count("nothing played: ") == 3
    assert "a word of this world's list of 595, such as `about` or" in " ".join(shown.split())
    assert "a b o u t\nb b b b y\n" in shown


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


def test_an_actor_starts_from_any_run_or_checkpoint(finished, weights, tmp_path):
    simpo = finished("train_simpo")
    checkpoint = max((simpo / "checkpoints").iterdir())
    for number, model in enumerate((simpo / "actor", checkpoint, finished("train_bc") / "actor")):
        values = {"actor.model": str(model)}
        run_smallest("collect_rollouts", weights, tmp_path / str(number), values)
    played = [read_trajectories(tmp_path / str(n) / "trajectories") for n in range(3)]
    bare = read_trajectories(finished("collect_rollouts") / "trajectories")
    completions = [[a.logprobs for t in ts for a in t.actions] for ts in (*played, bare)]
    assert completions[0] == completions[1]  # the last checkpoint is the result
    assert completions[0] != completions[2] != completions[3]


def test_adapters_start_from_any_run_or_checkpoint(weights, tmp_path):
    run_smallest("train_simpo", weights, tmp_path / "first", {"actor.lora": LORA})
    checkpoint = max((tmp_path / "first/checkpoints").iterdir())
    for number, adapter in enumerate((tmp_path / "first/actor", checkpoint)):
        values = {"actor.lora": LORA, "actor.adapter": str(adapter)}
        run_smallest("train_simpo", weights, tmp_path / str(number), values)
    assert contents(tmp_path / "0", "make_preferences")["pairs"]
    results = [tmp_path / n / "actor/adapter_model.safetensors" for n in ("first", "0", "1")]
    first, from_actor, from_checkpoint = (path.read_bytes() for path in results)
    assert first != from_actor == from_checkpoint


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_a_critic_starts_from_any_run_or_checkpoint_and_ranks_pairs(lora, weights, tmp_path):
    values = {"critic.lora": lora, "compare_with_exact": False}
    run_smallest("train_critic", weights, tmp_path / "first", values)
    checkpoint = max((tmp_path / "first/checkpoints").iterdir())
    summaries = []
    for number, folder in enumerate((tmp_path / "first/critic", checkpoint)):
        values["critic.checkpoint"] = str(folder)
        again = run_smallest("train_critic", weights, tmp_path / f"critic-{number}", values)
        summaries.append(figures_of(again))
        place = tmp_path / f"pairs-{number}"
        ranked = run_smallest("make_preferences", weights, place, critic=str(folder))
        assert ranked["ranked_by"] == f"critic {folder}"
    assert summaries[0] == summaries[1]
    first, second = (read_pairs(tmp_path / f"pairs-{n}" / "pairs") for n in range(2))
    # A checkpoint is of the gradient steps: the head that is solved for behind them is not in it.
    assert first and {pair.prompt for pair in first} == {pair.prompt for pair in second}


def test_trajectories_and_pairs_of_other_runs_are_taken(finished, weights, tmp_path):
    made = json.loads((finished("make_preferences") / "summary.json").read_text())
    assert made["ranked_by"] == "return" and made["rollout/invalid_rate"] == 0
    for script, data, source, result in (
        ("train_critic", "trajectories", "collect_rollouts", "critic"),
        ("train_simpo", "pairs", "make_preferences", "actor"),
    ):
        given = {data: str(finished(source) / data)}
        run_smallest(script, weights, tmp_path / script, **given)
        assert not (tmp_path / script / data).exists()
        folders = tmp_path / script, finished(script)
        same = [(f / result / "model.safetensors").read_bytes() for f in folders]
        assert same[0] == same[1]
    cloned = run_smallest("train_bc", weights, tmp_path / "bc", **given)
    assert cloned["num_examples"] == len(read_pairs(given["pairs"]))


def test_damage_of_results_is_found_before_they_are_used(finished, weights, tmp_path):
    for script, key in (("train_critic", "critic"), ("train_simpo", "actor.model")):
        name = key.partition(".")[0]
        folder = shutil.copytree(finished(script) / name, tmp_path / name)
        assert verify_manifest(folder)["run_id"]
        content = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(DataError, match=f"{name}/model.safetensors: damaged"):
            run_smallest("make_preferences", weights, tmp_path / "run", {key: str(folder)})
