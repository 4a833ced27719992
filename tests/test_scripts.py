"""Scripts: each stage alone, killed, repeated, on two processes, and from another run's weights."""

import ast
import hashlib
import inspect
import json
import math
import os
import random
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from script_setups import (
    BEHAVIOR,
    CLASSES,
    COLLECT,
    GRID,
    LORA,
    PREFERENCES,
    STAGES,
    TRAINING,
    build_weights,
    config_class,
    config_of,
    figures_of,
    run_here,
    start,
    start_two,
)
from training_setups import exit_codes, logs

from lactchain import process
from lactchain.config import dump, parse
from lactchain.data.preferences import read_pairs
from lactchain.data.trajectories import read_trajectories
from lactchain.errors import CollapseError, ConfigError, DataError, DiskError
from lactchain.manifests import verify_manifest
from lactchain.run import read_metrics
from lactchain.settings import ActorConfig, RunConfig
from lactchain.stages import round_results
from lactchain.stages.play import PlayConfig
from lactchain.stages.train_bc import WarmStartConfig

SCRIPTS = sorted((Path(__file__).parent.parent / "scripts").glob("*.py"))
RESULTS = {
    "make_offline_data": ["trajectories"],
    "train_bc": ["actor/model.safetensors"],
    "collect_rollouts": ["trajectories"],
    "train_critic": ["trajectories", "critic/model.safetensors", "values.json"],
    "make_preferences": ["pairs"],
    "train_simpo": ["pairs", "actor/model.safetensors"],
    "evaluate": ["trajectories", "episodes.json"],
}
TRAINERS = ["train_critic", "train_simpo"]
WITH_WEIGHTS = [name for name in STAGES if name not in ("make_offline_data", "train_bc")]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return build_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def finished(weights, tmp_path_factory):
    """The run folder of each script, run once without interruption."""
    folders = {}

    def folder_of(script):
        if script not in folders:
            folders[script] = tmp_path_factory.mktemp(script) / "run"
            run_here(script, config_of(script, weights, folders[script]))
        return folders[script]

    return folder_of


def contents(run_dir: Path, script: str) -> dict:
    """What a run must end with, however it was interrupted."""
    found = {}
    for name in RESULTS[script]:
        path = run_dir / name
        read = {"trajectories": read_trajectories, "pairs": read_pairs}.get(name)
        found[name] = read(path) if read else hashlib.sha256(path.read_bytes()).hexdigest()
    return found | {"summary": read_summary(run_dir)}


def read_summary(run_dir: Path) -> dict:
    """The summary of a run, without what depends on the clock."""
    return figures_of(json.loads((run_dir / "summary.json").read_text()))


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
    began = time.perf_counter()
    command = [sys.executable, "scripts/train_critic.py", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True)
    assert time.perf_counter() - began < 3
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
    with pytest.raises(DataError, match=r"tiny-actor: no such folder.*prepare_weights.py --config"):
        run_here(script, replace(config, actor=actor))
    assert not (tmp_path / "run" / "summary.json").exists()


def played_actions(folder: Path) -> int:
    """Actions of a round's episodes, and of its candidates."""
    episodes = sum(sum(t.num_actions) for t in read_trajectories(folder / "critic/trajectories"))
    return episodes + read_summary(folder / "simpo")["num_env_steps"]


def test_the_pipeline_goes_on_where_it_was_and_stops_at_its_target(weights, tmp_path, monkeypatch):
    config = config_of("run_pipeline", weights, tmp_path / "run")
    summary, first = run_here("run_pipeline", config), read_summary(tmp_path / "run")
    assert summary["num_rounds"] == 2 and not summary["target_met"]
    stages = [f.parent for f in (tmp_path / "run").rglob("summary.json")]
    assert len(stages) == 1 + 1 + 3 + 2 * 2  # itself, warm start, evaluations, critics, SimPOs
    assert summary["num_env_steps"] == sum(
        played_actions(tmp_path / f"run/round_{number}") for number in (1, 2)
    )
    names = {"report.html", "episodes.json", "episodes_before.json", "values.json"}
    assert names <= {path.name for path in (tmp_path / "run").iterdir()}
    redone = [tmp_path / "run", tmp_path / "run/round_2/simpo", tmp_path / "run/round_2/evaluation"]
    weights_file = tmp_path / "run/round_2/simpo/actor/model.safetensors"
    before = weights_file.read_bytes()
    for stage in redone:
        (stage / "summary.json").unlink()
    times = {s: (s / "summary.json").stat().st_mtime_ns for s in stages if s not in redone}
    run_here("run_pipeline", config)
    assert read_summary(tmp_path / "run") == first
    assert weights_file.read_bytes() == before
    assert times == {s: (s / "summary.json").stat().st_mtime_ns for s in times}
    shutil.rmtree(tmp_path / "run" / "round_2")
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "run" / "config.yaml").write_text(
        dump(replace(config, target={"success_rate": 0.0}))
    )
    stopped = run_here("run_pipeline", replace(config, target={"success_rate": 0.0}))
    assert stopped["num_rounds"] == 1 and stopped["target_met"]
    metrics = {r["step"]: r for r in read_metrics(tmp_path / "run") if "eval/success_rate" in r}
    assert "alarm/loops" not in metrics[0] and "alarm/loops" in metrics[1]
    rounds = [entry["alarms"] for entry in summary["rounds"]]
    named = {name: n for n, names in [*enumerate(rounds)][::-1] for name in names}
    assert rounds[0] == [] and summary["alarms"] == named


def test_a_pipeline_that_falls_silent_stops_with_a_diagnosis_and_does_so_again(weights, tmp_path):
    """A warm start that speaks, and a learning rate that destroys any model."""
    config = config_of("run_pipeline", weights, tmp_path / "run")
    cloning = replace(config.warm_start.training, learning_rate=2e-2, batch_size=32)
    destroying = replace(config.simpo, training=replace(TRAINING, learning_rate=3.0))
    config = replace(
        config,
        actor=replace(config.actor, decoding="free"),
        warm_start=WarmStartConfig(replace(BEHAVIOR, num_chains=2048), cloning),
        simpo=destroying,
    )
    for _ in range(2):
        with pytest.raises(CollapseError, match="round 1: .* rule silence.* that of round 0"):
            run_here("run_pipeline", config)
    *_, last = read_metrics(tmp_path / "run")
    assert last["alarm/silence"] == 1 and last["step"] == 1
    assert (tmp_path / "run/round_1/simpo/actor/model.safetensors").is_file()
    assert not (tmp_path / "run/summary.json").exists()
    assert (tmp_path / "run/report.html").is_file()
    assert (tmp_path / "run/actor").resolve() == (tmp_path / "run/warm_start/actor").resolve()
    assert (tmp_path / "run/actor/model.safetensors").is_file()


def test_a_pipeline_without_pairs_stops_with_a_diagnosis(weights, tmp_path):
    config = config_of("run_pipeline", weights, tmp_path / "run")
    preferences = replace(PREFERENCES, min_margin=100.0)
    config = replace(config, simpo=replace(config.simpo, preferences=preferences))
    with pytest.raises(CollapseError, match="no_pairs: .* all 96 were dropped.* that of round 0"):
        run_here("run_pipeline", config)


def test_a_pipeline_whose_actor_is_sure_of_every_state_is_finished(weights, tmp_path):
    """So cold that even the hottest completions are the likeliest ones."""
    config = config_of("run_pipeline", weights, tmp_path / "run")
    config = replace(config, actor=replace(config.actor, temperature=1e-4))
    summary = run_here("run_pipeline", config)
    assert (summary["num_rounds"], summary["round"], summary["num_pairs"]) == (0, 0, 0)
    assert summary["actor"]["model"].endswith("warm_start/actor")
    assert (tmp_path / "run/actor/model.safetensors").is_file()
    assert (tmp_path / "run/report.html").is_file()
    greedy = replace(config, actor=replace(config.actor, temperature=0.0))
    greedy = replace(greedy, run=replace(config.run, run_dir=str(tmp_path / "greedy")))
    with pytest.raises(CollapseError, match="no_pairs"):  # it was not asked any hotter
        run_here("run_pipeline", greedy)


@pytest.mark.parametrize("unknown", [None, math.nan])
def test_a_round_that_could_not_be_measured_is_the_worst(unknown):
    known = {"of_optimum": 0.1, "episode_return": -9.0}
    worse = {"of_optimum": unknown, "episode_return": 5.0}
    assert round_results.merit(worse) < round_results.merit(known)
    assert round_results.merit(known | {"episode_return": unknown}) < round_results.merit(known)


# --- interrupted ---------------------------------------------------------------------------------


def test_a_signal_in_a_rollout_saves_and_the_same_command_ends_as_if_there_was_none(
    weights, tmp_path
):
    many = replace(COLLECT, num_episodes=640)
    config = config_of("collect_rollouts", weights, tmp_path / "run", collect=many)
    process = start("collect_rollouts", config)
    wait_for(tmp_path / "run/trajectories/00002-of-00040.parquet", process)
    os.kill(process.pid, signal.SIGTERM)
    began = time.perf_counter()
    process.join()
    assert process.exitcode == 143 and time.perf_counter() - began < 10
    assert "give the same command to go on" in logs(tmp_path / "run")
    kept = len(list((tmp_path / "run/trajectories").glob("*.parquet")))
    assert 3 <= kept < 40 and not (tmp_path / "run/summary.json").exists()
    resumed = run_here("collect_rollouts", config)
    whole = config_of("collect_rollouts", weights, tmp_path / "whole", collect=many)
    assert figures_of(resumed) == figures_of(run_here("collect_rollouts", whole))
    assert contents(tmp_path / "run", "collect_rollouts") == contents(
        tmp_path / "whole", "collect_rollouts"
    )


def wait_for(path: Path, process) -> None:
    while not path.exists():
        assert process.is_alive(), logs(path.parent.parent)
        time.sleep(0.005)


def kill_and_repeat(script, config, num_kills, seed) -> int:
    """Runs a script to its end, though it is killed at random times; how often it was."""
    run_dir = Path(config.run.run_dir)
    rng, kills, code = random.Random(seed), 0, None
    while code != 0:
        process = start(script, config)
        process.join(rng.uniform(0.1, 1.5) if kills < num_kills else None)
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
        code = process.exitcode
        assert code in (0, -signal.SIGKILL), logs(run_dir)
    return kills


@pytest.mark.parametrize("script", TRAINERS)
def test_killed_at_random_times_a_script_ends_with_the_same_bits(
    script, finished, weights, tmp_path
):
    kill_and_repeat(script, config_of(script, weights, tmp_path / "run"), num_kills=3, seed=0)
    assert contents(tmp_path / "run", script) == contents(finished(script), script)


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


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("script", TRAINERS)
def test_killed_at_twenty_random_times_scripts_end_with_the_same_bits(
    script, finished, weights, tmp_path
):
    """A run that ends before the kill is checked, and the next one begins in a new folder."""
    rng, kills, runs = random.Random(1), 0, 0
    while kills < 20:
        runs += 1
        config = config_of(script, weights, tmp_path / f"run-{runs}")
        kills += kill_and_repeat(script, config, rng.randint(1, 4), seed=runs)
        assert contents(tmp_path / f"run-{runs}", script) == contents(finished(script), script)


# --- on two processes ----------------------------------------------------------------------------


def policy_files(run_dir: Path) -> dict[str, bytes]:
    """What enumerating the actor's completions has left, in the runs that do so."""
    return {path.name: path.read_bytes() for path in (run_dir / "policy").glob("*.parquet")}


def test_processes_that_do_not_share_a_folder_are_told_so(weights, tmp_path):
    """As two machines, each with a disk of its own under the same name."""
    configs = [config_of("collect_rollouts", weights, tmp_path / name) for name in ("a", "b")]
    assert exit_codes(start_two("collect_rollouts", *configs)) == [2, 2]
    for name, log in (("a", "a-0.log"), ("b", "b-1.log")):
        (line,) = (tmp_path / log).read_text().splitlines()
        assert f"error: {tmp_path / name}: not all processes see" in line
        assert "a file system that all machines share" in line and "--run.run_dir" in line


@pytest.mark.parametrize("script", TRAINERS)
def test_two_processes_play_as_one_does_and_one_of_them_speaks(script, finished, weights, tmp_path):
    config = config_of(script, weights, tmp_path / "run")
    assert exit_codes(start_two(script, config)) == [0, 0], logs(tmp_path / "run")
    alone, together = contents(finished(script), script), contents(tmp_path / "run", script)
    data = RESULTS[script][0]
    assert together[data] == alone[data]
    assert policy_files(tmp_path / "run") == policy_files(finished(script))
    assert together["summary"].keys() == alone["summary"].keys()
    assert (tmp_path / "run-1.log").read_text() == ""
    assert "│" in (tmp_path / "run-0.log").read_text()
    records = read_metrics(tmp_path / "run")
    assert [r["step"] for r in records] == sorted(r["step"] for r in records)


@pytest.mark.slow
def test_two_processes_run_the_whole_pipeline(weights, tmp_path):
    config = config_of("run_pipeline", weights, tmp_path / "run", num_rounds=1)
    assert exit_codes(start_two("run_pipeline", config)) == [0, 0], logs(tmp_path / "run")
    together, log = read_summary(tmp_path / "run"), logs(tmp_path / "run")
    alone = config_of("run_pipeline", weights, tmp_path / "alone", num_rounds=1)
    run_here("run_pipeline", alone)
    assert together.keys() == read_summary(tmp_path / "alone").keys()
    assert (tmp_path / "run-1.log").read_text() == ""
    assert log.count("Behaviour cloning") == 1 and (tmp_path / "run/report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("script", TRAINERS)
def test_accelerate_launches_two_processes_of_a_script(script, finished, weights, tmp_path, root):
    config = config_of(script, weights, tmp_path / "run")
    (tmp_path / "run.yaml").write_text(dump(config))
    settings = root / "configs/accelerate/cpu_2_processes.yaml"
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", settings]
    command = [*launch, root / f"scripts/{script}.py", "--config", tmp_path / "run.yaml"]
    environment = os.environ | {"PYTHONPATH": f"{root}:{os.environ['PYTHONPATH']}"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("num_") >= 1 and "[rank 1]" not in ended.stderr
    data = RESULTS[script][0]
    assert contents(tmp_path / "run", script)[data] == contents(finished(script), script)[data]
    made = json.loads((tmp_path / "run/environment.json").read_text())
    assert made["world_size"] == 2


# --- from another run's weights ------------------------------------------------------------------


def test_an_actor_starts_from_any_run_or_checkpoint(finished, weights, tmp_path):
    simpo = finished("train_simpo")
    checkpoint = max((simpo / "checkpoints").iterdir())
    for number, model in enumerate((simpo / "actor", checkpoint, finished("train_bc") / "actor")):
        config = config_of("collect_rollouts", weights, tmp_path / str(number))
        actor = replace(config.actor, model=str(model))
        run_here("collect_rollouts", replace(config, actor=actor))
    played = [read_trajectories(tmp_path / str(n) / "trajectories") for n in range(3)]
    bare = read_trajectories(finished("collect_rollouts") / "trajectories")
    completions = [[a.logprobs for t in ts for a in t.actions] for ts in (*played, bare)]
    assert completions[0] == completions[1]  # the last checkpoint is the result
    assert completions[0] != completions[2] != completions[3]


def test_adapters_start_from_any_run_or_checkpoint(weights, tmp_path):
    config = config_of("train_simpo", weights, tmp_path / "first")
    config = replace(config, actor=replace(config.actor, lora=LORA))
    run_here("train_simpo", config)
    checkpoint = max((tmp_path / "first/checkpoints").iterdir())
    for number, adapter in enumerate((tmp_path / "first/actor", checkpoint)):
        actor = replace(config.actor, adapter=str(adapter))
        run = RunConfig(run_dir=str(tmp_path / str(number)))
        run_here("train_simpo", replace(config, run=run, actor=actor))
    assert contents(tmp_path / "0", "make_preferences")["pairs"]
    results = [tmp_path / n / "actor/adapter_model.safetensors" for n in ("first", "0", "1")]
    first, from_actor, from_checkpoint = (path.read_bytes() for path in results)
    assert first != from_actor == from_checkpoint


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_a_critic_starts_from_any_run_or_checkpoint_and_ranks_pairs(lora, weights, tmp_path):
    config = config_of("train_critic", weights, tmp_path / "first", compare_with_exact=False)
    config = replace(config, critic=replace(config.critic, lora=lora))
    run_here("train_critic", config)
    checkpoint = max((tmp_path / "first/checkpoints").iterdir())
    summaries = []
    for number, folder in enumerate((tmp_path / "first/critic", checkpoint)):
        critic = replace(config.critic, checkpoint=str(folder))
        run = RunConfig(run_dir=str(tmp_path / f"critic-{number}"))
        summaries.append(
            figures_of(run_here("train_critic", replace(config, run=run, critic=critic)))
        )
        pairs = config_of("make_preferences", weights, tmp_path / f"pairs-{number}")
        ranked = run_here("make_preferences", replace(pairs, critic=str(folder)))
        assert ranked["ranked_by"] == f"critic {folder}"
    assert summaries[0] == summaries[1]
    first, second = (read_pairs(tmp_path / f"pairs-{n}" / "pairs") for n in range(2))
    assert first == second and first


def test_trajectories_and_pairs_of_other_runs_are_taken_instead_of_own_ones(
    finished, weights, tmp_path
):
    episodes = str(finished("collect_rollouts") / "trajectories")
    config = config_of("train_critic", weights, tmp_path / "critic", trajectories=episodes)
    run_here("train_critic", config)
    assert not (tmp_path / "critic/trajectories").exists()
    same = [f / "critic/model.safetensors" for f in (tmp_path / "critic", finished("train_critic"))]
    assert same[0].read_bytes() == same[1].read_bytes()
    pairs = str(finished("make_preferences") / "pairs")
    run_here("train_simpo", config_of("train_simpo", weights, tmp_path / "simpo", pairs=pairs))
    assert not (tmp_path / "simpo/pairs").exists()
    same = [f / "actor/model.safetensors" for f in (tmp_path / "simpo", finished("train_simpo"))]
    assert same[0].read_bytes() == same[1].read_bytes()
    cloned = run_here("train_bc", config_of("train_bc", weights, tmp_path / "bc", pairs=pairs))
    assert cloned["num_examples"] == len(read_pairs(pairs))


def test_damage_of_results_is_found_before_they_are_used(finished, weights, tmp_path):
    for script, name in (("train_critic", "critic"), ("train_simpo", "actor")):
        folder = tmp_path / name
        shutil.copytree(finished(script) / name, folder)
        assert verify_manifest(folder)["run_id"]
        file = folder / "model.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    config = config_of("make_preferences", weights, tmp_path / "1", critic=str(tmp_path / "critic"))
    with pytest.raises(DataError, match="critic/model.safetensors: damaged"):
        run_here("make_preferences", config)
    config = config_of("make_preferences", weights, tmp_path / "2")
    damaged = replace(config.actor, model=str(tmp_path / "actor"))
    with pytest.raises(DataError, match="actor/model.safetensors: damaged"):
        run_here("make_preferences", replace(config, actor=damaged))


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
    lines = ["0", "[b]huh[/b] \x1b[31m", "1"]
    assert play(monkeypatch, lines, PlayConfig(drawn, seed=1)) == -0.75
    shown = capsys.readouterr().out
    assert "[b]huh[/b] \\x1b[31m" in shown and "nothing done" in shown and "turn left" in shown
    assert re.search(r"^[.^>v<G]{2}\n[.^>v<G]{2}$", shown, re.MULTILINE)
    assert "human did not reach the goal: 3 completions, return -0.75" in shown


def test_an_actor_is_watched_to_the_end(monkeypatch, weights, capsys):
    actor = ActorConfig(str(weights / "actor"), max_new_tokens=8, decoding="constrained")
    play(monkeypatch, [], PlayConfig(GRID, actor, seed=0))
    shown = capsys.readouterr().out
    assert re.search(r"reach(ed)? the goal: [1-4] completions", shown)
    assert not re.search(r"^[.^>v<G]{2}$", shown, re.MULTILINE)  # it was not asked to draw


# --- every way in --------------------------------------------------------------------------------


def test_every_stage_has_its_class():
    elsewhere = {"train_ilql", "train_mc", "train_dqn", "train_ddpg", "train_ppo", "train_cql"}
    elsewhere |= {"prepare_weights", "report", "play", "search", "export"}
    assert {path.stem for path in SCRIPTS} - CLASSES.keys() == elsewhere
    assert TRAINING.save_every_updates == 2
