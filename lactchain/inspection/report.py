"""`report.html`: a run folder in one page that opens from disk, with no script and no network.

Reads only what the folder holds (`lactchain.inspection.run_view`), needs no model, and leaves out
what is not there yet, so that a running job can be looked at too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np

from lactchain.data.evaluations import AnswerValues, EpisodeResult, StateValues
from lactchain.environments.pictures import Picture
from lactchain.files import atomic_write
from lactchain.inspection import plots
from lactchain.inspection import values as value_sections
from lactchain.inspection.markup import (
    Markup,
    details,
    element,
    fields,
    gallery,
    join,
    page,
    table,
)
from lactchain.inspection.run_view import (
    RunView,
    chain_records,
    open_run,
)
from lactchain.types import PreferencePair, Trajectory

# Curves that are shown at once, by a part of their key; the others fold away.
MAIN_CURVES = (
    "loss", "margin", "accurac", "logps", "return", "success", "invalid", "chain_length", "r2",
)  # fmt: skip
# Names of the same figure in the summaries of pipelines, classic agents and single evaluations.
SUCCESS = ("success_rate_after", "last/success_rate", "success_rate")
RETURN = ("last/episode_return", "episode_return")
NUM_PAIRS = 8
MAX_ROWS = 24  # of an episode's answers that are shown unfolded

Item = TypeVar("Item")


def write_report(
    run_dir: str | Path,
    output: str | Path | None = None,
    num_rollouts: int = 8,
    beside: Sequence[str | Path] = (),
) -> Path:
    """Writes the page of a run folder and returns its path.

    Raises:
        ConfigError: when `run_dir` or one of `beside` is no run folder.
        DataError: when a file in it is damaged.
        DiskError: when the page cannot be written.
    """
    view = open_run(run_dir)
    path = Path(output or view.directory / "report.html")
    atomic_write(path, render(view, num_rollouts, [open_run(other) for other in beside]))
    return path


def write_learning_curve(run_dir: str | Path) -> Path | None:
    """Writes learning_curve.svg into a run folder: returns over steps, played and evaluated.

    Returns its path, or None where nothing has been measured yet.

    Raises:
        ConfigError: when `run_dir` is no run folder.
        DiskError: when the picture cannot be written.
    """
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
    moves_of, answer_values = view.newest("answer_values")
    picture = view.picture
    played_in, trajectories = view.newest("trajectories")
    paired_in, pairs = view.newest("pairs")
    _, evaluations = view.newest("episodes")
    sections = (
        _section("Result", _summary(view)),
        _section("Beside other runs", comparison([view, *beside]) if beside else Markup("")),
        _section("Stages", _stages(view.stages)),
        _section("Curves", curves(view)),
        _section("Success by distance", success(evaluations)),
        _section(
            _of("The critic beside the truth", values_of),
            value_sections.state_values(values, picture),
        ),
        _section(
            _of("What each answer is worth", moves_of),
            value_sections.answer_values(answer_values, picture),
        ),
        _section(
            _of("Sample episodes", played_in),
            rollouts(sample_episodes(trajectories, num_rollouts), picture, values, answer_values),
            note=f"Value and advantage are by the critic of {values_of}." if values_of else "",
        ),
        _section(_of("Preference pairs", paired_in), pair_table(pairs)),
        _section("How it was run", _settings(view)),
    )
    name = view.directory.resolve().name
    return page(f"{name} · LactChain", element("h1", name), _subtitle(view), *sections)


def comparison(views: Sequence[RunView]) -> Markup:
    """Success and cost of runs side by side, each row from a run's summary."""
    headers = ("run", "success", "return", "environment steps", "CPU-seconds", "minutes")
    rows = [
        (
            view.directory.resolve().name,
            _first(view.summary, SUCCESS),
            _first(view.summary, RETURN),
            _first(view.summary, ("num_env_steps",)),
            _first(view.summary, ("time/cpu_seconds",)),
            _minutes(view),
        )
        for view in views
    ]
    note = element(
        "p", "Success and return are those of the last weights. What a run did not count is left"
        " empty; environment steps are those that were learnt from.", class_="muted",
    )  # fmt: skip
    return join((table(headers, rows), note))


def curves(view: RunView) -> Markup:
    """Curves; stages of the same name (round_1/simpo, round_2/simpo) share pictures."""
    parts = []
    for group, members in _groups(view).items():
        charts = _charts(members)
        if not charts:
            continue
        main = [chart for key, chart in charts.items() if any(part in key for part in MAIN_CURVES)]
        more = [chart for key, chart in charts.items() if not any(p in key for p in MAIN_CURVES)]
        heading = element("h3", group) if view.stages else ""
        folded = details(f"more curves ({len(more)})", gallery(more)) if more else ""
        parts.append(join((heading, gallery(main), folded)))
    return join(parts)


def success(evaluations: Mapping[str, Sequence[EpisodeResult]]) -> Markup:
    """Success by length of the shortest path, and what the solved episodes cost."""
    if not any(evaluations.values()):
        return Markup("")
    headers = (
        "", "start states", "success", "within 2 chains", "chains", "actions", "actions / shortest",
    )  # fmt: skip
    rows = [(name, *_success_row(episodes)) for name, episodes in evaluations.items()]
    note = element(
        "p", "Chains, actions and their ratio to the shortest path are those of solved episodes.",
        class_="muted",
    )  # fmt: skip
    bars = {name: by_distance(episodes) for name, episodes in evaluations.items()}
    if not any(bars.values()):
        return join((table(headers, rows), note))
    chart = plots.bar_chart("success rate", bars, "shortest path, in actions")
    return join((table(headers, rows), note, chart))


def by_distance(episodes: Sequence[EpisodeResult]) -> dict[int, tuple[float, int]]:
    """Shortest path in actions → (success rate, number of episodes)."""
    outcomes: dict[int, list[bool]] = {}
    for episode in episodes:
        if episode.shortest is not None:
            outcomes.setdefault(episode.shortest, []).append(episode.success)
    return {distance: (sum(won) / len(won), len(won)) for distance, won in sorted(outcomes.items())}


def rollouts(
    trajectories: Sequence[Trajectory],
    picture: Picture,
    values: StateValues | None = None,
    answer_values: AnswerValues | None = None,
) -> Markup:
    """Episodes, drawn as their world draws them, with reward, value and advantage of each chain."""
    return join(
        episode_card(trajectory, picture, values, answer_values) for trajectory in trajectories
    )


def episode_card(
    trajectory: Trajectory,
    picture: Picture,
    values: StateValues | None = None,
    answer_values: AnswerValues | None = None,
) -> Markup:
    """One episode: picture, chains, and the transcript to unfold."""
    records = chain_records(trajectory, values, answer_values)
    drawn = value_sections.episode(trajectory, picture, values, answer_values)
    headers = ("", "answer", "reward", "value", "Q", "advantage", "")
    rows = [
        (
            element("b", n + 1, style=f"color:{plots.chain_colour(n)}"),
            element("code", record.text, class_="text"),
            record.reward,
            record.value,
            record.q,
            record.advantage,
            element("span", record.note, class_="bad"),
        )
        for n, record in enumerate(records)
    ]
    answers = table(headers, rows)
    if len(rows) > MAX_ROWS:
        answers = details(f"{len(rows)} answers", answers)
    chains = element("div", _headline(trajectory), answers)
    transcript = details("transcript", element("pre", trajectory), is_open=not drawn)
    body = element("div", drawn, chains, class_="beside")
    return element("div", body, transcript, class_="card")


def pair_table(pairs: Sequence[PreferencePair], num_pairs: int = NUM_PAIRS) -> Markup:
    """Margins of all pairs, and some of the pairs."""
    if not pairs:
        return Markup("")
    margins = [pair.margin for pair in pairs]
    shown = _some(pairs, num_pairs)
    title = f"margins of {len(pairs)} pairs"
    picture = plots.histogram(title, margins, "advantage of chosen less that of rejected")
    headers = ("prompt", "chosen", "rejected", "advantages", "", "margin")
    rows = [
        (
            *(
                element("code", text, class_="text")
                for text in (pair.prompt, pair.chosen, pair.rejected)
            ),
            pair.chosen_value,
            pair.rejected_value,
            pair.margin,
        )
        for pair in shown
    ]
    return join((picture, table(headers, rows)))


def sample_episodes(trajectories: Sequence[Trajectory], count: int) -> list[Trajectory]:
    """Some episodes from everywhere in the list, failures first and at most half of them."""
    failures = [t for t in trajectories if not _succeeded(t)]
    successes = [t for t in trajectories if _succeeded(t)]
    num_failures = min(len(failures), max(count // 2, count - len(successes)))
    return _some(failures, num_failures) + _some(successes, count - num_failures)


def _section(title: str, content: Markup, note: str = "") -> Markup:
    if not content:
        return Markup("")
    return join((element("h2", title), element("p", note, class_="muted") if note else "", content))


def _of(title: str, stage: str) -> str:
    return f"{title} ({stage})" if stage else title


def _subtitle(view: RunView) -> Markup:
    state = "finished" if view.summary is not None else "unfinished"
    commit = view.environment.get("git_commit")
    parts = (state, view.environment.get("device"), f"commit {commit}" if commit else None)
    return element("p", " · ".join(str(part) for part in parts if part), class_="muted")


def _summary(view: RunView) -> Markup:
    return fields(view.summary) if view.summary else Markup("")


def _first(summary: Mapping[str, object] | None, names: Sequence[str]) -> object:
    """The first of some figures that a summary has; None where it has none."""
    return next((summary[name] for name in names if name in (summary or {})), None)


def _stages(stages: Mapping[str, RunView]) -> Markup:
    if not stages:
        return Markup("")
    rows = [
        (
            name,
            "finished" if view.summary is not None else "unfinished",
            _minutes(view),
            "  ·  ".join(f"{key} {_plain_number(value)}" for key, value in view.summary.items())
            if view.summary
            else "",
        )
        for name, view in stages.items()
    ]
    return table(("stage", "state", "minutes", "result"), rows)


def _minutes(view: RunView) -> float | None:
    times = [record["time"] for record in view.metrics if "time" in record]
    return (times[-1] - times[0]) / 60 if times else None


def _plain_number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _settings(view: RunView) -> Markup:
    text = (view.directory / "config.yaml").read_text(encoding="utf-8")
    config = details("config.yaml", element("pre", text))
    if not view.environment:
        return config
    return join((config, details("environment.json", fields(view.environment))))


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
    known = [episode for episode in solved if episode.shortest is not None]
    shortest = sum(episode.shortest for episode in known)
    return (
        len(episodes),
        f"{len(solved) / len(episodes):.1%}",
        f"{sum(episode.num_chains <= 2 for episode in solved) / len(episodes):.1%}",
        float(np.mean([episode.num_chains for episode in solved] or [np.nan])),
        float(np.mean([episode.num_actions for episode in solved] or [np.nan])),
        sum(episode.num_actions for episode in known) / shortest if shortest else np.nan,
    )


def _headline(trajectory: Trajectory) -> Markup:
    solved = _succeeded(trajectory)
    ending = "solved" if solved else "terminated" if trajectory.terminated else "cut off"
    facts = (
        f" · return {trajectory.episode_return:.4g} · seed {trajectory.seed}"
        f" · {trajectory.policy or 'unnamed policy'}"
    )
    return element("p", element("span", ending, class_="good" if solved else "bad"), facts)


def _succeeded(trajectory: Trajectory) -> bool:
    return bool(trajectory.infos[-1].get("success", False))


def _some(items: Sequence[Item], count: int) -> list[Item]:
    """At most `count` items, evenly spread."""
    places = np.linspace(0, len(items) - 1, min(count, len(items)))
    return [items[round(place)] for place in places]
