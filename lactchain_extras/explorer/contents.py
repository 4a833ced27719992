"""All that a page holds of a run, as tables: what is on disk, nothing computed by a model."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lactchain.data.evaluations import StateValues
from lactchain.data.inspections import Inspection
from lactchain.data.preferences import DROP_REASONS
from lactchain.inspection.run_view import RunView, round_of
from lactchain.types import Trajectory
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
    # The run itself without its rounds, whose pairs it might count as its own.
    parts = {"": RunView(view.directory), **view.stages}
    worth = {number: _worth(view, number) for number in dict.fromkeys(map(round_of, parts))}
    # A page of a run under way has to cost little: without critics' episodes, by far the most.
    told = [name for name in parts if view.summary is not None or not name.endswith("/critic")]
    played, num_episodes = chosen_episodes(
        [(name, parts[name], worth[round_of(name)]) for name in told], shown
    )
    of_each = [_worth(run, chosen_round(run)) for run in runs]
    others, some_episodes = episodes_beside(runs, of_each)
    recorded = [recorded_rows(view, states, ways, number) for number in view.inspections]
    answers = [row for rows, _ in recorded for row in rows]
    candidates = [row | {"run": 0} for _, rows in recorded for row in rows]
    said, some_candidates = candidates_beside(runs, states, ways)
    rows = {
        "episodes": (episode_row(episode, states) for episode in (*played, *others)),
        "steps": (
            row
            for episode in (*played, *others)
            for row in step_rows(episode, states, vocabularies[episode.run])
        ),
        "answers": answers or played_rows(view, states, vocabularies[0], worth),
        "candidates": [*candidates, *said],
        "pairs": _pairs(parts, states, ways),
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
    left_out = " ".join(filter(None, (some_episodes, some_candidates)))
    return Contents(tables, [episode.trajectory for episode in played], num_episodes, left_out)


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


def _pairs(parts: Mapping[str, RunView], states: States, ways: Ways) -> Iterator[Row]:
    for name, part in parts.items():
        for number, pair in enumerate(part.pairs):
            after = part.pairs_after.get(number, (None, None))
            place = {"stage": name, "round": round_of(name), "prompt": str(pair.prompt)}
            yield {
                **vars(pair),
                **place,
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
        for row in part.token_values.decisions.to_pylist() if part.token_values else ():
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


def episodes_beside(runs: Sequence[RunView], worth: Sequence[Worth]) -> tuple[list[Played], str]:
    """Episodes of all runs but the first, and what is left out of them, if anything.

    Args:
        worth: by what the completions of each run are valued, in the order of the runs.
    """
    by_state: dict[str, list[Played]] = {}
    for number, (run, values) in enumerate(zip(runs, worth, strict=True)):
        for episode in _evaluated(run, values, number) if number else ():
            by_state.setdefault(key(episode.trajectory.infos[0]["state"]), []).append(episode)
    told: set[str] = set()

    def weighed(episode: Played) -> int:
        return weight(episode.trajectory, told)

    return _differing_first(runs, by_state, weighed, MAX_BYTES_BESIDE, "Episodes")


def candidates_beside(runs: Sequence[RunView], states: States, ways: Ways) -> tuple[list[Row], str]:
    """What all runs but the first might say in the rounds that are their results; as above."""
    by_state: dict[str, list[Row]] = {}
    for number, run in enumerate(runs):
        chosen = chosen_round(run)
        if number == 0 or chosen not in run.inspections:
            continue
        for row in recorded_rows(run, states, ways, chosen)[1]:
            # Its tokens would weigh more than all else.
            beside = row | {"run": number, "tokens": None, "probabilities": None}
            by_state.setdefault(states.rows[row["state"]]["state"], []).append(beside)
    return _differing_first(runs, by_state, lambda _: 1, MAX_CANDIDATES_BESIDE, "Candidates")


def _differing_first(
    runs: Sequence[RunView],
    by_state: Mapping[str, list[Any]],
    weigh: Callable[[Any], int],
    most: int,
    what: str,
) -> tuple[list[Any], str]:
    """All from as many start states as weigh no more than that; what of them is left out."""
    differing, kept, num_states = _differing(runs), [], 0
    for state in sorted(by_state, key=lambda state: -differing[state]):
        most -= sum(map(weigh, by_state[state]))
        if most < 0:
            break
        kept += by_state[state]
        num_states += 1
    if num_states == len(by_state):
        return kept, ""
    return kept, (
        f"{what} of other runs are here from {num_states:,} of {len(by_state):,} start states, "
        "those that end differently first; the table counts all."
    )


def _evaluated(run: RunView, worth: Worth, number: int) -> Iterator[Played]:
    """The episodes of a run's result, from states that are known."""
    chosen = chosen_round(run)
    stage = "" if chosen is None else f"round_{chosen}/evaluation"
    part = run.parts.get(stage)
    is_evaluated = part is not None and "after" in part.episodes
    for place, trajectory in enumerate(part.trajectories if is_evaluated else ()):
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
