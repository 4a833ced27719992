"""Episodes as tables of a page: one row per episode, one per completion, one per state.

Rows refer to each other by number. Of very many episodes a page holds a sample, failures first.
What the actor answers to start states, and what else it might say, a pipeline records round by
round (`inspections`). Of a run that has no such record there are the first
completions of its evaluations' episodes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lactchain.data.evaluations import EpisodeResult, StateValues, loops
from lactchain.data.preferences import chain_advantages
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State
from lactchain.inspection.pictures import Picture
from lactchain.inspection.run_view import RunView, round_of
from lactchain.storage.manifests import read_run_file
from lactchain.types import Trajectory
from lactchain_extras.explorer.tables import Row

MAX_BYTES = 20_000_000
"""What the episodes of a page may weigh, as text; of more there is a sample."""

_ENCODER = json.JSONEncoder(sort_keys=True)
Way = list[list[int]]
Known = float | None


@dataclass
class States:
    """The states that a page speaks of, each once."""

    picture: Picture | None  # of the world; None where it draws nothing
    rows: list[Row] = field(default_factory=list)  # of each its JSON text, and its scene
    _numbers: dict[str, int] = field(default_factory=dict)

    def number(self, state: State | None) -> int | None:
        """The row of a state; None where there is none."""
        if state is None:
            return None
        text = key(state)
        if text not in self._numbers:
            self._numbers[text] = len(self.rows)
            scene = self.picture.look(state) if self.picture else None
            self.rows.append({"state": text} | (scene._asdict() if scene else {}))
        return self._numbers[text]


class Vocabulary:
    """Token ids as text, by the tokenizer in a run's folder: no model is loaded for it."""

    def __init__(self, run_dir: Path) -> None:
        actor = read_run_file(run_dir).get("config", {}).get("actor")
        named = actor.get("model") if isinstance(actor, dict) else None
        places = [run_dir / "actor", run_dir / "base/actor", *([named] if named else [])]
        files = (Path(place) / "tokenizer.json" for place in places)
        self._file = next((file for file in files if file.is_file()), None)
        self._text = cache(self._decoded)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The text of each token; none at all without a tokenizer."""
        return [] if self._file is None else [self._text(number) for number in ids]

    def _decoded(self, number: int) -> str:
        """As it reads within a text: decoders drop the space that a word at the start has."""
        text = self._tokenizer.decode([number], skip_special_tokens=False)
        return text or self._tokenizer.id_to_token(number) or "?"

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self._file))


class Played(NamedTuple):
    """An episode: its stage, its place there, by what its completions are valued, whose it is."""

    stage: str
    number: int
    trajectory: Trajectory
    worth: Worth
    run: int = 0


def chosen_episodes(
    parts: Iterable[tuple[str, RunView, Worth]], shown: Iterable[Trajectory] = ()
) -> tuple[list[Played], int]:
    """The episodes that a page holds, those `shown` among them, and how many there are.

    Stages come by name, with what their completions are valued by.
    """
    everything = [
        Played(stage, number, trajectory, worth)
        for stage, view, worth in parts
        for number, trajectory in enumerate(view.trajectories)
    ]
    return _sample(everything, set(map(id, shown))), len(everything)


def succeeded(trajectory: Trajectory) -> bool:
    """Whether an episode ended well."""
    return bool(trajectory.infos[-1].get("success", False))


def _sample(everything: list[Played], shown: Collection[int]) -> list[Played]:
    """As many as a page may hold, failures first, the others evenly spread; in their order."""
    told: set[str] = set()
    weights = [weight(played.trajectory, told) for played in everything]
    if sum(weights) <= MAX_BYTES:
        return everything
    won = [succeeded(played.trajectory) for played in everything]
    kept = [n for n, played in enumerate(everything) if id(played.trajectory) in shown]
    left = float(MAX_BYTES)
    for ending in (False, True):
        group = [n for n, success in enumerate(won) if success == ending]
        total = sum(weights[n] for n in group)
        step = max(1, math.ceil(total / max(left, 1)))
        kept += group[::step] if left > 0 else []
        left -= total / step
    return [everything[n] for n in sorted(set(kept))]


def weight(trajectory: Trajectory, told: set[str]) -> int:
    """About the bytes that an episode adds to a page, which holds each text once."""
    texts = {*trajectory.observations, *(action.text for action in trajectory.actions)} - told
    told |= texts
    tokens = sum(len(action.logprobs) for action in trajectory.actions)
    return sum(map(len, texts)) + 4 * tokens + 30 * len(trajectory)


def episode_row(played: Played, states: States) -> Row:
    """What an episode was, and how it ended."""
    trajectory, infos = played.trajectory, played.trajectory.infos
    ended = "ended" if trajectory.terminated else "cut off"
    return {
        "run": played.run,
        "stage": played.stage,
        "round": round_of(played.stage),
        "number": played.number,
        "policy": trajectory.policy,
        "outcome": "solved" if succeeded(trajectory) else ended,
        "episode_return": trajectory.episode_return,
        "num_steps": len(trajectory),
        "num_actions": sum(trajectory.num_actions),
        "num_invalid": sum(bool(info.get("invalid_action")) for info in infos),
        "num_bumps": sum(sum(info.get("bumped", ())) for info in infos),
        "loop": int(loops(trajectory)),
        "start_state": states.number(infos[0].get("state")),
        "end_state": states.number(infos[-1].get("state")),
        "end_text": trajectory.observations[-1],
    }


def step_rows(played: Played, states: States, vocabulary: Vocabulary) -> Iterator[Row]:
    """The completions of an episode, and what they did."""
    worth = played.worth.of(played.trajectory)
    for n, (action, known) in enumerate(zip(played.trajectory.actions, worth, strict=True)):
        after = played.trajectory.infos[n + 1]
        value, advantage = (None if v is None else float(f"{v:.4g}") for v in known)
        yield {
            **completion_row(played.trajectory, n, vocabulary, digits=2),
            "state": states.number(played.trajectory.infos[n].get("state")),
            "cut": int(action.stop_reason == "length"),
            "executed": after.get("executed", []),
            "rewards": after.get("rewards", []),
            "bumped": [int(bump) for bump in after.get("bumped", ())],
            "invalid": str(after.get("invalid_reason")) if after.get("invalid_action") else None,
            "value": value,
            "advantage": advantage,
        }


def completion_row(trajectory: Trajectory, n: int, vocabulary: Vocabulary, digits: int) -> Row:
    """What was said, and where it led; probabilities to so many digits."""
    action = trajectory.actions[n]
    return {
        "prompt": trajectory.observations[n],
        "completion": action.text,
        "tokens": vocabulary.tokens(action.token_ids),
        "probabilities": [round(math.exp(logprob), digits) for logprob in action.logprobs],
        "reward": trajectory.rewards[n],
        "way": trajectory.infos[n + 1].get("positions", []),
    }


# --- answers to start states ---------------------------------------------------------------------


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


def recorded_rows(
    view: RunView, states: States, ways: Ways, number: int
) -> tuple[list[Row], list[Row]]:
    """Answers and candidates that a pipeline has recorded in a round."""
    inspection = view.inspections[number]
    answers, numbers = [], {}
    for row in inspection.answers.to_pylist():
        state = json.loads(row["state"])
        numbers[row["state_id"]] = states.number(state)
        earned = {"way": ways.way(state, row["completion"]), "reward": _reward(row, view)}
        answers.append(_recorded(row, number, numbers) | earned)
    candidates = inspection.candidates.to_pylist()
    return answers, [_recorded(row | {"q": row["score"]}, number, numbers) for row in candidates]


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
    """How an episode went, and how far the goal was."""
    well = trajectory.infos[-1].get("success")
    return {
        "success": None if well is None else int(well),
        "num_actions": sum(trajectory.num_actions),
        "shortest": results[0].shortest if results else None,
    }


# --- what completions are worth ------------------------------------------------------------------


class Worth:
    """Values of states by a critic, if there is one: else all is unknown."""

    def __init__(self, critic: StateValues | None = None) -> None:
        self._critic, self._values = critic, {}
        if critic is not None:
            self._values = dict(zip(map(key, critic.states), critic.critic, strict=True))

    def of(self, trajectory: Trajectory) -> list[tuple[Known, Known]]:
        """Of each completion the value of the state before, and its advantage, as far as known."""
        if not self._values:
            return [(None, None)] * len(trajectory)
        worth = [self._values.get(key(info.get("state")), math.nan) for info in trajectory.infos]
        gamma, per = self._critic.gamma, self._critic.discount_per
        advantages = chain_advantages(
            trajectory.chain_rewards(gamma, per),
            np.array(trajectory.num_actions),
            np.array(worth[:-1]),
            np.array([*worth[1:-1], 0.0 if trajectory.terminated else worth[-1]]),
            np.zeros(len(trajectory)),
            gamma,
            per,
        ).tolist()
        known = [[None if math.isnan(v) else v for v in each] for each in (worth[:-1], advantages)]
        return list(zip(*known, strict=True))


def key(state: State | None) -> str:
    """What a state is known by: its JSON text, the fields in the order of the alphabet."""
    return _ENCODER.encode(state)
