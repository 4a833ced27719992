"""The pipeline: where it goes on, when it ends, and what it says of a run that has collapsed."""

import json
import math
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from script_setups import BEHAVIOR, TRAINING, config_of, read_summary, run_here, start_two
from training_setups import exit_codes, logs

from lactchain import ConfigError, RunConfig, read_trajectories
from lactchain.config.parsing import load as read_config
from lactchain.config.parsing import with_values
from lactchain.data.evaluations import read_episodes
from lactchain.errors import CollapseError
from lactchain.inspection.run_view import RunView
from lactchain.runs.run import read_metrics
from lactchain.stages import round_results, run_pipeline
from lactchain.stages.pipeline_config import SelectionConfig
from lactchain.stages.round_results import RoundResults
from lactchain.stages.run_pipeline import RunPipelineConfig, next_commands
from lactchain.stages.train_bc import WarmStartConfig
from lactchain.storage.manifests import read_run_file, write_run_file
from lactchain_extras.explorer.inspections import read_inspection


def pipeline_of(weights: Path, run_dir: Path, **changes: Any) -> RunPipelineConfig:
    """A pipeline of fewer episodes and states."""
    few = {"critic.collect.num_episodes": 48, "simpo.preferences.num_states": 48}
    few |= {"evaluation.num_samples": 40} | changes.pop("values", {})
    return config_of("run_pipeline", weights, run_dir, few, **changes)


def played_actions(folder: Path) -> int:
    episodes = sum(sum(t.num_actions) for t in read_trajectories(folder / "critic/trajectories"))
    return episodes + read_summary(folder / "simpo")["num_env_steps"]


def test_the_pipeline_goes_on_where_it_was_and_stops_at_its_target(weights, tmp_path, monkeypatch):
    run = tmp_path / "run"
    config = pipeline_of(weights, run)
    summary, first = run_here("run_pipeline", config), read_summary(run)
    assert summary["num_rounds"] == 2 and not summary["target_met"]
    stages = [f.parent for f in run.rglob("summary.json")]
    assert len(stages) == 1 + 1 + 3 + 2 * 2  # itself, warm start, evaluations, critics, SimPOs
    built = json.loads((run / "base/encoder/manifest.json").read_text())["files"]
    sums = {"model.safetensors": built["model.safetensors"]["sha256"]}
    assert summary["bases"]["critic"]["sha256"] == sums
    played = sum(played_actions(run / f"round_{number}") for number in (1, 2))
    assert summary["num_env_steps"] == played
    kept = read_config(run / "config.yaml")
    for model in (kept["actor"]["model"], kept["critic"]["config"]["model"]):
        assert (Path(model) / "model.safetensors").is_file()  # what it names is there
    names = {"report.html", "episodes.json", "episodes_before.json", "values.json", "episode.gif"}
    assert names <= {path.name for path in run.iterdir()}
    redone = [run, run / "round_2/simpo", run / "round_2/evaluation"]
    weights_file = run / "round_2/simpo/actor/model.safetensors"
    before = weights_file.read_bytes()
    for stage in redone:
        (stage / "summary.json").unlink()
    times = {s: (s / "summary.json").stat().st_mtime_ns for s in stages if s not in redone}
    run_here("run_pipeline", config)
    assert read_summary(run) == first and weights_file.read_bytes() == before
    assert times == {s: (s / "summary.json").stat().st_mtime_ns for s in times}
    renamed = run.rename(tmp_path / "renamed")
    (renamed / "summary.json").unlink()
    run_here("run_pipeline", replace(config, run=RunConfig(run_dir=str(renamed))))
    assert read_summary(renamed)["rounds"] == first["rounds"] and not run.exists()
    renamed.rename(run)
    (run / "report.html").write_text("of the second round, before a kill")
    os.utime(run / "report.html", (0, 0))
    run_here("run_pipeline", config)
    assert "<html" in (run / "report.html").read_text()
    shutil.rmtree(run / "round_2")
    (run / "summary.json").unlink()
    told = read_run_file(run)
    told["config"]["target"] = {"success_rate": 0.0}
    write_run_file(run, told)
    stopped = run_here("run_pipeline", replace(config, target={"success_rate": 0.0}))
    assert stopped["num_rounds"] == 1 and stopped["target_met"]
    metrics = {r["step"]: r for r in read_metrics(run) if "eval/success_rate" in r}
    assert "alarm/loops" not in metrics[0] and "alarm/loops" in metrics[1]
    rounds = [entry["alarms"] for entry in summary["rounds"]]
    named = {name: n for n, names in [*enumerate(rounds)][::-1] for name in names}
    assert rounds[0] == ["silence"] and summary["alarms"] == named


def destroying(config, behavior, rate, **simpo):
    """A pipeline with a warm start that speaks, and a learning rate that destroys any model."""
    values = {"actor.decoding": "free", "simpo.training.learning_rate": rate}
    values |= {f"simpo.loss.{name}": value for name, value in simpo.items()}
    cloning = replace(TRAINING, learning_rate=2e-2, batch_size=32)
    return with_values(replace(config, warm_start=WarmStartConfig(behavior, cloning)), values)


def test_a_pipeline_that_falls_silent_stops_with_a_diagnosis_and_does_so_again(weights, run_dir):
    config = pipeline_of(weights, run_dir)
    config = destroying(config, replace(BEHAVIOR, num_chains=2048), rate=3.0)
    for _ in range(2):
        with pytest.raises(CollapseError, match="round 1: .* rule silence.* that of round 0"):
            run_here("run_pipeline", config)
    *_, last = read_metrics(run_dir)
    assert last["alarm/silence"] == 1 and last["step"] == 1
    assert (run_dir / "round_1/simpo/actor/model.safetensors").is_file()
    assert not (run_dir / "summary.json").exists() and (run_dir / "report.html").is_file()
    assert (run_dir / "actor").resolve() == (run_dir / "warm_start/actor").resolve()
    assert (run_dir / "actor/model.safetensors").is_file()


def test_a_pipeline_whose_actor_is_sure_of_every_state_is_finished(weights, tmp_path):
    """So cold that even the hottest completions are the likeliest ones."""
    config = pipeline_of(weights, tmp_path / "run", values={"actor.temperature": 1e-4})
    summary = run_here("run_pipeline", config)
    assert (summary["num_rounds"], summary["round"], summary["num_pairs"]) == (0, 0, 0)
    assert summary["actor"]["model"].endswith("warm_start/actor")
    assert (tmp_path / "run/actor/model.safetensors").is_file()
    assert (tmp_path / "run/report.html").is_file()
    greedy = pipeline_of(weights, tmp_path / "greedy", values={"actor.temperature": 0.0})
    dropped = "no_pairs: .* all 48 were dropped.* that of round 0"
    with pytest.raises(CollapseError, match=dropped):  # it was not asked any hotter
        run_here("run_pipeline", greedy)


@pytest.mark.parametrize("unknown", [None, math.nan])
def test_a_round_that_could_not_be_measured_is_the_worst(unknown):
    known = {"of_optimum": 0.1, "episode_return": -9.0}
    worse = {"of_optimum": unknown, "episode_return": 5.0}
    assert round_results.merit(worse) < round_results.merit(known)
    assert round_results.merit(known | {"episode_return": unknown}) < round_results.merit(known)


def test_where_nearly_all_drawn_episodes_succeed_rounds_are_compared_by_what_they_earn():
    cautious = {"success_rate": 0.997, "episode_return": -2.35}
    better = {"success_rate": 0.988, "episode_return": -2.07}
    failing = {"success_rate": 0.9, "episode_return": -1.0}
    assert max([cautious, better, failing], key=round_results.merit) == better
    exhaustive = [figures | {"actions_over_shortest": 1.0} for figures in (cautious, better)]
    assert max(exhaustive, key=round_results.merit) == exhaustive[0]  # no luck is in these


@pytest.mark.slow
def test_two_processes_run_the_whole_pipeline(weights, tmp_path):
    config = pipeline_of(weights, tmp_path / "run", num_rounds=1)
    assert exit_codes(start_two("run_pipeline", config)) == [0, 0], logs(tmp_path / "run")
    together, log = read_summary(tmp_path / "run"), logs(tmp_path / "run")
    alone = pipeline_of(weights, tmp_path / "alone", num_rounds=1)
    run_here("run_pipeline", alone)
    for number in (0, 1):
        stages = (tmp_path / name / f"round_{number}/inspection" for name in ("run", "alone"))
        answers = [read_inspection(stage).answers for stage in stages]
        for column in ("state_id", "state", "text", "optimal", "shortest"):
            assert answers[0][column] == answers[1][column]
    assert together.keys() == read_summary(tmp_path / "alone").keys()
    assert (tmp_path / "run-1.log").read_text() == ""
    assert log.count("over shortest") == 1 and (tmp_path / "run/report.html").is_file()


def test_an_actor_that_answers_in_no_chains_is_refused_before_it_costs(weights, run_dir):
    free = {"actor.decoding": "free"}
    config = pipeline_of(weights, run_dir, values=free, warm_start=None)
    with pytest.raises(ConfigError, match=r"of 32 free completions .* clone first"):
        run_here("run_pipeline", config)
    assert not list(run_dir.glob("round_*"))


def test_a_bound_that_cannot_be_measured_is_refused_with_the_settings(weights, run_dir):
    with pytest.raises(ValueError, match="decoding: expected free.* beside simpo.loss.target_kl"):
        pipeline_of(weights, run_dir, values={"simpo.loss.target_kl": 0.5})


def test_a_round_that_is_worse_is_undone_and_the_run_ends_when_that_repeats(weights, run_dir):
    behavior = replace(BEHAVIOR, num_chains=4096, competent_fraction=1.0)
    few = {"evaluation.num_starts": 24, "num_rounds": 4, "run.keep_checkpoints": False}
    config = pipeline_of(weights, run_dir, values=few, selection=SelectionConfig(num_starts=24))
    config = destroying(config, behavior, rate=0.3, target_kl=1e6)
    summary = run_here("run_pipeline", config)
    assert (summary["num_rounds"], summary["round"]) == (2, 0)
    assert summary["alarms"]["undone"] == 1
    assert (run_dir / "actor").resolve() == (run_dir / "warm_start/actor").resolve()
    first, second = (read_config(run_dir / f"round_{n}/simpo/config.yaml") for n in (1, 2))
    assert second["actor"]["model"] == first["actor"]["model"]  # it went on from the same one
    assert second["training"]["learning_rate"] == first["training"]["learning_rate"] / 2
    assert second["loss"]["target_kl"] == first["loss"]["target_kl"] / 2 == 5e5
    assert not list(run_dir.rglob("checkpoint-*"))
    written = read_summary(run_dir)
    shown = RunView(run_dir).results  # what is reported of, not what rounds were compared by
    for number, results in shown.items():
        assert results == read_episodes(run_dir / f"round_{number}/evaluation/episodes.json")
    assert len(shown) == 3
    (run_dir / "summary.json").unlink()
    run_here("run_pipeline", config)
    assert read_summary(run_dir) == written


def test_next_commands_name_what_is_there(weights, run_dir, monkeypatch):
    """The actor that the run has kept, or the one that it was given; one seed in a name."""
    config = pipeline_of(weights, run_dir)
    config = replace(config, run=RunConfig(run_dir=f"{run_dir}_seed_3", seed=3))
    given = {"model": "weights/base", "adapter": None}
    monkeypatch.setattr(run_pipeline, "modules_of", lambda _: [])  # other tests have named some
    _, play, again = next_commands(config, given).values()
    assert "--actor.model weights/base" in play and "adapter" not in play
    assert f"--run.run_dir {run_dir}_seed_4 --run.seed 4" in again
    (Path(f"{run_dir}_seed_3") / "actor").mkdir(parents=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(sys, "argv", ["lactchain run_pipeline"])
    _, play, again = next_commands(config, given).values()
    assert f"lactchain play --actor.model {run_dir}_seed_3" in play
    typed = "torchrun --standalone --nproc-per-node 2 -m lactchain run_pipeline"
    assert again.startswith(f"{typed} --config {run_dir}_seed_3/config.yaml --run.run_dir")


EXACT = {"actions_over_shortest": 1.0, "episode_return": 0.9}


@pytest.mark.parametrize(("target", "rates", "result", "is_over"), [
    ({"success_rate": 0.99}, [1.0, 0.95], 0, True),  # a perfect clone, which a round unlearnt
    ({"success_rate": 0.99}, [1.0, 1.0], 1, True),
    ({"success_rate": 0.99}, [0.9, 0.8], 0, False),
    ({"success_rate": 0.99}, [0.8, 0.9, 0.7], 1, False),
    ({"success_rate": 0.99}, [0.8, 0.8], 1, False),
    ({}, [1.0, 0.9], 0, False),
])  # fmt: skip
def test_the_result_of_a_run_is_the_clone_where_no_round_is_as_good(target, rates, result, is_over):
    results = RoundResults(RunPipelineConfig(target=target), None)
    rounds = [EXACT | {"success_rate": rate, "undone": False} for rate in rates]
    results.evaluations.extend(rounds)
    assert (results.chosen(), results.is_enough()) == (result, is_over)


@pytest.mark.parametrize(("change", "result"), [(-0.02, 2), (-1.0, 1)])
def test_by_returns_alone_the_last_round_that_is_no_worse_is_the_result(
    change, result, monkeypatch
):
    luck = np.random.default_rng(0).choice([-1.0, 1.0], 500)
    moved = np.where(np.arange(500) < 20, np.where(np.arange(500) % 2, 3, -3), 0) + change
    returns = {0: luck - 1, 1: luck, 2: luck + moved}
    run = SimpleNamespace(path=lambda name: int(name[len("round_")]))
    played = {n: [SimpleNamespace(episode_return=r) for r in each] for n, each in returns.items()}
    monkeypatch.setattr(round_results, "read_trajectories", played.__getitem__)
    results = RoundResults(RunPipelineConfig(target={}), run)
    results.evaluations.extend(
        {"success_rate": None, "episode_return": each.mean(), "undone": False}
        for each in returns.values()
    )
    assert results.chosen() == result


def test_a_row_of_the_table_names_the_figures_that_the_target_still_lacks():
    target = {"success_rate": 0.99, "actions_over_shortest": 1.05, "sampled_invalid_rate": 0.003}
    results = RoundResults(RunPipelineConfig(target=target), None)
    first = EXACT | {"success_rate": 1.0, "sampled_invalid_rate": 0.0037, "alarms": ["bumps"]}
    results.evaluations.extend([first, first | {"sampled_invalid_rate": 0.003, "alarms": []}])
    rows = [results._row(number, took=1.0) for number in (0, 1)]
    assert [row["notes"] for row in rows] == ["bumps; unmet: no chain", ""]
