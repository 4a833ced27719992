"""What the actor answers to start states, round by round, what else it might say, where that leads.

A pipeline records that (`lactchain.data.inspections`). Of a run that has no such record there are
the first completions of its evaluations' episodes.
"""

import json
import math
from collections.abc import Iterator, Mapping
from functools import cache, cached_property

from lactchain.data.evaluations import EpisodeResult
from lactchain.data.figures import success_figures
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State
from lactchain.inspection.run_view import RunView, round_of
from lactchain.types import Trajectory
from lactchain_extras.explorer.rollout_tables import States, Vocabulary, completion_row
from lactchain_extras.explorer.tables import Row
from lactchain_extras.explorer.worth import Worth, key

Way = list[list[int]]


class Ways:
    """Where a world's exact model says that completions lead; unknown with dice or no picture."""

    def __init__(self, env: LanguageEnv | None) -> None:
        self._env, self._known = env, cache(self._follow)

    def way(self, state: State, completion: str) -> Way | None:
        """The positions that the actions of a completion lead to, in order; None if unknown."""
        return None if self._model is None else self._known(key(state), completion)

    def _follow(self, state: str, completion: str) -> Way | None:
        try:
            number = int(self._model.non_terminal[self._model.row(json.loads(state))])
        except (AttributeError, KeyError, TypeError, ValueError):  # no state of this world
            return None
        way = []
        for action in getattr(self._env.extractor.parse(completion), "actions", ()):
            number = int(self._model.next_state[number, action, 0])
            scene = self._env.view.picture.look(self._model.states[number])
            if scene is None or scene.agent is None:
                return None
            way.append(list(scene.agent))
            if self._model.terminal[number]:
                break
        return way

    @cached_property
    def _model(self):
        view = None if self._env is None else self._env.view
        if view is None or view.picture is None or view.model is None:
            return None
        model = view.model(self._env.env)
        return model if model.deterministic else None


def recorded_rows(view: RunView, states: States, ways: Ways) -> tuple[list[Row], list[Row]]:
    """Answers and candidates that a pipeline has recorded."""
    answers, candidates = [], []
    for number, inspection in view.inspections.items():
        numbers: dict[int, int] = {}
        for row in inspection.answers.to_pylist():
            state = json.loads(row["state"])
            numbers[row["state_id"]] = states.number(state)
            earned = {"way": ways.way(state, row["completion"]), "reward": _reward(row, view)}
            answers.append(_recorded(row, number, numbers) | earned)
        candidates += [_recorded(row, number, numbers) for row in inspection.candidates.to_pylist()]
    return answers, candidates


def _recorded(row: Row, number: int, numbers: Mapping[int, int]) -> Row:
    flags = {
        n: int(row[n])
        for n in ("invalid", "success", "chosen", "rejected")
        if row.get(n) is not None
    }
    known = row["probabilities"] or ()
    of_whole = {"probability": math.prod(known)} if known and "probability" not in row else {}
    shown = {"probabilities": [round(p, 3) for p in known]} | of_whole
    return {**row, **flags, **shown, "round": number, "state": numbers.get(row["state_id"])}


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


def played_rows(
    view: RunView, states: States, vocabulary: Vocabulary, worth: Mapping[int | None, Worth]
) -> Iterator[Row]:
    """Answers as the episodes of evaluations begin; one for each start state and round."""
    for name, part in view.parts.items():
        if "after" not in part.episodes:
            continue
        number, results, begun = round_of(name), {}, {}
        for result in part.results.get(None, []):
            results.setdefault(key(result.state), []).append(result)
        for trajectory in filter(len, part.trajectories):
            begun.setdefault(key(trajectory.infos[0].get("state")), trajectory)
        begun.pop(key(None), None)
        for start, trajectory in begun.items():
            state = states.number(trajectory.infos[0]["state"])
            row = _first_answer(trajectory, vocabulary, worth[number])
            outcome = _outcome(trajectory, results.get(start, []))
            yield {**row, **outcome, "round": number, "state": state}


def _first_answer(trajectory: Trajectory, vocabulary: Vocabulary, worth: Worth) -> Row:
    value, advantage = worth.of(trajectory)[0]
    logprobs = trajectory.actions[0].logprobs
    return {
        "probability": math.exp(sum(logprobs)) if logprobs else None,
        **completion_row(trajectory, 0, vocabulary, digits=3),
        "text": trajectory.observations[0],
        "invalid": int(bool(trajectory.infos[1].get("invalid_action"))),
        "return": trajectory.episode_return,
        "value": value,
        "q": None if advantage is None else value + advantage,
        "advantage": advantage,
    }


def _outcome(trajectory: Trajectory, results: list[EpisodeResult]) -> Row:
    """How often episodes from there went well; of one alone, how that went."""
    if not results:
        well = trajectory.infos[-1].get("success")
        well = None if well is None else int(well)
        return {"success": well, "num_actions": sum(trajectory.num_actions)}
    return {
        "success": success_figures(results).get("success_rate"),
        "num_actions": sum(result.num_actions for result in results) / len(results),
        "shortest": results[0].shortest,
    }
