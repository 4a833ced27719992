"""All that a page holds of a run, as tables: what is on disk, nothing computed by a model."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lactchain.data.evaluations import StateValues
from lactchain.data.preferences import DROP_REASONS
from lactchain.inspection.run_view import RunView, round_of
from lactchain.types import Trajectory
from lactchain_extras.explorer.inspections import Inspection, token_values
from lactchain_extras.explorer.rollout_tables import (
    Played,
    States,
    Vocabulary,
    Ways,
    Worth,
    chosen_episodes,
    episode_row,
    key,
    played_rows,
    recorded_rows,
    step_rows,
    weight,
)
from lactchain_extras.explorer.summary import chosen_round
from lactchain_extras.explorer.tables import Columns, Row, as_columns

MAX_BYTES_BESIDE = 6_000_000
"""What episodes of other runs may weigh, as text."""
MAX_CANDIDATES_BESIDE = 150_000
"""How many candidates of other runs a page may hold."""
MAX_PAIRS_BESIDE = 60_000
"""How many preference pairs of other runs a page may hold."""
MAX_RUNS_BY_ROUND = 5
"""Of more runs a page holds what was played and said in the rounds that are their results alone."""


Groups = dict[tuple[bool, str], list[Any]]
"""What is here of a start state (its JSON), of rounds that are results, and of others (False)."""


@dataclass(frozen=True)
class Contents:
    """The tables of a page by name; its episodes, one for each row; how many the run has.

    Behind them come some of other runs; `left_out` says which of these are not there.
    """

    tables: Mapping[str, Columns]
    trajectories: Sequence[Trajectory]
    num_episodes: int
    left_out: str = ""

    def row_of(self, trajectory: Trajectory) -> int | None:
        """The row of an episode; None where it is not in the sample."""
        rows = (n for n, other in enumerate(self.trajectories) if other is trajectory)
        return next(rows, None)


def contents(
    view: RunView, beside: Sequence[RunView] = (), shown: Iterable[Trajectory] = ()
) -> Contents:
    """What a run folder holds, the episodes `shown` in any case; curves and results of others."""
    states, ways, runs = States(view.picture), Ways(view.env), [view, *beside]
    vocabularies = [Vocabulary(run.directory) for run in runs]
    parts = _parts(view)
    worth = {number: _worth(view, number) for number in dict.fromkeys(map(round_of, parts))}
    # A page of a run under way has to cost little: without critics' episodes, by far the most.
    told = [name for name in parts if view.summary is not None or not name.endswith("/critic")]
    played, num_episodes = chosen_episodes(
        [(name, parts[name], worth[round_of(name)]) for name in told], shown
    )
    others, some_episodes = episodes_beside(runs)
    recorded = [recorded_rows(view, states, ways, number) for number in view.inspections]
    answers = [row for rows, _ in recorded for row in rows]
    candidates = [row | {"run": 0} for _, rows in recorded for row in rows]
    said, some_candidates = candidates_beside(runs, states, ways)
    taught, some_pairs = pairs_beside(runs, states, ways)
    rows = {
        "episodes": (episode_row(episode, states) for episode in (*played, *others)),
        "steps": (
            row
            for episode in (*played, *others)
            for row in step_rows(episode, states, vocabularies[episode.run])
        ),
        "answers": answers or played_rows(view, states, vocabularies[0], worth),
        "candidates": [*candidates, *said],
        "pairs": [*_pairs(view, states, ways), *taught],
        "dropped": _dropped(parts),
        "results": _results(runs, states),
        "values": _values(parts, states),
        "tokens": _valued_tokens(parts, states),
        "curves": _curves(runs),
        "stages": _stages(runs),
        "members": _members(view),
        "states": states.rows,  # last: the others have told which there are
    }
    tables = {name: as_columns(name, those) for name, those in rows.items()}
    left_out = " ".join(filter(None, (some_episodes, some_candidates, some_pairs)))
    return Contents(tables, [episode.trajectory for episode in played], num_episodes, left_out)


def _parts(view: RunView) -> dict[str, RunView]:
    """A run and its stages; itself without its rounds, whose pairs it might count as its own."""
    return {"": RunView(view.directory), **view.stages}


def _worth(view: RunView, number: int | None) -> Worth:
    """By what completions of a round are valued: its critic; without a round, the newest values.

    The values that a round has recorded come before those of the critic's own stage.
    """
    if number is None:
        return Worth(view.newest("values"))
    recorded = _recorded(view.inspections[number]) if number in view.inspections else None
    critic = view.stages.get(f"round_{number}/critic")
    return Worth(recorded or (critic.values if critic else None))


def _recorded(inspection: Inspection) -> StateValues | None:
    """The values of start states by a round's critic; None where the round had none."""
    rows = [row for row in inspection.answers.to_pylist() if row["value"] is not None]
    states = tuple(json.loads(row["state"]) for row in rows)
    units = inspection.meta["gamma"], inspection.meta["discount_per"]
    return StateValues(states, tuple(row["value"] for row in rows), None, *units) if rows else None


def _pairs(view: RunView, states: States, ways: Ways, number_of_run: int = 0) -> Iterator[Row]:
    for name, part in _parts(view).items():
        by_return = all(pair.chosen_value == pair.chosen_return for pair in part.pairs)
        for number, pair in enumerate(part.pairs):
            after = part.pairs_after.get(number, (None, None))
            yield {
                **vars(pair),
                "run": number_of_run,
                "stage": name,
                "round": round_of(name),
                "prompt": str(pair.prompt),
                "margin": pair.margin,
                "chosen_advantage": None if by_return else pair.chosen_value,
                "rejected_advantage": None if by_return else pair.rejected_value,
                "state": states.number(pair.state or None),
                "chosen_way": ways.way(pair.state, pair.chosen),
                "rejected_way": ways.way(pair.state, pair.rejected),
                "chosen_logprob": sum(pair.chosen_logprobs) if pair.chosen_logprobs else None,
                "rejected_logprob": sum(pair.rejected_logprobs) if pair.rejected_logprobs else None,
                "chosen_after": after[0],
                "rejected_after": after[1],
            }


def _dropped(parts: Mapping[str, RunView]) -> Iterator[Row]:
    for name, part in parts.items():
        for reason in DROP_REASONS:
            if count := (part.summary or {}).get(f"pairs/dropped_{reason}"):
                yield {"stage": name, "round": round_of(name), "reason": reason, "count": count}


def _results(runs: Sequence[RunView], states: States) -> Iterator[Row]:
    for number, run in enumerate(runs):
        for round_number, results in run.results.items():
            for result in results:
                row = vars(result) | {"run": number, "round": round_number}
                well = None if result.success is None else int(result.success)
                yield row | {"state": states.number(result.state), "success": well}


def _values(parts: Mapping[str, RunView], states: States) -> Iterator[Row]:
    """Each stage's own values; those of a pipeline itself are copies of the first round's."""
    own = {name: part.values for name, part in parts.items() if part.values is not None}
    if any(round_of(name) is not None for name in own):
        own.pop("", None)
    for name, held in own.items():
        exact = held.exact or [None] * len(held.states)
        for state, value, judged in zip(held.states, held.critic, exact, strict=True):
            place = {"round": round_of(name), "state": states.number(state)}
            yield place | {"value": value, "policy_value": judged}


def _valued_tokens(parts: Mapping[str, RunView], states: States) -> Iterator[Row]:
    for name, part in parts.items():
        valued = token_values(part)
        for row in valued.decisions.to_pylist() if valued else ():
            state = None if row["state"] is None else json.loads(row["state"])
            yield row | {"stage": name, "state": states.number(state)}


def _curves(runs: Sequence[RunView]) -> Iterator[Row]:
    for number, run in enumerate(runs):
        for name, part in run.parts.items():
            for metric, (steps, values) in part.curves().items():
                place = {"run": number, "stage": name, "key": metric}
                yield place | {"steps": steps, "values": values}


def _stages(runs: Sequence[RunView]) -> Iterator[Row]:
    for number, run in enumerate(runs):
        for name, part in run.parts.items():
            facts = {"state": part.state, "minutes": part.minutes}
            yield {"run": number, "stage": name, **facts, "summary": json.dumps(part.figures)}


def _members(view: RunView) -> Iterator[Row]:
    """Members of an evolution."""
    for line in view.lineage:
        genes = (line.get("tunables") or {}) | {k: line[k] for k in ("hidden",) if k in line}
        change = {name: list(ends) for name, ends in (line.get("change") or {}).items()}
        yield line | {"change": json.dumps(change), "tunables": json.dumps(genes)}


# --- other runs ----------------------------------------------------------------------------------


def episodes_beside(runs: Sequence[RunView]) -> tuple[list[Played], str]:
    """Episodes of all runs but the first, and what is left out of them, if anything."""
    groups: Groups = {}
    for number, run in enumerate(runs[1:], 1):
        for name, part in run.parts.items():
            of_result = round_of(name) == chosen_round(run)
            if "after" not in part.episodes or not (of_result or len(runs) <= MAX_RUNS_BY_ROUND):
                continue
            for episode in _evaluated(run, name, number):
                state = key(episode.trajectory.infos[0]["state"])
                groups.setdefault((of_result, state), []).append(episode)
    told: set[str] = set()

    def weighed(episode: Played) -> int:
        return weight(episode.trajectory, told)

    return _differing_first(runs, groups, MAX_BYTES_BESIDE, "Episodes", weighed)


def candidates_beside(runs: Sequence[RunView], states: States, ways: Ways) -> tuple[list[Row], str]:
    """What all runs but the first might say; as above."""
    groups: Groups = {}
    for number, run in enumerate(runs[1:], 1):
        chosen = chosen_round(run)
        rounds = (
            run.inspections if len(runs) <= MAX_RUNS_BY_ROUND else {chosen} & {*run.inspections}
        )
        for said_in in rounds:
            for row in recorded_rows(run, states, ways, said_in)[1]:
                # Its tokens would weigh more than all else.
                beside = row | {"run": number, "tokens": None, "probabilities": None}
                place = said_in == chosen, states.rows[row["state"]]["state"]
                groups.setdefault(place, []).append(beside)
    return _differing_first(runs, groups, MAX_CANDIDATES_BESIDE, "Candidates")


def pairs_beside(runs: Sequence[RunView], states: States, ways: Ways) -> tuple[list[Row], str]:
    """The pairs that taught all runs but the first, of states that are known; as above."""
    groups: Groups = {}
    for number, run in enumerate(runs[1:], 1):
        for row in _pairs(run, states, ways, number):
            if row["state"] is not None:
                groups.setdefault((True, states.rows[row["state"]]["state"]), []).append(row)
    return _differing_first(runs, groups, MAX_PAIRS_BESIDE, "Pairs")


def _differing_first(
    runs: Sequence[RunView],
    groups: Groups,
    most: int,
    what: str,
    weigh: Callable[[Any], int] = lambda _: 1,
) -> tuple[list[Any], str]:
    """All of as many groups as weigh no more than that; what of them is left out."""
    differing, kept, held = _differing(runs), [], Counter()
    for group in sorted(groups, key=lambda group: (not group[0], -differing[group[1]])):
        most -= sum(map(weigh, groups[group]))
        if most < 0:
            break
        kept += groups[group]
        held[group[0]] += 1
    found = Counter(of_result for of_result, _ in groups)
    if held == found:
        return kept, ""
    parts = [
        f"{held[of_result]:,} of {count:,} start states{'' if of_result else ' in other rounds'}"
        for of_result, count in sorted(found.items(), reverse=True)
    ]
    return kept, (
        f"{what} of other runs are here from {' and '.join(parts)}, those that end differently "
        "first; the table counts all."
    )


def _evaluated(run: RunView, stage: str, number: int) -> Iterator[Played]:
    """The episodes of an evaluation, from states that are known."""
    worth = _worth(run, round_of(stage))
    for place, trajectory in enumerate(run.parts[stage].trajectories):
        if len(trajectory) and trajectory.infos[0].get("state") is not None:
            yield Played(stage, place, trajectory, worth, number)


def _differing(runs: Sequence[RunView]) -> Counter[str]:
    """In how many runs an episode from a start state ends otherwise than in the first."""
    ends = [
        {key(result.state): result.success for result in run.results.get(chosen_round(run), ())}
        for run in runs
    ]
    first, *others = ends or [{}]
    return Counter(
        state
        for other in others
        for state, success in other.items()
        if success != first.get(state, success)
    )
