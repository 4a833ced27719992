"""Two or more runs side by side, by the start states that they have in common."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lactchain.config.parsing import differences
from lactchain.data.evaluations import EpisodeResult, success_figures
from lactchain.data.intervals import paired_interval
from lactchain.environments.views import State
from lactchain.errors import DataError
from lactchain.inspection.run_view import RunView, open_run
from lactchain.runs.preflight import unread_models
from lactchain_extras.explorer.summary import chosen_round, filled, round_name

FIGURES = {
    "success": ("success_rate_after", "last/success_rate", "success_rate"),
    "in two": ("success_within_2_chains",),
    "over shortest": ("actions_over_shortest",),
    "no chain": ("invalid_rate_after", "sampled_invalid_rate"),
    "rounds": ("num_rounds",),
    "CPU s": ("time/cpu_seconds",),
}
"""Columns of runs, by their names in summaries of pipelines, classic agents and evaluations."""
SETTING = "setting"
"""The first column of the settings that differ."""
NO_CHANGE = ("run.run_dir", "run.report_to")
"""Settings that are of no interest where runs differ."""
T_95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's quantiles for 1 to 9 degrees of freedom; the last one serves for more."""
FEWEST = 6
"""Start states that have to differ before luck is excluded: that five of them all change in one
direction has a chance of 6 % where nothing has changed (sign test, Dixon and Mood 1946)."""
LONGEST = 40
"""Letters of a setting that a table shows."""


@dataclass(frozen=True)
class Compared:
    """What one run does beside the first, in the start states that both were evaluated in.

    Attributes:
        other: the run.
        name: its name, as `names` has it.
        starts: the N common start states.
        success, chains: (2, N) success in [0, 1] and completions, of the first run and of it.
    """

    other: RunView
    name: str
    starts: list[State]
    success: np.ndarray
    chains: np.ndarray

    @property
    def gained(self) -> list[int]:
        """Numbers of the start states that the other run does better in, the largest gain first."""
        return self._by_change(1.0)

    @property
    def lost(self) -> list[int]:
        """Those that it does worse in, the largest loss first."""
        return self._by_change(-1.0)

    def row(self) -> dict[str, Any]:
        """The comparison in a line: differences with their 95 % intervals, and what these say.

        The start states are paired, and each counts once (`intervals.paired_interval`).
        """
        return {
            "beside the first": self.name,
            "states": len(self.starts),
            "success": _difference(*self.success),
            "gained": len(self.gained),
            "lost": len(self.lost),
            "completions": _difference(*self.chains, better=-1),
        }

    def changes(self, most: int) -> list[dict[str, Any]]:
        """Start states that went otherwise, the largest changes first: lost ones, then gained."""

        def change(sides: np.ndarray) -> str:
            return " → ".join(f"{side:.3g}" for side in sides)

        return [
            {
                "start state": json.dumps(filled(self.starts[n])),
                "success": change(self.success[:, n]),
                "completions": change(self.chains[:, n]),
            }
            for n in (*self.lost[:most], *self.gained[:most])
        ]

    def _by_change(self, sign: float) -> list[int]:
        change = sign * (self.success[1] - self.success[0])
        return [int(n) for n in np.argsort(-change, kind="stable") if change[n] > 0]


def compare(runs: Sequence[str | RunView]) -> list[Compared]:
    """Every run beside the first one.

    Raises:
        ConfigError: a folder is no run.
        DataError: a run has no evaluation that tells of success, or none in common with the first.
    """
    first, *others = map(open_run, runs)
    before, found = outcomes(first), []
    for other, name in zip(others, names([first, *others])[1:], strict=True):
        after = outcomes(other)
        common = [state for state in before if state in after]
        if len(common) < 2:
            got = f"found {len(common)} in common; compare runs in one world"
            raise DataError(f"{other.directory}: expected start states of {first.directory}, {got}")
        both = np.array([[run[state] for state in common] for run in (before, after)])
        success, chains = both[..., 0], both[..., 1]
        found.append(Compared(other, name, [*map(json.loads, common)], success, chains))
    return found


def names(runs: Sequence[RunView]) -> list[str]:
    """The names of the folders of runs; of equal ones, as seen from what holds them all."""
    folders = [os.path.abspath(run.directory) for run in runs]
    found = [os.path.basename(folder) for folder in folders]
    if len({*found}) < len(found):
        above = os.path.commonpath([os.path.dirname(folder) for folder in folders])
        found = [os.path.relpath(folder, above) for folder in folders]
    return [f"./{name}" if name == SETTING else name for name in found]


def in_other_worlds(runs: Sequence[RunView]) -> list[str]:
    """Names of those whose world is not that of the first: their states may mean something else."""

    def world(run: RunView) -> list[Any]:
        told = run.config.get("environment") or {}
        return [told.get(key) for key in ("id", "kwargs")]

    told = zip(names(runs), runs, strict=True)
    return [name for name, run in told if world(run) != world(runs[0])]


def outcomes(run: RunView) -> dict[str, tuple[float, float]]:
    """Success and completions of each start state, as JSON: means over its last evaluation."""
    found: dict[str, list[EpisodeResult]] = {}
    for result in run.results.get(chosen_round(run), []):
        if result.success is not None:
            found.setdefault(json.dumps(result.state, sort_keys=True), []).append(result)
    if not found:
        what = "expected an evaluation that tells of success (episodes.json), found none"
        raise DataError(f"{run.directory}: {what}; run evaluate, or wait for the first round")
    return {
        state: tuple(np.mean([(r.success, r.num_chains) for r in results], axis=0).tolist())
        for state, results in found.items()
    }


def settings(runs: Sequence[RunView]) -> list[dict[str, Any]]:
    """The settings in which any run differs from the first, a column for each run."""
    # What nulls became in its world is a setting too.
    flat = [
        {name: now for name, (_, now) in differences({}, run.sizes["settings"]).items()}
        | {name: now for name, now in _flat(run).items() if now is not None}
        for run in runs
    ]
    changed = {name for other in flat[1:] for name in differences(flat[0], other)}
    return [
        {SETTING: name}
        | dict(zip(names(runs), _short([values.get(name) for values in flat]), strict=True))
        for name in sorted(changed)
    ]


def _flat(run: RunView) -> dict[str, Any]:
    """The settings that may matter to what a run came to, dotted."""
    ignored = {*NO_CHANGE, *unread_models(run.config)}
    found = differences({}, run.config)
    return {name: now for name, (_, now) in found.items() if name not in ignored}


def figures(runs: Sequence[RunView]) -> list[dict[str, Any]]:
    """What each run came to, and in which round; a word where that is not known."""
    rows = []
    for run, name in zip(runs, names(runs), strict=True):
        known, row = known_figures(run), {"run": name, "of": round_name(chosen_round(run))}
        for title, among in FIGURES.items():
            value, is_told = figure(known, among), not known.keys().isdisjoint(among)
            missing = "–" if is_told or run.summary is not None else "not yet"
            row[title] = missing if value is None or value != value else value
        rows.append(row)
    return rows


def over_seeds(runs: Sequence[RunView]) -> list[dict[str, Any]]:
    """Means over runs that differ in their seed alone, and the half width of their 95 % interval.

    A row for each group of two finished seeds or more (`student`); a word where a run lacks a
    figure.
    """
    groups: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        if run.summary is None:
            continue
        kept = {name: now for name, now in _flat(run).items() if name != "run.seed"}
        groups.setdefault(json.dumps(kept, sort_keys=True), []).append(number)
    rows, seeds = figures(runs), [run.config.get("run", {}).get("seed") for run in runs]
    return [
        {"runs": rows[group[0]]["run"], "seeds": len(group)}
        | {title: _mean([rows[number][title] for number in group]) for title in FIGURES}
        for group in groups.values()
        if len({seeds[number] for number in group}) == len(group) > 1
    ]


def student(values: Sequence[float]) -> tuple[float, float]:
    """Mean over seeds, and half the width of Student's 95 % interval; NaN of a single seed."""
    if len(values) < 2:
        return float(np.mean(values)), float("nan")
    quantile = T_95[min(len(values) - 1, len(T_95)) - 1]
    return float(np.mean(values)), float(quantile * np.std(values, ddof=1) / len(values) ** 0.5)


def known_figures(run: RunView) -> Mapping[str, Any]:
    """The summary of a run; of one without, what its newest evaluation and its rounds tell."""
    if run.summary is not None:
        return run.summary
    number = chosen_round(run)
    stage = run.stages.get(f"round_{number}/evaluation")
    results = run.results.get(number)
    known = (stage and stage.summary) or (success_figures(results) if results else {})
    return known if number is None else {**known, "num_rounds": number}


def figure(known: Mapping[str, Any], among: Sequence[str]) -> Any:
    """The first of some names that is known; None where none is."""
    return next((known[name] for name in among if known.get(name) is not None), None)


def _difference(before: np.ndarray, after: np.ndarray, better: int = 1) -> str:
    """The mean difference with its 95 % interval, and a verdict: `better` is the good sign."""
    low, high = paired_interval(before, after)
    if np.array_equal(before, after):
        return f"none of {len(before)} differs"
    verdict = "may be luck"
    if (low > 0 or high < 0) and np.count_nonzero(after - before) >= FEWEST:
        verdict = "better" if better * (low + high) > 0 else "worse"
    mean, low, high = map(_signed, ((after - before).mean(), low, high))
    return f"{mean} ({low} to {high}), {verdict}"


def _signed(value: float) -> str:
    value = round(value, 12)
    return f"{value:+.3f}" if round(value, 3) or not value else f"{value:+.1g}"


def _mean(cells: Sequence[Any]) -> str:
    """A mean with its interval, or the word that stands for a figure that is not known."""
    words = [cell for cell in cells if isinstance(cell, str)]
    if words:
        return words[0]
    mean, half = student(cells)
    return f"{mean:.4g} ± {float(f'{half:.2g}'):g}"  # two digits, of hundreds too


def _short(values: Sequence[Any]) -> list[str]:
    """Values as a table shows them, without the beginning that long ones have in common."""
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    if max(map(len, texts)) <= LONGEST:
        return texts
    cut = max(len(os.path.commonprefix(texts)) - LONGEST // 2, 0)
    kept = [f"{'...' if cut else ''}{text[cut:]}" for text in texts]
    return [text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..." for text in kept]
