"""Episodes as tables of a page, and what rows refer to: states, tokens, ways.

Of very many episodes a page holds a sample, failures first.
"""

import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from lactchain.data.evaluations import loops
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State
from lactchain.inspection.pictures import Picture
from lactchain.inspection.run_view import RunView, round_of
from lactchain.storage.manifests import read_run_file
from lactchain.types import Trajectory
from lactchain_extras.explorer.summary import succeeded
from lactchain_extras.explorer.tables import Row, key

MAX_BYTES = 20_000_000
"""What the episodes of a page may weigh, as text; of more there is a sample."""

Way = list[list[int]]


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


class Played(NamedTuple):
    """An episode: its stage, its place there, whose it is."""

    stage: str
    number: int
    trajectory: Trajectory
    run: int = 0


def played_in(view: RunView, stage: str, run: int = 0) -> list[Played]:
    """The episodes of a stage."""
    return [Played(stage, number, t, run) for number, t in enumerate(view.trajectories)]


def sample(everything: list[Played], shown: Collection[int]) -> list[Played]:
    """As many as a page may hold, failures first, the others evenly spread; in their order."""
    texts: set[str] = set()
    weights = [weight(played.trajectory, texts) for played in everything]
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


def weight(trajectory: Trajectory, known: set[str]) -> int:
    """About the bytes that an episode adds to a page, which holds each text once."""
    texts = {*trajectory.observations, *(action.text for action in trajectory.actions)} - known
    known |= texts
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
        "terminated": trajectory.terminated,
        "episode_return": trajectory.episode_return,
        "num_steps": len(trajectory),
        "num_actions": sum(trajectory.num_actions),
        "num_invalid": sum(bool(info.get("invalid_action")) for info in infos),
        "num_bumps": sum(sum(info.get("bumped", ())) for info in infos),
        "loop": loops(trajectory),
        "start_state": states.number(infos[0].get("state")),
        "end_state": states.number(infos[-1].get("state")),
        "end_text": trajectory.observations[-1],
    }


def step_rows(
    episodes: Iterable[Played], states: States, vocabularies: Sequence[Vocabulary]
) -> Iterator[Row]:
    """The completions of episodes, and what they did."""
    for played in episodes:
        episode = played.trajectory
        for n, (action, after) in enumerate(zip(episode.actions, episode.infos[1:], strict=True)):
            yield {
                "state": states.number(episode.infos[n].get("state")),
                "prompt": episode.observations[n],
                "completion": action.text,
                "tokens": vocabularies[played.run].tokens(action.token_ids),
                "probabilities": [round(math.exp(logprob), 2) for logprob in action.logprobs],
                "cut": action.stop_reason == "length",
                "executed": after.get("executed", []),
                "rewards": after.get("rewards", []),
                "reward": episode.rewards[n],
                "bumped": after.get("bumped", []),
                "way": after.get("positions", []),
                "invalid": str(after["invalid_reason"]) if after.get("invalid_action") else None,
            }
