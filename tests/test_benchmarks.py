"""Benchmarks: the figures that they share, by hand, and that they run at a tiny width."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import lmrl
import measuring
import numpy as np
import peer_report
import pytest
import random_models
import rehearsal
from run_setups import ROOT
from trajectories import trajectory

from lactchain import EnvironmentConfig, make_language_env
from lactchain.models.generation.automaton import build_automaton
from lactchain.models.loading import load_tokenizer
from lactchain.models.prompting import PromptTemplate


def test_the_interval_of_a_mean_is_students():
    mean, half = measuring.student([1.0, 2.0, 6.0])
    assert mean == 3 and half == pytest.approx(4.303 * ((4 + 1 + 9) / 2 / 3) ** 0.5)
    assert measuring.shown([1.0, 2.0, 6.0], "{:.2f}") == f"3.00 ± {half:.2f}"
    assert measuring.shown([2.5], "{:.2f}") == "2.50"


def test_interquartile_mean_and_interval():
    assert measuring.interquartile_mean([1, 2, 3, 4]) == 2.5
    mean = measuring.interquartile_mean([0, 1, 2, 3, 100])
    assert mean == pytest.approx((0.75 + 2 + 0.75 * 3) / 2.5)
    assert measuring.interquartile_mean([7]) == 7
    low, high = measuring.bootstrap_interval(np.arange(20.0))
    assert 5 < low < 9.5 < high < 14
    assert measuring.bootstrap_interval([3, 3, 3]) == (3, 3)


def points(*pairs):
    return [{"num_env_steps": s, "cpu_seconds": s / 10, "return": r} for s, r in pairs]


def test_a_difference_counts_where_the_interval_of_paired_seeds_excludes_equality():
    ours = {seed: points((0, 0.0), (10, 0.5 + seed)) for seed in range(3)}
    near = {seed: points((10, 0.5 + seed + gap)) for seed, gap in enumerate((0.2, -0.1, 0.3))}
    above = {seed: points((10, 0.5 + seed + gap)) for seed, gap in enumerate((0.2, 0.3, 0.4))}
    # mean .1333, s .2082, t(2) 4.303: .1333 ± .5172; mean .3, s .1: .3 ± .2484
    assert peer_report.difference(near, ours) == ("+0.133 ± 0.517", "")
    assert peer_report.difference(above, ours) == ("+0.300 ± 0.248", "better")
    assert peer_report.difference(ours, above) == ("-0.300 ± 0.248", "worse")
    assert peer_report.difference({0: ours[0]}, ours) == ("", "")


def walk(*cells):
    """An episode through cells (row, column) of the default maze."""
    infos = [{"state": {"row": row, "column": column}} for row, column in cells]
    said, of_maze = ["move down\n"] * (len(cells) - 1), {"env_id": "lactchain/Maze-v0"}
    return trajectory([""] * len(cells), said, infos=infos, terminated=False, **of_maze)


def test_move_accuracy_counts_moves_that_shorten_the_way_cell_by_cell():
    # (5, 6) to (8, 6) lead down to the goal; from (5, 6) one good move of three, from (6, 6) both
    episodes = [walk((5, 6), (6, 6), (7, 6)), walk((5, 6), (5, 6), (5, 5)), walk((6, 6), (7, 6))]
    assert lmrl.move_accuracy(episodes) == pytest.approx((1 / 3 + 1) / 2)
    assert lmrl.move_accuracy([walk((7, 6), (8, 6))]) == 1


def test_prompts_are_those_of_the_published_chat_template(tmp_path):
    random_models.build_actor(tmp_path, hidden_size=64, num_layers=2)
    tokenizer = load_tokenizer(tmp_path, padding_side="left", chat=True)
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "<s>[INST] S\n\nU[/INST]"
    assert not (tmp_path / "chat_template.jinja").exists()
    grammar = make_language_env(EnvironmentConfig()).grammar
    template = PromptTemplate(tokenizer, "founding", grammar)
    prompt = template.encode("2 3 up 1 0")
    assert prompt.count(1) == 1 and prompt[-1] == tokenizer.convert_tokens_to_ids("[/INST]")
    assert build_automaton(grammar, tokenizer) is not None


def test_a_rehearsal_has_every_stage_with_a_configuration_for_the_large_models():
    files = (ROOT / "configs").glob(f"*/{rehearsal.SETTING}.yaml")
    about_servers = {"doctor", "serve"}  # they train nothing, and end when told so
    stages = {file.parent.name for file in files} - about_servers
    assert {stage.script for stage in rehearsal.STAGES} == stages


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the models are built once for all rehearsals."""
    return tmp_path_factory.mktemp("rehearsal")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("how", [[], ["--processes", "2", "--kill"]], ids=["one", "two, killed"])
def test_every_stage_ends_well_and_both_rounds_learn(folder, how):
    script = ROOT / "benchmarks/rehearsal.py"
    command = [sys.executable, str(script), "--folder", str(folder), *how]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def start(scratch: Path, *arguments: str) -> subprocess.Popen:
    script = ROOT / "benchmarks/full_size.py"
    command = f"{sys.executable} -W ignore {script} --layers 2 --width 64 --scratch {scratch}"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ['PYTHONPATH']}"}
    words = [*command.split(), *arguments]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_stage_runs_beside_its_estimate_and_nothing_stays(tmp_path):
    process = start(tmp_path)
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    rows = [re.findall(r"[\w.]+", line) for line in printed.splitlines() if line.startswith("│")]
    memory = {row[0]: row[1:] for row in rows if len(row) == 6}
    assert len(memory) == 8 and "export" in printed
    for stage, (_, _, both, _, estimate) in memory.items():  # the libraries are not in it
        assert 0 < float(estimate) < float(both), stage
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_stop_leaves_nothing_behind_either(tmp_path):
    process = start(tmp_path, "--only", "collect_rollouts")
    deadline = time.monotonic() + 100
    while not list(tmp_path.glob("full-size-*/runs")) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
