"""`report.html`: a run folder in one page that opens from disk, with no script and no network.

Reads only what the folder holds (`lactchain.inspection.run_view`), needs no model, and leaves out
what is not there yet, so that a running job can be looked at too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np

from lactchain.data.alarms import RULES
from lactchain.data.evaluations import (
    CompletionValues,
    EpisodeResult,
    StateValues,
    by_part,
    success_figures,
)
from lactchain.files import atomic_write
from lactchain.inspection import plots
from lactchain.inspection.markup import Markup, environment, escape, parts
from lactchain.inspection.pictures import Picture
from lactchain.inspection.run_view import RunView, chain_records, open_run
from lactchain.types import PreferencePair, Trajectory

# Curves that are shown at once, by a part of their key; the others fold away.
MAIN_CURVES = (
    "loss", "margin", "accurac", "logps", "return", "success", "invalid", "chain_length", "r2",
)  # fmt: skip
# Each with its names in the summaries of pipelines, classic agents and single evaluations.
COMPARED = {
    "success": ("success_rate_after", "last/success_rate", "success_rate"),
    "return": ("last/episode_return", "episode_return"),
    "environment steps": ("num_env_steps",),
    "CPU-seconds": ("time/cpu_seconds",),
}
NUM_PAIRS = 8
MAX_ROWS = 24  # of an episode's completions that are shown unfolded

Item = TypeVar("Item")

_sections = environment.get_template(
    "sections.html", globals={"chain_colour": plots.chain_colour}
).module


def write_report(
    run_dir: str | Path,
    output: str | Path | None = None,
    num_rollouts: int = 8,
    beside: Sequence[str | Path] = (),
) -> Path:
    """Writes the page of a run folder, with others `beside` it; returns its path."""
    view = open_run(run_dir)
    path = Path(output or view.directory / "report.html")
    atomic_write(path, render(view, num_rollouts, [open_run(other) for other in beside]))
    return path


def write_learning_curve(run_dir: str | Path) -> Path | None:
    """Writes learning_curve.svg into a run folder; None where nothing has been measured yet."""
    view, names = open_run(run_dir), ("rollout/episode_return", "eval/episode_return")
    lines = {name: curve for name, curve in view.curves().items() if name in names}
    if not lines:
        return None
    path = view.directory / "learning_curve.svg"
    atomic_write(path, str(plots.line_chart("return of an episode over steps", lines)))
    return path


def render(view: RunView, num_rollouts: int = 8, beside: Sequence[RunView] = ()) -> str:
    """The page of a run as HTML, with what other runs reached and cost beside it."""
    values_of, values = view.newest("values")
    moves_of, told = view.newest("completion_values")
    played_in, trajectories = view.newest("trajectories")
    paired_in, pairs = view.newest("pairs")
    evaluations, picture = view.newest("episodes")[1], view.picture
    shown = sample_episodes(trajectories, num_rollouts)
    by = f"Value and advantage are by the critic of {values_of}." if values_of else ""
    sections = (
        ("Result", parts.fields(view.summary) if view.summary else "", ""),
        ("Beside other runs", comparison([view, *beside]) if beside else "", ""),
        ("Alarms", alarms(view), ""),
        ("Stages", _sections.stages(view.stages) if view.stages else "", ""),
        ("Curves", curves(view), ""),
        ("Success by distance", success(evaluations), ""),
        (_of("The critic beside the truth", values_of), state_values(values, picture), ""),
        (_of("What each completion is worth", moves_of), completion_values(told, picture), ""),
        (_of("Sample episodes", played_in), rollouts(shown, picture, values, told), by),
        (_of("Preference pairs", paired_in), pair_table(pairs), ""),
        ("How it was run", _settings(view), ""),
    )
    commit = view.environment.get("git_commit")
    facts = (view.state, view.environment.get("device"), f"commit {commit}" if commit else None)
    page = environment.get_template("page.html")
    return page.render(name=view.name, facts=[*filter(None, facts)], sections=sections)


def comparison(views: Sequence[RunView]) -> Markup:
    """Success and cost of runs side by side, each row from a run's summary."""
    rows = [
        (view.name, *(_first(view.summary, names) for names in COMPARED.values()), view.minutes)
        for view in views
    ]
    note = (
        "Success and return are those of the last weights. What a run did not count is left"
        " empty; environment steps are those that were learnt from."
    )
    return _sections.noted(parts.table(("run", *COMPARED, "minutes"), rows), note)


def alarms(view: RunView) -> Markup:
    """Which alarms went off in which rounds, what they mean, and what to change."""
    curves = view.curves()
    rows = []
    for rule in RULES:
        steps, values = curves.get(f"alarm/{rule.name}", ([], []))
        rounds = [int(step) for step, value in zip(steps, values, strict=True) if value == 1]
        if rounds:
            rows.append((rule.name, rounds[0], len(rounds), rule.means, rule.mend))
    headers = ("alarm", "first round", "rounds", "what it means", "what helps")
    return parts.table(headers, rows) if rows else Markup("")


def curves(view: RunView) -> Markup:
    """Curves; stages of the same name (round_1/simpo, round_2/simpo) share pictures."""
    drawn = []
    for group, members in _groups(view).items():
        charts = _charts(members)
        main = [chart for key, chart in charts.items() if any(part in key for part in MAIN_CURVES)]
        more = [chart for chart in charts.values() if chart not in main]
        if charts:
            drawn.append(_sections.charts(group if view.stages else "", main, more))
    return Markup("").join(drawn)


def success(evaluations: Mapping[str, Sequence[EpisodeResult]]) -> Markup:
    """Success by length of the shortest path, and what the solved episodes cost.

    Where states are held back, practised start states and the others stand below the whole.
    """
    if not any(evaluations.values()):
        return Markup("")
    parts_of = {
        f"{name}, {part.replace('_', ' ')}": episodes
        for name, whole in evaluations.items()
        for part, episodes in by_part(whole).items()
    }
    headers = (
        "", "start states", "success", "within 2 chains", "chains", "actions", "actions / shortest",
    )  # fmt: skip
    rows = [(name, *_success_row(found)) for name, found in (evaluations | parts_of).items()]
    note = "Chains, actions and their ratio to the shortest path are those of solved episodes."
    shown = _sections.noted(parts.table(headers, rows), note)
    bars = {name: by_distance(found) for name, found in (parts_of or evaluations).items()}
    if any(bars.values()):
        shown += plots.bar_chart("success rate", bars, "shortest path, in actions")
    return shown


def by_distance(episodes: Sequence[EpisodeResult]) -> dict[int, tuple[float, int]]:
    """Shortest path in actions → (success rate, number of episodes)."""
    outcomes: dict[int, list[bool]] = {}
    for episode in episodes:
        if episode.shortest is not None:
            outcomes.setdefault(episode.shortest, []).append(episode.success)
    return {distance: (sum(won) / len(won), len(won)) for distance, won in sorted(outcomes.items())}


def state_values(values: StateValues | None, picture: Picture) -> Markup:
    """The critic's values, the exact ones and their difference."""
    if values is None or not values.states:
        return Markup("")
    facts = {"states": len(values.states), "gamma": values.gamma}
    facts["discount per"] = values.discount_per
    overview = []
    if values.exact is not None:
        facts |= {"R²": values.r2, "RMSE": values.rmse}
        overview = [plots.scatter("critic over exact value", values.exact, values.critic, "exact")]
    drawn = picture.values(values)
    return parts.gallery([parts.fields(facts), *overview]) + drawn


def completion_values(values: CompletionValues | None, picture: Picture) -> Markup:
    """What each completion to each state is worth to a value model, where the world can draw it."""
    if values is None or not values.states:
        return Markup("")
    return escape(picture.completions(values))


def rollouts(
    trajectories: Sequence[Trajectory],
    picture: Picture,
    values: StateValues | None = None,
    told: CompletionValues | None = None,
) -> Markup:
    """Episodes, drawn as their world draws them, with reward, value and advantage of each chain.

    Args:
        values: what a critic says of the states.
        told: what a value model says of them, which then stands instead.
    """
    return Markup("").join(_episode(t, picture, values, told) for t in trajectories)


def pair_table(pairs: Sequence[PreferencePair], num_pairs: int = NUM_PAIRS) -> Markup:
    """Margins of all pairs, and some of the pairs."""
    if not pairs:
        return Markup("")
    margins, title = [pair.margin for pair in pairs], f"margins of {len(pairs)} pairs"
    histogram = plots.histogram(title, margins, "advantage of chosen less that of rejected")
    return _sections.pairs(histogram, _some(pairs, num_pairs))


def sample_episodes(trajectories: Sequence[Trajectory], count: int) -> list[Trajectory]:
    """Some episodes from everywhere in the list, failures first and at most half of them."""
    failures = [t for t in trajectories if not _succeeded(t)]
    successes = [t for t in trajectories if _succeeded(t)]
    num_failures = min(len(failures), max(count // 2, count - len(successes)))
    return _some(failures, num_failures) + _some(successes, count - num_failures)


def _of(title: str, stage: str) -> str:
    return f"{title} ({stage})" if stage else title


def _first(summary: Mapping[str, object] | None, names: Sequence[str]) -> object:
    """The first of some figures that a summary has; None where it has none."""
    return next((summary[name] for name in names if name in (summary or {})), None)


def _settings(view: RunView) -> Markup:
    text = (view.directory / "config.yaml").read_text(encoding="utf-8")
    return _sections.settings(text, view.environment)


def _groups(view: RunView) -> dict[str, dict[str, RunView]]:
    """Runs by the last part of their names, and then by the rest."""
    groups = {"all stages": {"": view}}
    for name, stage in view.stages.items():
        path = PurePosixPath(name)
        groups.setdefault(path.name, {})[path.parent.as_posix()] = stage
    return groups


def _charts(views: Mapping[str, RunView]) -> dict[str, Markup]:
    series: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for name, view in views.items():
        for key, curve in view.curves().items():
            series.setdefault(key, {})[name] = curve
    # One point is no curve: such figures stand in the tables.
    drawn = {k: lines for k, lines in series.items() if any(len(x) > 1 for x, _ in lines.values())}
    return {key: plots.line_chart(key, lines) for key, lines in sorted(drawn.items())}


def _success_row(episodes: Sequence[EpisodeResult]) -> tuple[int, str, str, float, float, float]:
    solved = [episode for episode in episodes if episode.success]
    figures = success_figures(episodes)
    return (
        len(episodes),
        f"{figures['success_rate']:.1%}",
        f"{figures['success_within_2_chains']:.1%}",
        float(np.mean([episode.num_chains for episode in solved] or [np.nan])),
        float(np.mean([episode.num_actions for episode in solved] or [np.nan])),
        figures["actions_over_shortest"],
    )


def _episode(
    trajectory: Trajectory,
    picture: Picture,
    values: StateValues | None,
    told: CompletionValues | None,
) -> Markup:
    """One episode: picture, chains, and the transcript to unfold."""
    behind = ()
    if told is not None:
        behind = list(zip(told.states, told.values, strict=True))
    elif values is not None:
        behind = list(zip(values.states, values.critic, strict=True))
    drawn = picture.episode(trajectory, behind)
    ending = "terminated" if trajectory.terminated else "cut off"
    return _sections.episode(
        trajectory,
        "solved" if _succeeded(trajectory) else ending,
        chain_records(trajectory, values, told),
        escape(drawn),
        MAX_ROWS,
    )


def _succeeded(trajectory: Trajectory) -> bool:
    return bool(trajectory.infos[-1].get("success", False))


def _some(items: Sequence[Item], count: int) -> list[Item]:
    """At most `count` items, evenly spread."""
    return [items[place] for place in plots.evenly_spaced(len(items), count)]
