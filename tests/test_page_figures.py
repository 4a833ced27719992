"""More than a hundred numbers of a page, over all its screens, against the files of the run."""

import json
import math
import re

import numpy as np
from browser import choose, label, number_of
from explorer_runs import CONFIG

from lactchain.data.intervals import paired_interval
from lactchain.runs.run import read_metrics
from lactchain_extras.explorer.report import write_report

NUMBER = re.compile(r"[+−]?\d[\d,]*(?:\.\d+)?")


def numbers(text):
    return [number_of(found) for found in NUMBER.findall(text)]


def cells(visit, rows, places=slice(None)):
    """The numbers in some cells of each row; in a start state there are others."""
    texts = visit.page.locator(rows).all_inner_texts()
    return [numbers(" ".join(text.split("\t")[places])) for text in texts]


def results(run, number):
    return [*run.results(number).values()]


def summary(visit, run, _):
    shares = []
    for number in range(3):
        found = results(run, number)
        for most in (99, 2):
            won = sum(r.success and r.num_chains <= most for r in found)
            shares.append([won, len(found), round(100 * won / len(found), 1)])
    tables = "#summary .first .scroll table >> nth={} >> tbody tr"
    told = [n for row in cells(visit, tables.format(0), slice(1, None)) for n in row]
    yield told, np.ravel(shares), 6
    failed = run.results()
    rows = visit.page.locator(tables.format(1)).all_inner_texts()
    for state, *told in (row.split("\t") for row in rows):
        known = failed[state]
        yield [*map(number_of, told)], [known.shortest, known.num_chains, known.num_actions], 6


def states(visit, run, _):
    visit.open("states")
    for row in (3, 17):
        state = json.loads([*run.answers(0).values()][row]["state"])
        choose(visit, state)
        for number in range(3):
            answer = run.answers(number)[label(state)]
            card = visit.page.locator(".answer").nth(number).locator("dl.facts div")
            told = dict(text.split("\n") for text in card.all_inner_texts())
            earned = CONFIG.invalid_penalty if answer["invalid"] else sum(answer["rewards"])
            expected = {
                "reward": earned - CONFIG.chain_cost,
                "V": answer["value"],
                "Q": answer["q"],
                "V*": answer["optimal"],
                "Vπ": answer["policy_value"],
                "return": answer["return"],
            }
            known = {name: value for name, value in expected.items() if value is not None}
            yield [number_of(told[name]) for name in known], [*known.values()], 4
            yield numbers(told["probability"]), [math.prod(answer["probabilities"])], 3
            if answer["advantage"] is not None:
                yield numbers(told["advantage"]), [answer["advantage"]], 3
            ways = [answer["num_actions"], answer["shortest"]]
            yield numbers(told["actions / shortest"]), ways, 6
            took = next(r.num_chains for r in results(run, number) if r.state == state)
            yield numbers(told["solved" if answer["success"] else "not solved"]), [took], 6
    asked = [*run.answers(2).values()][17]["state_id"]  # the start state that was chosen last
    rows = [row for row in run.candidates(2) if row["state_id"] == asked and row["count"]]
    for told in visit.page.locator(".tree tbody tr:not(.branch):not(.apart)").all_inner_texts():
        _, probability, times, reward, score, _ = told.split("\t")
        row = next(row for row in rows if f"{row['probability']:.3g}" == probability)
        expected = [row["probability"], row["count"], row["reward"], row["score"]]
        yield [*map(number_of, (probability, times, reward, score))], expected, 3


def episodes(visit, run, _):
    visit.open("episodes")
    visit.page.select_option("#filter-round", "2")
    visit.page.select_option("#filter-outcome", "failed")
    by_state = run.evaluated()
    rows = visit.page.locator(".longtable tbody tr:not(.space)").all_inner_texts()[:6]
    for _, state, _, _, *told in (row.split("\t")[:7] for row in rows):
        episode = by_state[state]
        expected = [episode.episode_return, len(episode), sum(episode.num_actions)]
        yield [*map(number_of, told)], expected, 4
    first, values = by_state[rows[0].split("\t")[1]], run.answers(2)
    steps = visit.page.locator(".steps tbody tr").all_inner_texts()
    for n, told in enumerate(text.split("\t")[2:4] for text in steps):
        value = values[label(first.infos[n]["state"])]["value"]
        yield [*map(number_of, told)], [first.rewards[n], value], 4


def pairs(visit, run, _):
    visit.open("pairs")
    visit.page.select_option("#pair-round", "1")
    made = sorted(run.pairs(1), key=lambda pair: -pair.margin)
    told = cells(visit, ".longtable tbody tr:not(.space)", slice(1))
    yield [n for row in told for n in row], [pair.margin for pair in made], 4
    for kind in ("chosen", "rejected"):
        side = visit.page.locator(f".side-of-pair.{kind}")
        told = side.locator("h4").inner_text(), side.locator("p").inner_text()
        expected = [getattr(made[0], f"{kind}_{what}") for what in ("value", "return")]
        yield [n for text in told for n in numbers(text)], expected, 4


def critic(visit, run, _):
    visit.open("critic")
    for number, name in ((1, "policy_value"), (2, "optimal")):
        answers = run.answers(number)
        value, exact = ([a[key] for a in answers.values()] for key in ("value", name))
        errors = np.subtract(value, exact)
        told = cells(visit, "#by-round tbody tr", slice(1, 3))[number - 1]
        yield told, [np.sqrt((errors**2).mean()), 1 - (errors**2).mean() / np.var(exact)], 3


def curves(visit, run, other):
    visit.open("curves")
    figure = visit.page.locator("figure.chart:has-text('eval/success_rate')").first
    told = figure.locator(".u-legend .u-value").all_inner_texts()
    last = [read_metrics(folder.directory)[-1] for folder in (run, other)]
    expected = [last[0]["step"], *(record["eval/success_rate"] for record in last)]
    yield [*map(number_of, told)], expected, 4


def compare(visit, run, other):
    visit.open("compare")
    one, two = results(run, 2), results(other, 2)
    solved = np.array([[r.success for r in side] for side in (one, two)], float)
    chains = np.array([[r.num_chains for r in side] for side in (one, two)], float)
    gained = [np.sum(solved[1] > solved[0]), np.sum(solved[1] < solved[0])]
    told = numbers(visit.text("#verdict p >> nth=0").replace("round 2", ""))
    yield told, [len(one), *gained], 6
    for name, (before, after) in (("success", solved), ("chains", chains)):
        expected = [np.mean(after - before), 95, *paired_interval(before, after)]
        yield numbers(visit.text(f"#verdict-{name}")), expected, 4
    rows = cells(visit, "#runs tbody tr", slice(1, None))
    for folder, told in zip((run, other), rows, strict=True):
        known, shares = json.loads((folder.directory / "summary.json").read_text()), []
        for number in range(3):
            won = [r.success for r in results(folder, number)]
            shares += [round(100 * np.mean(won), 1), len(won)]
        figures = [known[n] for n in ("round_1/critic_r2", "num_pairs", "num_env_steps")]
        yield told, [*figures, *shares], 6


def stages(visit, run, _):
    visit.open("run")
    for told in visit.page.locator("main table tbody tr").all_inner_texts():
        name, _, minutes, *_ = told.split("\t")
        folder = run.directory / ("" if name == "the run itself" else name)
        times = [record["time"] for record in read_metrics(folder) if "time" in record]
        if len(times) > 1:
            yield numbers(minutes), [(times[-1] - times[0]) / 60], 3


def test_a_hundred_numbers_on_all_screens_are_those_of_the_files(opened, seeds, tmp_path):
    page = write_report(seeds[0].directory, tmp_path / "page.html", [seeds[1].directory])
    visit, differing, count = opened(page), [], 0
    for screen in (summary, states, episodes, pairs, critic, curves, compare, stages):
        for told, values, digits in screen(visit, *seeds):
            expected = [float(f"{value:.{digits}g}") for value in values]
            assert len(told) == len(expected), (screen.__name__, told, expected)
            count += len(told)
            if told != expected:
                differing.append((screen.__name__, told, expected))
    assert differing == [] and count > 150
