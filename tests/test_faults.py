"""A few cases of each part of benchmarks/faults.py; the slow ones take every program."""

import importlib
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO, StringIO
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from script_setups import CLASSES

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import faults  # noqa: E402
from fault_matrix import (  # noqa: E402
    configurations,
    damage,
    digests,
    disk,
    kills,
    malice,
    power,
    programs,
    ranks,
    readers,
    signals,
    table,
    texts,
    worlds,
)
from fault_matrix.cases import Case, Verdict, run_part  # noqa: E402
from fault_matrix.digests import differing, digest  # noqa: E402
from fault_matrix.done import Notes  # noqa: E402
from fault_matrix.evil import MODULE  # noqa: E402

from lactchain.baselines.state_files import save_checkpoint  # noqa: E402
from lactchain.environments.extractors import JsonList, Rejection  # noqa: E402
from lactchain.errors import ConfigError, DataError  # noqa: E402
from lactchain.files import read_json_lines  # noqa: E402
from lactchain.manifests import (  # noqa: E402
    read_run_file,
    write_manifest,
    write_run_file,
    write_with_manifest,
)
from lactchain.run import Run  # noqa: E402
from lactchain.settings import RunConfig  # noqa: E402

SHORT = {
    "kills": (0.05, ["search_evolution", "search_random", "train_dqn"], 6),
    "signals": (0.05, ["collect_rollouts", "train_dqn"], 2),
    "damage": (0.05, ["search_random"], 6),
    "malice": (0.2, ["train_ppo"], 6),
    "power": (0.02, None, 40),
    "disk": (0.1, ["search_random"], 3),
    "texts": (0.015, None, None),
    "configurations": (0.02, ["train_critic", "run_pipeline"], 2),
    "worlds": (0.1, ["make_offline_data", "collect_rollouts", "train_dqn"], 4),
    "ranks": (0.08, ["make_offline_data", "collect_rollouts"], 1),
}
"""The parts, with the scale, the programs (None: all) and the most cases of the short test."""


def struck(part, folder, scale, names, most, monkeypatch):
    """The results of some cases of a part."""
    for name in set(programs.PROGRAMS) - set(names or programs.PROGRAMS):
        monkeypatch.delitem(programs.PROGRAMS, name)
    module = importlib.import_module(f"fault_matrix.{part}")
    (folder / "shared").mkdir()
    found = faults.of_programs(module.cases(folder / "shared", scale), names)
    run_part(part, islice(found, most), folder / "results.jsonl")
    return read_json_lines(folder / "results.jsonl")


@pytest.mark.parametrize("part", SHORT)
def test_no_fault_of_a_part_does_harm(part, tmp_path, monkeypatch):
    results = struck(part, tmp_path, *SHORT[part], monkeypatch)
    assert results and [r for r in results if not r["ok"]] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", SHORT)
def test_no_fault_of_a_part_does_harm_to_any_program(part, tmp_path, monkeypatch):
    results = struck(part, tmp_path, 0.02, None, None, monkeypatch)
    assert results and [r for r in results if not r["ok"]] == []


def case(name, strike):
    return Case(1, "none", name, strike)


def test_a_part_goes_on_where_it_was_and_a_fault_of_the_benchmark_does_not_end_it(tmp_path):
    struck_names = []

    def strike(folder):
        assert folder.is_dir() and not any(folder.iterdir())
        struck_names.append(folder)
        return Verdict(True, "equal")

    def broken(folder):
        raise KeyError("x")

    results = tmp_path / "part.jsonl"
    assert run_part("p", [case("a", strike), case("b", broken)], results) == {
        "equal": 1,
        "harness: KeyError": 1,
    }
    assert run_part("p", [case(n, strike) for n in "abc"], results) == {"equal": 1}
    assert [(r["name"], r["ok"]) for r in read_json_lines(results)] == [
        ("a", True), ("b", False), ("c", True),
    ]  # fmt: skip
    assert len(struck_names) == 2 and not any(folder.exists() for folder in struck_names)
    assert run_part("p", [case("d", strike)], results, minutes=0) == {}


def test_a_digest_sees_a_stray_a_flipped_bit_and_a_step_that_is_there_twice(tmp_path):
    for name in ("a", "b"):
        run_dir = tmp_path / name
        run_dir.mkdir()
        (run_dir / "weights.safetensors").write_bytes(b"1234")
        (run_dir / "config.yaml").write_text(f"run_dir: {run_dir}")
        (run_dir / "summary.json").write_text(json.dumps({"loss": 1, "time/seconds": ord(name)}))
        (run_dir / "metrics.jsonl").write_text('{"step": 1, "time": 2}\n')
    whole, other = digest(tmp_path / "a"), tmp_path / "b"
    assert differing(digest(other), whole) == []
    (other / ".x.tmp").touch()
    (other / "weights.safetensors").write_bytes(b"1235")
    (other / "metrics.jsonl").write_text('{"step": 1, "time": 2}\n{"step": 1, "time": 3}\n')
    (other / "summary.json").unlink()
    assert differing(digest(other), whole) == [
        "+.x.tmp", "-summary.json", "metrics.jsonl", "weights.safetensors",
    ]  # fmt: skip


def run_of(folder):
    """A small run, with a finished shard and a checkpoint."""
    run_dir = folder / "run"
    with Run.open(run_dir, RunConfig()) as run:
        write_with_manifest(
            run.path("00000-of-00001.parquet"), parquet(), {"tally": {"seconds": 1}}
        )
        run.log({"loss": 1.0}, step=2)
        for step in (2, 4):
            place = run.path("checkpoints")
            save_checkpoint(place, step, {"step": step}, 2, run.mark_metrics())
        run.finish({"loss": 1.0})
    return run_dir


def parquet(number=1):
    """The bytes of a table."""
    file = BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"x": [number]}), file)
    return file.getvalue()


def _without_a_checkpoint(run_dir):
    shutil.rmtree(run_dir / "checkpoints/checkpoint-4")


def _without_all_checkpoints(run_dir):
    shutil.rmtree(run_dir / "checkpoints")
    (run_dir / "checkpoints").mkdir()


def _with_another_manifest(run_dir):
    write_manifest(run_dir / "checkpoints/checkpoint-4", {"step": 5, "metrics": {}})


def _with_another_environment(run_dir):
    write_run_file(run_dir, read_run_file(run_dir) | {"threads": 7})


def _with_a_manifest_of_another_file(run_dir):
    write_with_manifest(run_dir / "00000-of-00001.parquet", b"", {"tally": {}})
    (run_dir / "00000-of-00001.parquet").write_bytes(parquet())


def _with_a_damaged_old_checkpoint(run_dir):
    (run_dir / "checkpoints/checkpoint-2/state.json").write_text("{}")


def _with_more_checkpoints_than_are_kept(run_dir):
    for step in (1, 3):
        save_checkpoint(run_dir / "checkpoints", step, {"step": step}, 9, {})


def _with_other_metrics(run_dir):
    path = run_dir / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 4, "time": 1, "time/train_runtime": 2, "x": 1}\n')


@pytest.mark.parametrize("change, found", [
    (_without_a_checkpoint, [
        "+checkpoints/checkpoint-2/manifest.json", "+checkpoints/state after step 2",
        "-checkpoints/checkpoint-4/manifest.json", "-checkpoints/state after step 4",
    ]),
    (_without_all_checkpoints, [
        "-checkpoints/checkpoint-4/manifest.json", "-checkpoints/state after step 4",
    ]),
    (_with_another_manifest, ["checkpoints/checkpoint-4/manifest.json"]),
    (_with_a_damaged_old_checkpoint, ["+checkpoints/checkpoint-2/manifest.json"]),
    (_with_more_checkpoints_than_are_kept, ["+checkpoints/too many"]),
    (_with_another_environment, ["environment.json"]),
    (_with_a_manifest_of_another_file, ["00000-of-00001.manifest"]),
    (_with_other_metrics, ["metrics.jsonl", "summary.manifest"]),
])  # fmt: skip
def test_a_digest_sees_what_does_not_belong_together(change, found, tmp_path):
    whole = digest(run_of(tmp_path / "a"))
    run_dir = run_of(tmp_path / "b")
    assert differing(digest(run_dir), whole) == []
    change(run_dir)
    assert differing(digest(run_dir), whole) == found


def test_a_later_last_checkpoint_is_as_good_behind_a_stop_alone(tmp_path):
    whole = digest(run_of(tmp_path / "a"))
    run_dir = run_of(tmp_path / "b")
    with Run.open(run_dir, RunConfig()) as run:
        save_checkpoint(run_dir / "checkpoints", 5, {"step": 5}, 2, run.mark_metrics())
    assert differing(digest(run_dir), whole, stopped=True) == []
    assert differing(digest(run_dir), whole) == [
        "+checkpoints/checkpoint-5/manifest.json", "+checkpoints/state after step 5",
        "-checkpoints/checkpoint-4/manifest.json", "-checkpoints/state after step 4",
    ]  # fmt: skip


def test_a_run_that_cannot_be_read_is_nothing_to_compare_with(tmp_path):
    run_dir = run_of(tmp_path)
    assert digests.whole(digest(run_dir)) == digest(run_dir)
    (run_dir / "checkpoints/checkpoint-4/state.json").write_text("{}")
    with pytest.raises(RuntimeError, match="checkpoint-4/manifest.json: damaged: DataError"):
        digests.whole(digest(run_dir))


COUNTING = """
import os, shutil, signal, time
from dataclasses import dataclass
from lactchain.baselines.state_files import load_checkpoint, save_checkpoint
from lactchain.errors import Interrupted
from lactchain.process import launch, stop_requested
from lactchain.progress import under_way
from lactchain.run import Run
from lactchain.settings import RunConfig

@dataclass(frozen=True)
class Counting:
    run: RunConfig

def main(config):
    with Run.of(config) as run:
        if not run.finished:
            count(run)

def count(run):
    folder = run.path("checkpoints")  # begins
    state = load_checkpoint(folder)
    number = 0 if state is None else state["number"]
    run.truncate_metrics(number or -1, state and state["metrics"])
    with under_way("updates", 20) as step:
        step.resumed(number)
        while number < 20:
            number += 1
            until = time.process_time() + 0.01
            while time.process_time() < until:
                pass
            run.log({"number": number}, step=number)
            step.at(number)
            if number == 11 and "PAUSE" in os.environ:
                os.kill(os.getpid(), signal.SIGSTOP)
            stopped = stop_requested()  # listens
            if stopped or number % 8 == 0:  # saves
                save_checkpoint(folder, number, {"number": number}, 2, run.mark_metrics())
            if stopped:
                raise Interrupted(stopped, "stopped")
    run.finish({"number": number})

if __name__ == "__main__":
    launch(main, Counting)
"""
"""A program that survives."""


@dataclass(frozen=True)
class Counting:
    """The configuration of that program."""

    run: RunConfig


def counting(folder, *changes):
    """That program, with some of its lines changed."""
    text = COUNTING
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    folder.mkdir()
    (folder / "script.py").write_text(text)

    def make(shared, run_dir):
        return Counting(RunConfig(run_dir=str(run_dir)))

    return programs.Program("counting", str(folder / "script"), make)


def paused(program, folder, **before):
    """A process of it that waits after its eleventh update; the eighth was saved."""
    config = program.config(folder, folder / "run")
    process = programs.start(program, config, PAUSE="1", **before)
    while process.is_alive() and ") T " not in Path(f"/proc/{process.pid}/stat").read_text():
        time.sleep(0.01)
    return process


ANEW = ("# begins", "\n    shutil.rmtree(folder, ignore_errors=True)")


@pytest.mark.parametrize("changes, ending", [([], "equal"), ([ANEW], "begun anew")])
def test_a_program_that_begins_anew_after_a_kill_is_found(changes, ending, tmp_path):
    program = counting(tmp_path / "program", *changes)
    programs.kill(paused(program, tmp_path))
    found = kills.to_its_end(program, tmp_path, tmp_path / "run", random.Random(0))
    assert (found.ending, found.ok) == (ending, ending == "equal"), found


@pytest.mark.parametrize("changes, ending", [
    ([], "exit 143, then equal"),
    ([("stop_requested()  # listens", "0")], "deaf"),
    ([("stopped or number % 8 == 0:  # saves", "number % 8 == 0:")], "begun anew"),
    ([ANEW], "begun anew"),
    ([("# begins", "\n    signal.signal(signal.SIGTERM, signal.SIG_DFL)")], "exit -15"),
])  # fmt: skip
def test_a_program_that_does_not_stop_as_it_should_is_found(changes, ending, tmp_path):
    program, notes = counting(tmp_path / "program", *changes), Notes(str(tmp_path / "notes"))
    process = paused(program, tmp_path, before=notes)
    asked, run_dir = signal.SIGTERM, tmp_path / "run"
    found = signals.stops(program, tmp_path, run_dir, asked, notes, [process])
    assert found.ending == ending and found.ok == ending.endswith("equal"), found


def test_the_table_counts_endings_and_names_what_did_harm():
    def record(name, ok, ending, commit):
        facts = {"part": "kills", "row": 1, "program": "train_dqn", "name": name}
        return {**facts, "ok": ok, "ending": ending, "detail": "a `b`", "commit": commit}

    good = [record("a", True, "equal", "1f"), record("b", True, "equal", "2e-dirty")]
    text = table.matrix([*good, record("c", False, "hung", "1f")], {"kills": 2000})
    lines = text.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:27]] == [f"| {n}" for n in range(1, 26)]
    assert lines[2].split(" | ")[3:5] == ["2 × equal", "1"]
    assert lines[3].split(" | ")[3:5] == ["–", "–"]
    assert "| train_dqn | 2 of 3 |" in lines
    assert "Done of what is planned: kills 3 of 2,000." in lines
    assert any(line.startswith("At the commits `1f`, `2e-dirty`; what") for line in lines)
    assert lines[-3:] == ["Harm was done by 1 of 3:", "", "- kills, c: hung: `a 'b'`"]
    page = f"before\n{table.BEGIN}old\n{table.END}behind\n"
    assert table.with_table(page, text) == f"before\n{table.BEGIN}{text}{table.END}behind\n"


def test_every_page_has_a_place_for_the_table():
    for page in table.PAGES:
        text = page.read_text("utf-8")
        assert text.count(table.BEGIN) == 1 and text.count(table.END) == 1


def test_every_script_that_makes_a_run_is_attacked():
    scripts = {path.stem for path in (ROOT / "scripts").glob("*.py")}
    without_a_run = {"doctor", "export", "play", "prepare_weights", "report", "serve"}
    assert {program.script for program in programs.PROGRAMS.values()} == scripts - without_a_run
    searches = [p for p in programs.PROGRAMS.values() if p.script == "search"]
    assert len(searches) == 4


class Mending(JsonList):
    """Takes what is nearly a name for one."""

    def _chain(self, said, span):
        return super()._chain([word.strip(" .").lower() for word in said], span)


class Raising(JsonList):
    """Raises where brackets are deep."""

    def parse(self, text):
        if "[[[" in text:
            raise RecursionError
        return super().parse(text)


class Strict(JsonList):
    """Takes no answer behind prose."""

    def parse(self, text):
        return super().parse(text) if text.startswith("[") else Rejection("no_answer")


@pytest.mark.parametrize("kind, batch, found", [
    (Mending, "illegal", "accepted an illegal answer"),
    (Raising, "any", "raised"),
    (Strict, "any", "refused a legal answer"),
])  # fmt: skip
def test_an_extractor_that_is_wrong_is_found(kind, batch, found, tmp_path):
    right = texts.READERS["json_list"]
    wrong = replace(right, extractor=kind(texts.GRID, 9))
    assert texts.read_all(right, batch, "0", 2000, tmp_path).ok
    assert texts.read_all(wrong, batch, "0", 2000, tmp_path).ending == found


def test_a_configuration_that_is_read_without_checks_is_found(tmp_path, monkeypatch):
    """As it was before: the name of a class was imported."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{configurations.FOREIGN}.py").write_text("class Thing: pass")
    files = [b"critic: {lora: foreign_code.Thing}", b"run: {seed: 3}"]
    for check, faults_found in ((True, [None, None]), (False, ["imported", None])):
        if not check:
            monkeypatch.setattr("lactchain.config._check", lambda *_: None)
        with StringIO() as results:
            for file in files:
                configurations._parse_one(
                    CLASSES["train_critic"], tmp_path, results, ["--config", file]
                )
            said = [json.loads(line) for line in results.getvalue().splitlines()]
        assert [record["fault"] for record in said] == faults_found


def test_a_configuration_that_takes_memory_is_found_though_another_took_more(tmp_path, monkeypatch):
    monkeypatch.setattr(configurations, "MOST_BYTES", 40 << 20)
    taken = 3 * configurations.MOST_BYTES
    np.ones(taken, np.uint8).sum()  # more than is allowed, before

    def parse(config_class, argv):
        np.ones(taken // 2, np.uint8).sum()
        raise ConfigError("no")

    monkeypatch.setattr(configurations, "parse", parse)
    with StringIO() as results:
        configurations._parse_one(CLASSES["train_critic"], tmp_path, results, [])
        assert json.loads(results.getvalue())["fault"].endswith("MiB")


def test_a_hostile_configuration_belongs_to_the_row_of_what_stands_in_it(tmp_path):
    rows = {case.name.split("-")[1]: case.row for case in configurations.cases(tmp_path, 0.2)}
    assert rows == {"text": 8, "attack": 23}


def test_a_world_that_ends_otherwise_is_found():
    good = "error: <World> raised KeyError: 1, at a.py:1 (seed 7, last action 1)"
    assert worlds._wrong("raises", 6, good) is None
    assert worlds._wrong("raises", 6, "error: <World> raised KeyError: 1") is not None
    assert worlds._wrong("raises", 1, "Traceback (most recent call last):") == "stack trace"
    assert worlds._wrong("exits", 0, "") == "exit 0"
    assert worlds._wrong("NaN reward", 5, good) == "exit 5"
    assert worlds._wrong("prints", 6, good) == "exit 6"


def test_a_damaged_file_is_refused_in_one_line_that_names_it(tmp_path):
    file = tmp_path / "shards/3.parquet"
    for code, text, ending in (
        (0, "done", None),
        (3, f"error: {file}: damaged", "refused"),
        (3, f"error: {file.with_suffix('.manifest')}: damaged", "refused"),
        (3, f"error: {file.parent}: damaged", "refused"),
        (3, "error: something is damaged", "refused without its name"),
        (3, f"error: {file}: damaged\nerror: and more", "refused in more than a line"),
        (3, f"Traceback (most recent call last):\nerror: {file}", "stack trace"),
        (1, f"error: {file}: damaged", "exit 1"),
    ):
        file.parent.mkdir(exist_ok=True)
        file.with_suffix(".manifest").touch()
        found = readers.refusal(code, text, file, tmp_path)
        assert (found and found.ending) == ending
        assert found is None or found.ok == (ending == "refused")


def test_a_file_that_is_damaged_and_that_nobody_tells_of_is_believed(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_readers", lambda *_: ())
    file = tmp_path / "values.json"
    write_with_manifest(file, b"[1]", {})
    assert not readers.told_by_readers(file, tmp_path, tmp_path).ok
    file.write_bytes(b"[2]")
    assert readers.told_by_readers(file, tmp_path, tmp_path).ok
    file.with_suffix(".manifest").unlink()
    assert readers.told_by_readers(file, tmp_path, tmp_path).ending == "believed"


def test_a_checkpoint_is_read_by_its_stage_alone(tmp_path, monkeypatch):
    monkeypatch.setitem(readers.NEXT, "critic", lambda folder, *_: folder)
    monkeypatch.setattr(programs, "start_script", lambda *_: None)
    for file, folders in (
        ("critic/critic/model.safetensors", ["critic/critic", "critic"]),
        ("critic/checkpoints/checkpoint-3/model.safetensors", []),
    ):
        found = dict.fromkeys(
            p for _, p in readers._readers(tmp_path / file, tmp_path, *[tmp_path] * 2)
        )
        assert [p for p in found if p] == [tmp_path / folder for folder in folders]


@pytest.mark.parametrize("place, of_trap", [
    ("+.lock.tmp", True),
    ("+.other.tmp", False),
    (f"+{MODULE}.py", True),
    ("manifest.json", True),  # it lists the module
    ("other/manifest.json", False),
    ("lock", False),
])  # fmt: skip
def test_what_was_laid_beside_a_file_is_no_difference(place, of_trap, tmp_path):
    assert not malice._is_of_trap(tmp_path / "lock", "manifest.json", tmp_path)
    (tmp_path / f"{MODULE}.py").touch()
    assert malice._is_of_trap(tmp_path / "lock", place, tmp_path) == of_trap


@pytest.mark.parametrize("file, place, own", [
    ("a/model.bin", "a/manifest.json", True),  # a manifest above it
    ("a/b/model.bin", "a/manifest.json", True),
    ("a/model.bin", "b/manifest.json", False),
    ("rows.parquet", "rows.manifest", True),  # and the one beside it
    ("rows.parquet", "others.manifest", False),
    ("rows.parquet", "summary.manifest", True),
    ("rows.parquet", "+.rows.parquet.tmp", True),
    ("rows.parquet", "metrics.jsonl", False),
    ("c/checkpoint-4/rng.pt", "c/state after step 4", True),
    ("c/checkpoint-2/rng.pt", "c/state after step 4", False),
    ("environment.json", "rows.manifest", False),
    ("../actor/model.bin", "environment.json", True),  # what a run has read
    ("../actor/model.bin", "rows.parquet", False),
])  # fmt: skip
def test_damage_is_forgiven_at_the_places_of_the_file_itself(file, place, own, tmp_path):
    run_dir = tmp_path / "run"
    damaged = tmp_path / file[3:] if file.startswith("..") else run_dir / file
    assert damage.is_of(damaged, place, run_dir) == own


@pytest.mark.parametrize("file, place, named", [
    ("environment.json", "rows.manifest", True),
    ("environment.json", "critic/manifest.json", True),
    ("environment.json", "c/checkpoint-4/manifest.json", True),
    ("environment.json", "c/state after step 4", False),  # weights have no name of a run in them
    ("environment.json", "metrics.jsonl", False),
    ("environment.json", "stage/manifest.json", False),  # of a run of its own
    ("environment.json", "stage/critic/manifest.json", False),
    ("round_1/environment.json", "rows.manifest", False),  # of another run
    ("rows.parquet", "rows.manifest", False),
])  # fmt: skip
def test_manifests_of_a_run_that_has_lost_its_name_are_forgiven(file, place, named, tmp_path):
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage/environment.json").touch()
    assert damage.is_named_by(tmp_path / file, place, tmp_path) == named


SHARD = "00000-of-00001.parquet"


def _made_again(shard, rows=1):
    write_with_manifest(shard, parquet(rows), {"tally": {"seconds": 2}})


def _deleted(shard):
    shard.unlink()
    shard.with_suffix(".manifest").unlink()


def _with_a_junk_manifest(shard):
    _made_again(shard)
    shard.with_suffix(".manifest").write_text("{}")


def _left(shard):
    pass


@pytest.mark.parametrize("goes_on, says, ending", [
    (_made_again, "made again", "repaired"),
    (_made_again, None, "written anew"),
    (partial(_made_again, rows=2), "made again", "silent"),
    (_deleted, "damaged, removed", "silent"),
    (_with_a_junk_manifest, "made again", "silent"),
    (_left, "damaged", "named, and left as it is"),
    (_left, "as usual", "asked the readers"),  # an ordinary line is no word on the damage
])  # fmt: skip
def test_what_a_program_makes_of_a_damaged_file_must_be_as_it_should(
    goes_on, says, ending, tmp_path, monkeypatch
):
    program = programs.Program("p", "p", lambda shared, run_dir: None)
    run_dir = run_of(damage.place_of(program, tmp_path).parent)
    shard, expected = run_dir / SHARD, digest(run_dir)
    damage._ordinary_log(program, tmp_path, "half").write_text(f"{shard}: as usual\n")
    shard.write_bytes(b"junk")

    def start(*_):
        goes_on(shard)
        programs.log_of(run_dir).write_text(f"{shard}: {says}\ndone" if says else "done")

    monkeypatch.setattr(programs, "start", start)
    monkeypatch.setattr(programs, "ended", lambda _: 0)
    monkeypatch.setattr(damage, "told_by_readers", lambda *_: Verdict(True, "asked the readers"))
    found = damage._Damage(tmp_path, program, 0)._go_on(run_dir, shard, shard, "half", expected)
    assert found.ending == ending and found.ok == (ending != "silent"), found


@pytest.mark.parametrize("goes_on, ending", [
    (_left, "named"),
    (_made_again, "named"),
    (partial(_made_again, rows=2), "changed the end"),
    (_deleted, "changed the end"),
])  # fmt: skip
def test_a_bad_file_is_forgiven_only_where_it_stays(goes_on, ending, tmp_path):
    program = programs.Program("p", "p", lambda shared, run_dir: None)
    run_dir = run_of(damage.place_of(program, tmp_path).parent)
    shard, expected = run_dir / SHARD, digest(run_dir)
    damage._ordinary_log(program, tmp_path, "half").touch()
    shard.write_bytes(b"evil")
    laid = malice._identity(shard)
    goes_on(shard)
    programs.log_of(run_dir).write_text(f"{shard}: bad")
    attack = malice._Attack(tmp_path, program, 0)
    assert attack._as_if_nothing_had_been(shard, laid, run_dir, expected).ending == ending


def test_manifests_of_a_run_whose_name_was_forged_are_forgiven_as_elsewhere(tmp_path):
    program = programs.Program("p", "p", lambda shared, run_dir: None)
    run_dir = run_of(damage.place_of(program, tmp_path).parent)
    (run_dir / "report.html").write_text("a page")
    file, expected = run_dir / "environment.json", digest(run_dir)
    damage._ordinary_log(program, tmp_path, "half").touch()
    write_run_file(run_dir, {"run_id": "forged"})
    laid = malice._identity(file)
    (run_dir / "report.html").unlink()  # is not made of such a run
    programs.log_of(run_dir).write_text(f"{file}: damaged")
    attack = malice._Attack(tmp_path, program, 0)
    assert attack._as_if_nothing_had_been(file, laid, run_dir, expected).ending == "named"


def test_checksums_find_out_whatever_is_not_as_it_was_written(tmp_path):
    file, model = tmp_path / "rows.json", tmp_path / "model"
    write_with_manifest(file, b"[1]", {})
    model.mkdir()
    (model / "weights.bin").write_bytes(b"1234")
    write_manifest(model, {})
    kept = [file, file.with_suffix(".manifest"), model / "weights.bin", model / "manifest.json"]
    (tmp_path / "plain.txt").write_text("nobody vouches for it")
    assert not any(readers._is_found_out(path) for path in [*kept, tmp_path / "plain.txt"])
    for path in kept:
        content = path.read_bytes()
        path.write_bytes(content[:-2] + b"9]")
        assert readers._is_found_out(path), path
        path.unlink()
        if path != kept[1]:  # whoever reads the file then asks for its manifest
            assert readers._is_found_out(path), path
        path.write_bytes(content)


def test_what_native_code_reads_outside_of_a_run_is_noticed(tmp_path):
    outside = malice._outside(tmp_path)
    malice._forget_reads(outside)
    assert malice._reads(outside) == []
    subprocess.run(["cat", outside / "secret.json"], check=True, capture_output=True)
    assert malice._reads(outside) == ["secret.json"]


def test_what_is_written_beside_the_place_of_a_run_is_noticed(tmp_path):
    (tmp_path / "place/x/run").mkdir(parents=True)
    (tmp_path / "actor").mkdir()
    around = malice._around(tmp_path, tmp_path / "place/x/run")
    (tmp_path / "place/x/run/weights").touch()
    assert malice._around(tmp_path, tmp_path / "place/x/run") == around
    (tmp_path / "actor/config.json").touch()
    assert malice._around(tmp_path, tmp_path / "place/x/run") != around


def test_a_process_that_does_not_name_the_other_is_found(tmp_path):
    log = programs.log_of(tmp_path / "run", 1)
    for said, wrong in (
        ("rank 0 (process 3) died", None),
        ("a process has ended", "rank not named"),
    ):
        log.write_text(f"[rank 1] error: {said}; give the same command")
        assert ranks._wrong("killed", 0, [-9, 6], tmp_path / "run", True) == wrong
    assert ranks._wrong("killed", 0, [-9, 1], tmp_path / "run", True) == "other exit codes"


@pytest.mark.parametrize("rank, codes, is_there, wrong", [
    (0, [0, 0], False, "claims to have ended"),
    (0, [0, 0], True, None),
    (0, [-9, 0], False, "claims to have ended"),
    (0, [-9, 0], True, None),
])  # fmt: skip
def test_no_process_ends_well_that_leaves_a_run_unfinished(rank, codes, is_there, wrong, tmp_path):
    if is_there:
        (tmp_path / "summary.json").touch()
    fault = "ends with 0" if codes[rank] == 0 else "killed"
    assert ranks._wrong(fault, rank, codes, tmp_path, True) == wrong


def test_two_processes_that_fail_before_a_fault_has_come_are_found(tmp_path, monkeypatch):
    program = programs.Program("p", "p", lambda shared, run_dir: None)
    processes = [SimpleNamespace(exitcode=0), SimpleNamespace(exitcode=6)]
    monkeypatch.setattr(ranks, "finished", lambda *_: ({}, [1.0, 1.0]))
    monkeypatch.setattr(ranks, "start_two", lambda *_: processes)
    monkeypatch.setattr(ranks, "_struck", lambda *_: 0.0)
    found = ranks.lose(program, tmp_path, "killed", 0, "seed", tmp_path)
    assert (found.ok, found.ending) == (False, "fails by itself")


def test_a_process_that_sleeps_though_it_was_asked_to_stop_is_slow(monkeypatch):
    monkeypatch.setattr(signals, "WITHIN", 0.2)
    process = kills.Command(subprocess.Popen(["sleep", "60"]))
    work, seconds = signals.until_end(process, programs.worked(process.pid))
    assert work < 0.2 < seconds and not process.is_alive()


def _begins(run_dir):
    run_of(run_dir.parent)
    (run_dir / "summary.json").unlink()


def _ends(run_dir):
    if run_dir.exists():
        with Run.open(run_dir, RunConfig()) as run:
            run.finish({"loss": 1.0})
    else:
        run_of(run_dir.parent)


def _ends_anew(run_dir):
    shutil.rmtree(run_dir)
    run_of(run_dir.parent)


def _without_a_word_on_its_page(run_dir):
    run_of(run_dir.parent)


def _without_its_page(run_dir):
    run_of(run_dir.parent)
    programs.log_of(run_dir).write_text(f"{run_dir}: the page is left as it was: no space")


def _with_its_page(run_dir):
    (run_dir / "report.html").write_text("a page")
    return digest(run_dir)


@pytest.mark.parametrize("first, again, ending", [
    ((_begins, "exit 5"), _ends, "exit 5"),
    ((_ends, "exit 0"), _left, "exit 0"),
    ((_begins, "exit 0"), _ends, "claims to have ended"),
    ((_begins, "exit 5"), _ends_anew, "begun anew"),
    ((_ends, "exit 0"), _ends_anew, "begun anew"),
    ((_begins, "exit 5"), _left, "not equal"),
    ((_without_its_page, "exit 0"), _with_its_page, "exit 0"),
    ((_without_a_word_on_its_page, "exit 0"), _with_its_page, "claims to have ended"),
])  # fmt: skip
def test_a_full_disk_costs_nothing_that_was_done(first, again, ending, tmp_path, monkeypatch):
    expected, run_dir = digest(run_of(tmp_path / "whole")), tmp_path / "a/run"
    if again is _with_its_page:
        expected = _with_its_page(tmp_path / "whole/run")
    (tmp_path / "a").mkdir()
    programs.log_of(run_dir).touch()
    runs = iter([first, (again, "exit 0")])

    def run(*_):
        does, ends = next(runs)
        does(run_dir)
        return Verdict(True, ends)

    monkeypatch.setattr(disk._Disk, "_run", run)
    program = programs.Program("p", "p", lambda shared, run_dir: None)
    found = disk._Disk(tmp_path, program, "size", 0)._twice(run_dir, None, lambda: None, expected)
    assert found.ending == ending and found.ok == ending.startswith("exit"), found


TOLD = "error: <World> raised KeyError: 1, at a.py:1 (seed 7, last action 1)"


@pytest.mark.parametrize("fault, first, again, ending", [
    ("raises", (_begins, 6), _ends, "exit 6, then equal"),
    ("raises", (_begins, 6), _ends_anew, "begun anew"),
    ("prints", (_begins, 0), _ends, "not equal"),
    ("ends the process", (_begins, 0), _ends, "equal"),
    ("ends the process", (_begins, 0), _ends_anew, "begun anew"),
])  # fmt: skip
def test_a_world_that_misbehaves_costs_nothing_that_was_done(
    fault, first, again, ending, tmp_path, monkeypatch
):
    expected, run_dir = digest(run_of(tmp_path / "whole")), tmp_path / "run"
    runs, program = iter([first, (again, 0)]), programs.Program("p", "p", lambda *_: None)

    def end(*_):
        does, code = next(runs)
        does(run_dir)
        programs.log_of(run_dir).write_text(TOLD if code else "")
        return code

    monkeypatch.setattr(programs, "expected", lambda *_: expected)
    monkeypatch.setattr(worlds, "finished", lambda *_: None)
    monkeypatch.setattr(worlds, "start", lambda *_, **__: None)
    monkeypatch.setattr(worlds, "ended", end)
    assert worlds.misbehave(program, tmp_path, fault, tmp_path).ending == ending


def _nothing(step):
    """Nobody is told of a step."""


@pytest.mark.parametrize("writer, damaged", [
    ("results", "episodes-1.json"),
    ("results", "round_2/model.safetensors"),
    ("lineage", "run/best/state.json"),
    ("training", "run/actor/model.safetensors"),
])  # fmt: skip
def test_all_that_a_writer_has_announced_is_read(writer, damaged, tmp_path):
    power.WRITERS[writer].write(tmp_path, _nothing)
    last = power.WRITERS[writer].read(tmp_path)
    assert last > 1
    (tmp_path / damaged).write_bytes(b"[2]")
    with pytest.raises((DataError, ValueError)):
        power.WRITERS[writer].read(tmp_path)


@pytest.mark.parametrize("file, first", [
    ("trajectories/0.parquet", "train_mc"),
    ("pairs/0.parquet", "train_simpo"),
    ("critic/model.safetensors", "make_preferences"),
    ("actor/model.safetensors", "evaluate"),
    ("checkpoints/0.bin", "the report"),
])  # fmt: skip
def test_whoever_reads_a_folder_is_asked_about_its_files(file, first, tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "start", lambda program, config: program.script)
    monkeypatch.setattr(programs, "start_script", lambda *_: "the report")
    asked = [process for _, process in readers._readers(
        tmp_path / "run" / file, tmp_path / "run", tmp_path, tmp_path / "reading"
    )]  # fmt: skip
    assert asked[0] == first and asked[-1] == "the report"


@pytest.mark.parametrize("name, ending", [
    ("rows.parquet", "believed by the next stage"),
    ("model.json", "left as it is, its manifest tells"),  # a stage need not read it
])  # fmt: skip
def test_a_stage_that_reads_a_damaged_file_in_silence_is_found(name, ending, tmp_path, monkeypatch):
    place = tmp_path / "reading"
    monkeypatch.setattr(readers, "_readers", lambda *_: [("the next stage", None)])
    monkeypatch.setattr(programs, "ended", lambda _: 0)
    programs.log_of(place).write_text("done")
    write_with_manifest(tmp_path / name, b"[1]", {})
    (tmp_path / name).write_bytes(b"[2]")
    assert readers.told_by_readers(tmp_path / name, tmp_path, tmp_path).ending == ending
