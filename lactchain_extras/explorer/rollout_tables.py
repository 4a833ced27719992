"""Episodes as tables of a page: one row per episode, one per completion, one per state.

Rows refer to each other by number. Of very many episodes a page holds a sample, failures first.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from lactchain.data.figures import loops
from lactchain.environments.views import State
from lactchain.inspection.pictures import Picture
from lactchain.inspection.run_view import RunView, round_of
from lactchain.storage.files import follow
from lactchain.storage.manifests import read_run_file
from lactchain.types import Trajectory
from lactchain_extras.explorer.tables import Row
from lactchain_extras.explorer.worth import Worth, key

MAX_BYTES = 20_000_000
"""What the episodes of a page may weigh, as text; of more there is a sample."""


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
        places = [follow(run_dir / "actor"), run_dir / "base/actor", *([named] if named else [])]
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
