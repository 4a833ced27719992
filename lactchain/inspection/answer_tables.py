"""What the actor answers to start states, round by round, and what else it might say.

A pipeline records that (`lactchain.data.inspections`). Of a run that has no such record there are
the first completions of its evaluations' episodes.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lactchain.data.evaluations import EpisodeResult
from lactchain.inspection.rollout_tables import States, Vocabulary, probabilities, succeeded
from lactchain.inspection.run_view import RunView, round_of
from lactchain.inspection.ways import Ways
from lactchain.inspection.worth import Worth, key
from lactchain.types import Trajectory

ANSWER = (
    "round", "state", "text", "completion", "tokens", "probabilities", "reward", "invalid", "way",
    "success", "num_actions", "return", "value", "q", "advantage", "optimal", "policy_value",
    "shortest",
)  # fmt: skip
CANDIDATE = (
    "round", "state", "completion", "tokens", "probabilities", "probability", "count", "reward",
    "score", "invalid", "chosen", "rejected",
)  # fmt: skip
Row = dict[str, Any]


def recorded_rows(view: RunView, states: States, ways: Ways) -> tuple[list[Row], list[Row]]:
    """Answers and candidates that a pipeline has recorded."""
    answers, candidates = [], []
    for number, inspection in view.inspections.items():
        numbers: dict[int, int] = {}
        for row in inspection.answers.to_pylist():
            state = json.loads(row["state"])
            numbers[row["state_id"]] = states.number(state)
            answers.append(_answer(row, number, numbers[row["state_id"]]))
            answers[-1]["way"] = ways.way(state, row["completion"])
            answers[-1]["reward"] = _reward(row, view)
        for row in inspection.candidates.to_pylist():
            candidates.append(_answer(row, number, numbers.get(row["state_id"])))
    return answers, candidates


def _answer(row: Mapping[str, Any], number: int, state: int | None) -> Row:
    flags = {n: int(row[n]) for n in ("invalid", "success", "chosen", "rejected") if n in row}
    known = [round(p, 3) for p in row["probabilities"] or ()]
    return {**row, **flags, "probabilities": known, "round": number, "state": state}


def _reward(row: Mapping[str, Any], view: RunView) -> float | None:
    """What an answer earned in all, the cost of a chain in it, as candidates tell it.

    None of an answer that a world took as a text of its own: that was not recorded.
    """
    cost = view.world.get("chain_cost", 0.0)
    if not row["invalid"]:
        return sum(row["rewards"]) - cost
    if view.env is None or view.env.view.step_takes_text:
        return None
    return view.env.invalid_penalty - cost


def played_rows(
    view: RunView, states: States, vocabulary: Vocabulary, worth_of: Mapping[int | None, Worth]
) -> Iterator[Row]:
    """Answers as the episodes of evaluations begin; one for each start state and round."""
    parts = {"": view, **view.stages}
    evaluations = {
        name: part for name, part in parts.items() if part.trajectories and _is_evaluation(part)
    }
    for name, part in evaluations.items():
        number = round_of(name)
        results = _by_start(part.results.get(None, []))
        begun: dict[str, Trajectory] = {}
        for trajectory in filter(len, part.trajectories):
            begun.setdefault(key(trajectory.infos[0].get("state")), trajectory)
        for start, trajectory in begun.items():
            state = trajectory.infos[0].get("state")
            if state is not None:
                row = _first_answer(trajectory, vocabulary, worth_of.get(number, Worth()))
                yield row | {
                    "round": number,
                    "state": states.number(state),
                    **_outcome(trajectory, results.get(start, [])),
                }


def _is_evaluation(part: RunView) -> bool:
    return "after" in part.episodes


def _by_start(results: list[EpisodeResult]) -> dict[str, list[EpisodeResult]]:
    found: dict[str, list[EpisodeResult]] = {}
    for result in results:
        found.setdefault(key(result.state), []).append(result)
    return found


def _first_answer(trajectory: Trajectory, vocabulary: Vocabulary, worth: Worth) -> Row:
    action, after = trajectory.actions[0], trajectory.infos[1]
    record = worth.records(trajectory)[0]
    return {
        "text": trajectory.observations[0],
        "completion": action.text,
        "tokens": vocabulary.tokens(action.token_ids),
        "probabilities": probabilities(action.logprobs),
        "reward": record.reward,
        "invalid": int(bool(after.get("invalid_action"))),
        "way": after.get("positions", []),
        "return": trajectory.episode_return,
        "value": record.value,
        "q": record.q,
        "advantage": record.advantage,
    }


def _outcome(trajectory: Trajectory, results: list[EpisodeResult]) -> Row:
    """How often episodes from there went well; of one alone, how that went."""
    if not results:
        return {"success": int(succeeded(trajectory)), "num_actions": sum(trajectory.num_actions)}
    return {
        "success": sum(result.success for result in results) / len(results),
        "num_actions": sum(result.num_actions for result in results) / len(results),
        "shortest": results[0].shortest,
    }
