"""All that a page holds of runs, as tables: what is on disk, nothing computed by a model.

Rows refer to each other by number, see `tables.COLUMNS`. Of other runs there is what has room,
start states that ended differently first.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

from lactchain.data.preferences import DROP_REASONS
from lactchain.inspection.run_view import RunView, round_of
from lactchain.types import Trajectory
from lactchain_extras.explorer.inspections import Inspection, token_values
from lactchain_extras.explorer.rollout_tables import (
    States,
    Vocabulary,
    Ways,
    episode_row,
    played_in,
    sample,
    step_rows,
    weight,
)
from lactchain_extras.explorer.summary import chosen_round
from lactchain_extras.explorer.tables import Columns, Row, as_columns, key

MAX_BYTES_BESIDE = 12_000_000
"""What episodes, candidates and pairs of other runs may weigh."""
MAX_RUNS_BY_ROUND = 5
"""Of more runs a page holds what was played and said in the rounds that are their results alone."""


@dataclass(frozen=True)
class Contents:
    """The tables of a page by name; its episodes, one for each row; how many the run has.

    Behind them come some of other runs; `left_out` says which of these are not there. `valued` has
    what is said of token values in `Inspection.meta`, by the part that recorded them.
    """

    tables: Mapping[str, Columns]
    trajectories: Sequence[Trajectory]
    num_episodes: int
    left_out: str
    valued: Mapping[str, Any]

    def row_of(self, trajectory: Trajectory) -> int | None:
        """The row of an episode; None where it is not in the sample."""
        rows = (n for n, other in enumerate(self.trajectories) if other is trajectory)
        return next(rows, None)


def contents(
    view: RunView, beside: Sequence[RunView] = (), shown: Iterable[Trajectory] = ()
) -> Contents:
    """What a run folder holds, the episodes `shown` in any case; curves and results of others."""
    states, ways, runs = States(view.picture), Ways(view.env), [view, *beside]
    parts = view.parts
    # A page of a run under way has to cost little: without critics' episodes, by far the most.
    kept = [name for name in parts if view.summary is not None or not name.endswith("/critic")]
    everything = [played for name in kept for played in played_in(parts[name], name)]
    own = sample(everything, set(map(id, shown)))
    others, left_out = of_others(runs, states, ways)
    played = [*own, *others["episodes"]]
    valued = {name: found for name, part in parts.items() if (found := token_values(part))}
    recorded = [recorded_rows(view, number, states, ways) for number in view.inspections]
    rows = {
        "episodes": (episode_row(episode, states) for episode in played),
        "steps": step_rows(played, states, [Vocabulary(run.directory) for run in runs]),
        "answers": (row for answers, _ in recorded for row in answers),
        "candidates": [row for _, sampled in recorded for row in sampled] + others["candidates"],
        "pairs": [*_pairs(view, states, ways), *others["pairs"]],
        "dropped": _dropped(parts),
        "results": _results(runs, states),
        "values": _values(runs, states),
        "tokens": _valued_tokens(valued, states),
        "curves": _curves(runs),
        "stages": _stages(runs),
        "members": _members(view),
        "states": states.rows,  # last: the others have told which there are
    }
    tables = {name: as_columns(name, those) for name, those in rows.items()}
    trajectories = [episode.trajectory for episode in own]
    meta = {name: found.meta for name, found in valued.items()}
    return Contents(tables, trajectories, len(everything), left_out, meta)


def recorded_rows(
    view: RunView, number: int, states: States, ways: Ways
) -> tuple[list[Row], list[Row]]:
    """Answers and candidates that a pipeline has recorded in a round."""
    answers, candidates, places = [], [], {}
    for row in view.inspections[number].answers.to_pylist():
        state, known = json.loads(row["state"]), row["probabilities"]
        places[row["state_id"]] = states.number(state)
        answers.append({
            **row,
            "round": number,
            "state": places[row["state_id"]],
            "probabilities": [round(p, 3) for p in known or ()],
            "probability": math.prod(known) if known else None,
            "reward": _reward(row, view),
            "way": ways.way(state, row["completion"]),
        })  # fmt: skip
    for row in view.inspections[number].candidates.to_pylist():
        shown = [round(p, 3) for p in row["probabilities"] or ()]
        of_round = {"run": 0, "round": number, "state": places.get(row["state_id"])}
        candidates.append({**row, **of_round, "probabilities": shown, "q": row["score"]})
    return answers, candidates


def _reward(row: Row, view: RunView) -> float | None:
    """What an answer earned in all, the cost of a chain in it, as candidates tell it.

    None of an answer that a world took as a text of its own: that was not recorded.
    """
    earned = sum(row["rewards"])
    if row["invalid"]:
        if view.env is None or view.env.view.step_takes_text:
            return None
        earned = view.env.invalid_penalty
    return earned - view.world.get("chain_cost", 0.0)


def _pairs(view: RunView, states: States, ways: Ways, run: int = 0) -> Iterator[Row]:
    for name, part in view.parts.items():
        of_stages = any(stage.pairs for stage in part.stages.values())  # which tell of them
        pairs = [] if of_stages else part.pairs
        by_return = all(pair.chosen_value == pair.chosen_return for pair in pairs)
        for number, pair in enumerate(pairs):
            after = part.pairs_after.get(number, (None, None))
            yield {
                **vars(pair),
                "run": run,
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
                place = {"run": number, "round": round_number, "state": states.number(result.state)}
                yield vars(result) | place


def _values(runs: Sequence[RunView], states: States) -> Iterator[Row]:
    """Of each run what critics were measured on, then what rounds have recorded of start states.

    The values of a pipeline itself are copies of the first round's.
    """
    for number, run in enumerate(runs):
        parts = {name: part.values for name, part in (*run.stages.items(), ("", run))}
        in_rounds = any(values and round_of(name) is not None for name, values in parts.items())
        for name, values in parts.items():
            if values is None or (in_rounds and not name):
                continue
            of_stage = {"run": number, "round": round_of(name), "gamma": values.gamma}
            of_stage["discount_per"] = values.discount_per
            exact = values.exact or [None] * len(values.states)
            for state, value, judged in zip(values.states, values.critic, exact, strict=True):
                known = {"state": states.number(state), "value": value, "policy_value": judged}
                yield of_stage | known
        for round_number, found in run.inspections.items():
            for row in found.answers.to_pylist():
                place = {"run": number, "round": round_number} | found.meta
                state = states.number(json.loads(row["state"]))
                yield place | {"state": state, "value": row["value"]}


def _valued_tokens(valued: Mapping[str, Inspection], states: States) -> Iterator[Row]:
    for name, found in valued.items():
        for row in found.decisions.to_pylist():
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


def of_others(
    runs: Sequence[RunView], states: States, ways: Ways
) -> tuple[dict[str, list[Any]], str]:
    """Episodes, candidates and pairs of all runs but the first, and what of them is left out.

    They come by start state, those of rounds that are results first, and among them states that
    end differently; and as many of these as have room.
    """
    groups: defaultdict[tuple[bool, str], list[tuple[str, Any, int]]] = defaultdict(list)
    texts: set[str] = set()
    for number, run in enumerate(runs[1:], 1):
        for what, round_number, state, row in _rows_by_state(run, number, states, ways):
            of_result = what == "pairs" or round_number == chosen_round(run)
            if of_result or len(runs) <= MAX_RUNS_BY_ROUND:
                bytes_ = weight(row.trajectory, texts) if what == "episodes" else 60
                groups[of_result, state].append((what, row, bytes_))
    differing = _differing(runs)
    order = sorted(groups, key=lambda group: (not group[0], -differing[group[1]]))
    sizes = accumulate(sum(bytes_ for _, _, bytes_ in groups[group]) for group in order)
    held = [group for group, size in zip(order, sizes, strict=True) if size <= MAX_BYTES_BESIDE]
    kept: dict[str, list[Any]] = {"episodes": [], "candidates": [], "pairs": []}
    for what, row, _ in chain.from_iterable(groups[group] for group in held):
        kept[what].append(row)
    if len(held) == len(groups):
        return kept, ""
    shown = Counter(of_result for of_result, _ in held)
    found = Counter(of_result for of_result, _ in groups)
    parts = [
        f"{shown[of_result]:,} of {count:,} start states{'' if of_result else ' in other rounds'}"
        for of_result, count in sorted(found.items(), reverse=True)
    ]
    return kept, (
        f"Episodes, candidates and pairs of other runs are here from {' and '.join(parts)}, those "
        "that end differently first; the table counts all."
    )


def _rows_by_state(
    run: RunView, number: int, states: States, ways: Ways
) -> Iterator[tuple[str, int | None, str, Any]]:
    """What another run has of states that are known: which table's, its round, its state."""
    for name, part in run.parts.items():
        for played in played_in(part, name, number) if "after" in part.episodes else ():
            state = played.trajectory.infos[0].get("state")
            if len(played.trajectory) and state is not None:
                yield "episodes", round_of(name), key(state), played
    for asked_in in run.inspections:
        for row in recorded_rows(run, asked_in, states, ways)[1]:
            # Its tokens would weigh more than all else.
            beside = row | {"run": number, "tokens": None, "probabilities": None}
            yield "candidates", asked_in, states.rows[row["state"]]["state"], beside
    for row in _pairs(run, states, ways, number):
        if row["state"] is not None:
            yield "pairs", row["round"], states.rows[row["state"]]["state"], row


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
