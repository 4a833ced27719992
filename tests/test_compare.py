"""Runs side by side: pairs of start states, settings that differ, and what may be luck."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest
from browser import label
from explorer_runs import GridRun, page_of
from run_folders import write_run

from lactchain import ConfigError, DataError, command, open_run
from lactchain.data.evaluations import EpisodeResult, write_episodes
from lactchain.data.intervals import paired_interval
from lactchain.runs.console import console
from lactchain.runs.run import read_summary
from lactchain.storage.manifests import read_run_file, write_run_file, write_with_manifest
from lactchain_extras import comparing
from lactchain_extras.explorer.contents import contents
from lactchain_extras.explorer.inspections import left_out
from lactchain_extras.explorer.report import render, write_report
from lactchain_extras.explorer.summary import filled
from lactchain_extras.stages import compare


@pytest.fixture
def run(tmp_path):
    """Writes a run that solved some start states, each in so many completions."""

    def write(name, solved, rate=0.1, key="cell", episodes=1, success=0.5, seed=0):
        folder = tmp_path / name
        run = {"run_dir": str(folder), "seed": seed}
        config = {"run": run, "training": {"learning_rate": rate}}
        write_run(folder, config, 0, {"success_rate_after": success, "num_rounds": 2})
        (folder / "config.yaml").write_text(json.dumps(config))
        took = [(cell, took) for cell, took in enumerate(solved) for _ in range(episodes)]
        results = [EpisodeResult({key: n}, t is not None, t or 16, 4) for n, t in took]
        write_episodes(folder / "episodes.json", results)
        return str(folder)

    return write


def test_models_that_runs_build_for_themselves_are_no_difference_of_settings(run):
    views = []
    for seed, shape in ((0, {"hidden_size": 8}), (1, {"hidden_size": 8}), (2, None)):
        folder = Path(run(str(seed), [1, 2], seed=seed))
        told = read_run_file(folder)
        told["config"] |= {"tiny": shape, "actor": {"model": f"{folder}/base/actor"}}
        write_run_file(folder, told)
        views.append(open_run(folder))
    assert [row["setting"] for row in comparing.settings(views[:2])] == ["run.seed"]
    assert "actor.model" in [row["setting"] for row in comparing.settings(views)]
    (group,) = comparing.over_seeds(views)
    assert group["seeds"] == 2


def test_gains_and_losses_are_of_the_same_start_states(run):
    first, other = run("a", [1, 2, None, None, 3]), run("b", [1, None, 4, 1, 3, 7])
    (found,) = comparing.compare([first, other])
    assert len(found.starts) == 5
    assert [found.starts[n]["cell"] for n in found.gained] == [2, 3]
    assert [found.starts[n]["cell"] for n in found.lost] == [1]
    row = found.row()
    assert (row["gained"], row["lost"]) == (2, 1)
    sides = {"success": ([1, 1, 0, 0, 1], [1, 0, 1, 1, 1])}
    sides["completions"] = ([1, 2, 16, 16, 3], [1, 16, 4, 1, 3])
    for name, (before, after) in sides.items():
        low, high = paired_interval(before, after)
        mean = (sum(after) - sum(before)) / 5
        assert row[name] == f"{mean:+.3f} ({low:+.3f} to {high:+.3f}), may be luck"
    lost, *gained = found.changes(most=1)
    assert (lost["start state"], lost["success"]) == ('{"cell": 1}', "1 → 0")
    assert [row["completions"] for row in gained] == ["16 → 4"]


HALF = [1 if cell % 2 else None for cell in range(40)]


def solved(some, of):
    return [1] * some + [None] * (of - some)


@pytest.mark.parametrize(("before", "after", "told"), [
    (HALF, [1] * 40, ", better"), (HALF, [None] * 40, ", worse"),
    (HALF, HALF, "none of 40 differs"),
    (solved(0, 100), solved(5, 100), ", may be luck"), (solved(0, 100), solved(6, 100), ", better"),
    (solved(0, 4000), solved(6, 4000), "+0.002 (+0.0003 to +0.003), better"),  # with a digit
])  # fmt: skip
def test_what_few_states_differ_in_may_be_luck_and_more_is_told(run, before, after, told):
    (found,) = comparing.compare([run("a", before), run("b", after)])
    row = found.row()
    assert row["success"] == told if told[0] == "+" else row["success"].endswith(told)
    if before is HALF:
        assert row["completions"].endswith(told)


def test_runs_whose_folders_have_one_name_are_told_apart(run):
    folders = [run("a/run", [1, 2]), run("b/run", [1, 2])]
    assert comparing.names([*map(open_run, folders)]) == ["a/run", "b/run"]


def test_empty_parts_of_a_state_are_not_shown():
    assert filled({"seed": 1, "played": []}) == {"seed": 1}
    assert filled({"played": []}) == {"played": []}


def test_runs_in_other_worlds_are_named(run, tmp_path, capsys):
    runs = [run(name, [1, 2]) for name in "abc"]
    for name, size in zip("abc", (4, 4, 5), strict=True):
        told = read_run_file(tmp_path / name)
        world = {"id": "lactchain/GridWorld-v0", "kwargs": {"size": size}}
        write_run_file(tmp_path / name, told | {"config": told["config"] | {"environment": world}})
    assert comparing.in_other_worlds([open_run(folder) for folder in runs]) == ["c"]
    compare.main(compare.CompareConfig(tuple(runs), show=0))
    printed = capsys.readouterr().out
    assert printed.count("is not that of the first run") == 1


def test_episodes_of_one_start_state_count_once(run):
    first, other = run("a", [1, None, 1], episodes=3), run("b", [1, 1, 1])
    (found,) = comparing.compare([first, other])
    assert found.success.tolist() == [[1, 0, 1], [1, 1, 1]]


def test_settings_that_differ_have_a_column_for_each_run(run):
    runs = [run("a", [1, 1]), run("b", [1, 1], rate=0.2), run("c", [1, 1])]
    rate = {"setting": "training.learning_rate"}
    differing = comparing.settings([*map(open_run, runs)])
    assert differing == [rate | {"a": "0.1", "b": "0.2", "c": "0.1"}]
    runs = [run("setting", [1, 1]), run("d", [1, 1], rate=0.2)]
    differing = comparing.settings([*map(open_run, runs)])
    assert differing == [rate | {"./setting": "0.1", "d": "0.2"}]
    for folder, cost in zip(runs, (0.004, 0.05), strict=True):  # that followed from the world
        sizes = {"settings": {"environment.chain_cost": cost, "run.seed": 7}, "why": {}}
        (Path(folder) / "sizes.json").write_text(json.dumps(sizes))
    sized = {"setting": "environment.chain_cost", "./setting": "0.004", "d": "0.05"}
    assert comparing.settings([*map(open_run, runs)])[0] == sized
    long = [f"/scratch/a/long/folder/of/many/runs/round_{n}/simpo/actor" for n in (1, 2)]
    assert comparing._short(long) == [f".../of/many/runs/round_{n}/simpo/actor" for n in (1, 2)]


def test_the_command_takes_any_number_of_folders(run, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(console, "_width", 300)  # so that no word is broken
    runs = [run("a", [1, None]), run("b", [None, 1]), run("c", [1, None])]
    words = command.arguments_of("compare", [*runs, "--show", "3"])
    assert words == ["--runs", json.dumps(runs), "--show", "3"]
    compare.main(compare.CompareConfig(tuple(runs)))
    printed = capsys.readouterr().out
    assert "may be luck" in printed and "no start state is gained or lost" in printed
    assert "Stopped" not in printed
    (tmp_path / "b/summary.json").unlink()
    compare.main(compare.CompareConfig(tuple(runs)))
    told = f"{runs[1]}: its last evaluation so far is compared. Stopped: at the beginning."
    assert told in capsys.readouterr().out
    so_far = {"of": "evaluation", "success": 0.5, "no chain": "not yet", "rounds": "not yet"}
    assert so_far.items() <= comparing.figures([open_run(runs[1])])[0].items()


def test_a_run_under_way_is_told_by_its_newest_evaluation(run, tmp_path):
    folder = tmp_path / run("a", [1, None])
    (folder / "summary.json").unlink()
    write_episodes(folder / "episodes_before.json", [EpisodeResult({"cell": 0}, False, 16, 4)] * 2)
    told = {"success_rate": 0.5, "sampled_invalid_rate": 0.0061, "actions_over_shortest": None}
    write_run(folder / "round_1/evaluation", {}, 1, told)
    write_episodes(folder / "round_1/evaluation/episodes.json", open_run(folder).episodes["after"])
    so_far = {"of": "round 1", "success": 0.5, "no chain": 0.0061, "rounds": 1, "CPU s": "not yet"}
    (row,) = comparing.figures([open_run(folder)])
    assert so_far.items() <= row.items() and row["over shortest"] == "–"


def test_a_run_that_solves_nothing_has_a_success_of_0(run):
    runs = [open_run(run("a", [1, None])), open_run(run("b", [None, None], success=0.0))]
    assert [row["success"] for row in comparing.figures(runs)] == [0.5, 0.0]


@pytest.mark.parametrize("words", [["a" * 300, "b"], ["a\0b", "c"]])
def test_what_is_no_name_of_a_folder_is_told_in_a_line(words, capsys):
    with pytest.raises(SystemExit) as ended:
        command.run("compare", words)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "File name too long" in told or "expected a text without" in told


def test_runs_that_cannot_be_compared_are_refused(run, tmp_path):
    first = run("a", [1, 1])
    with pytest.raises(DataError, match="found 0 in common; compare runs in one world"):
        comparing.compare([first, run("b", [1, 1], key="place")])
    write_episodes(tmp_path / "a/episodes.json", [EpisodeResult({"cell": 0}, None, 1, 1)])
    with pytest.raises(DataError, match="that tells of success"):
        comparing.compare([first, first])
    with pytest.raises(ConfigError):
        comparing.compare([first, str(tmp_path / "nothing")])
    for odd in ({"config": "x"}, {"config": None}, {"imports": 5}, {"imports": [[1]]}):
        write_run_file(tmp_path / "b", odd)
        with pytest.raises(DataError, match=rf"{next(iter(odd))}: expected"):
            _ = open_run(tmp_path / "b").config
    with pytest.raises(ValueError, match="runs: expected two folders or more"):
        compare.CompareConfig((first,))


def test_runs_that_differ_in_their_seed_alone_are_a_mean_with_its_interval(run):
    folders = [
        *(run(f"a{seed}", [1, 2], seed=seed, success=seed / 2) for seed in range(3)),
        *(run(f"b{seed}", [1, 2], rate=0.2, seed=seed) for seed in range(2)),
        run("a_again", [1, 2], rate=0.3),
    ]
    first, second = comparing.over_seeds([open_run(folder) for folder in folders])
    assert (first["runs"], first["seeds"]) == ("a0", 3)
    assert first["success"] == "0.5 ± 1.2"  # 4.303 * 0.5 / sqrt(3)
    assert first["CPU s"] == "–"
    assert (second["runs"], second["seeds"], second["rounds"]) == ("b0", 2, "2 ± 0")
    (Path(folders[2]) / "summary.json").unlink()  # under way, it has come to nothing yet
    assert comparing.over_seeds([open_run(folder) for folder in folders])[0]["seeds"] == 2
    assert comparing._mean([200.0, 260.0]) == "230 ± 380"  # 12.71 * 42.43 / sqrt(2)
    twice = [run("c", [1, 2]), run("d", [1, 2]), run("e", [1, 2], seed=1)]  # no sample of seeds
    assert comparing.over_seeds([open_run(folder) for folder in twice]) == []


def test_runs_of_all_kinds_stand_side_by_side(seeds, tmp_path):
    """The return of a pipeline is that of its chosen round."""
    run, _ = seeds
    config = {"environment": {"id": "lactchain/GridWorld-v0", "kwargs": {}}}
    figures = {"last/success_rate": 0.75, "last/episode_return": 0.5, "num_env_steps": 4321}
    write_run(tmp_path / "small_network", config, 2, {**figures, "time/cpu_seconds": 6.5})
    write_run(tmp_path / "unfinished", config, 2, None)
    evaluation = tmp_path / "unfinished/round_0/evaluation"
    write_run(evaluation, config, 1, {"success_rate": 0.25})
    write_episodes(evaluation / "episodes.json", open_run(run.directory).results[0])
    write_run(tmp_path / "pipeline", config, 2, {"round": 1, "success_rate_after": 1.0})
    lines = ({"step": n, "time": 0, "eval/episode_return": 0.125 + n} for n in range(3))
    (tmp_path / "pipeline/metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    write_run(tmp_path / "unknown", config, 2, {"round": 1, "success_rate_after": math.nan})
    names = ("grid", "small_network", "unfinished", "pipeline", "unknown")
    page = page_of(run.directory, beside=[open_run(tmp_path / name) for name in names[1:]])
    facts = json.loads(next(text for kind, text in page.scripts if kind.get("id") == "facts"))
    assert facts["runs"] == list(names)
    compared = {name: values[1:] for name, values in facts["compared"]}
    assert compared["success"] == [0.75, 0.25, 1.0, None]
    assert compared["return"] == [0.5, None, 1.125, None]
    assert compared["CPU-seconds"] == [6.5, None, None, None]
    assert set(page.table("curves")["run"]) == {0, 1, 2, 3, 4}


def test_all_that_is_no_record_is_named_of_stages_and_of_runs_beside_too(tmp_path):
    GridRun(tmp_path / "run")
    folder = shutil.copytree(tmp_path / "run", tmp_path / "other")
    for number, make in ((1, Path.touch), (2, lambda place: place.symlink_to(tmp_path / "none"))):
        shutil.rmtree(folder / f"round_{number}/inspection")
        make(folder / f"round_{number}/inspection")
    (folder / "round_2/critic/token_values").mkdir()
    names = ["round_1/inspection", "round_2/critic/token_values", "round_2/inspection"]
    assert left_out(open_run(folder)) == names
    page = write_report(tmp_path / "run", beside=[folder]).read_text()
    assert all(f"other/{name} is damaged or not whole, not shown" in page for name in names)


def beside(*views):
    """The episodes of other runs, the states of their candidates, and what is left out."""
    held = contents(views[0], views[1:])
    runs, states = (held.tables["episodes"][name] for name in ("run", "start_state"))
    known = [label(json.loads(state)) for state in held.tables["states"]["state"]]
    rows = zip(held.tables["episodes"]["stage"], [known[n] for n in states], strict=True)
    episodes = [row for run, row in zip(runs, rows, strict=True) if run]
    said = zip(*(held.tables["candidates"][name] for name in ("run", "state")), strict=True)
    return episodes, {known[n] for run, n in said if run}, held.left_out


def test_what_is_compared_at_first_is_what_each_run_ended_with(seeds, tmp_path, monkeypatch):
    shutil.copytree(seeds[1].directory, tmp_path / "undone")
    summary = read_summary(tmp_path / "undone") | {"round": 1}  # its last round was not kept
    write_with_manifest(tmp_path / "undone/summary.json", json.dumps(summary).encode(), {})
    one, two = open_run(seeds[0].directory), open_run(tmp_path / "undone")
    told = re.search(r'id="facts">(.*?)</script>', render(one, [two]))[1]
    assert json.loads(told)["chosen"] == [2, 1]
    episodes, _, left_out = beside(one, two)
    assert [stage for stage, _ in episodes[:288]] == ["round_1/evaluation"] * 288
    assert {stage for stage, _ in episodes[288:]} == {"round_0/evaluation", "round_2/evaluation"}
    assert len(episodes) == 3 * 288 and left_out == ""
    monkeypatch.setattr("lactchain_extras.explorer.contents.MAX_RUNS_BY_ROUND", 1)
    assert beside(one, two)[0] == episodes[:288]


def test_where_room_is_short_the_states_that_end_differently_come_first(seeds, monkeypatch):
    monkeypatch.setattr("lactchain_extras.explorer.contents.MAX_BYTES_BESIDE", 20_000)
    episodes, candidates, told = beside(*(open_run(run.directory) for run in seeds))
    one, two = (run.results(2) for run in seeds)
    differing = {state for state in one if one[state].success != two[state].success}
    states = {state for _, state in episodes}
    assert 0 < len(states) < len(differing) and candidates == states <= differing
    assert f"from {len(states)} of 288 start states and 0 of 288 start states in other" in told
