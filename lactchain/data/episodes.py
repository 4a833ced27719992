"""Which episodes to play: their seeds, where they start, in which part of the world they stay."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Literal, TypeVar

import numpy as np

from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import HeldBack, State, lists_states
from lactchain.errors import DataError
from lactchain.functional.random_streams import derive_seed
from lactchain.types import Trajectory

Thing = TypeVar("Thing")

StartSample = Literal["reported", "selection"]

Limits = Mapping[str, Sequence[int]]
"""Least and greatest value of some fields of a state, both included."""


@dataclass(frozen=True)
class Region:
    """A part of the world; by default all of it.

    Attributes:
        limits: of its states.
        held_back: states that do not belong to it.
    """

    limits: Limits = field(default_factory=dict)
    held_back: HeldBack = HeldBack()

    def __contains__(self, state: State) -> bool:
        within = all(low <= state[name] <= high for name, (low, high) in self.limits.items())
        return within and state not in self.held_back


@dataclass(frozen=True)
class Episode:
    """An episode to play.

    Attributes:
        seed: of the environment, and of the policy's draws.
        state: where it starts; None: where the environment starts it.
        region: where it takes place: it is cut where it would ask for a completion elsewhere.
        remembered: what was said before, where it goes on in the middle.
    """

    seed: int
    state: State | None = None
    region: Region = Region()
    remembered: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """Those of `LanguageEnv.reset`."""
        if self.state is None:
            return {}
        return {"state": self.state, "remembered": self.remembered}


def sampled_episodes(env: LanguageEnv, num_episodes: int, seed: int) -> list[Episode]:
    """Episodes to learn from: starts go round all that may be practised, in an order by the seed.

    They are cut where they come to a state that is held back. An environment whose view does not
    list its states starts episodes itself, each under a seed of its own.
    """
    region = Region(held_back=env.held_back)
    seeds = (derive_seed(seed, "episode", i) for i in range(num_episodes))
    if not lists_states(env):
        return [Episode(s) for s in seeds]
    practised = [state for state in env.start_states() if state in region]
    starts = go_round(practised, num_episodes, seed)
    return [Episode(s, state, region) for s, state in zip(seeds, starts, strict=True)]


def sampled_states(
    env: LanguageEnv, count: int, seed: int, without: Sequence[State] = ()
) -> list[State]:
    """States to learn in, all but `without` that may be practised, equally often to within one."""
    left_out = {json.dumps(state) for state in without}
    states = [state for state in env.view_states() if state not in env.held_back]
    some = [s for s in states if json.dumps(s) not in left_out] if left_out else states
    return go_round(some, count, seed)


def go_round(things: Sequence[Thing], count: int, seed: int) -> list[Thing]:
    """Draws that take each thing as often as any other, to within one, in ever new orders."""
    generator = np.random.default_rng([seed])

    def rounds() -> Iterator[Thing]:
        while True:
            yield from (things[i] for i in generator.permutation(len(things)))

    return list(islice(rounds(), count))


def sampled_starts(
    env: LanguageEnv, count: int | None, sample: StartSample = "reported"
) -> list[State]:
    """Some states in which an episode can begin, the same in all runs; all of them for None.

    They are drawn by rank of a hash: the first ones are reported of, and rounds are compared by the
    last ones. These are others, while there are twice as many. In both, as many are held back from
    practice as among all, to within one.
    """
    starts = env.start_states()
    if count is None or count >= len(starts):
        return starts
    ranks = np.array([derive_seed(json.dumps(state, sort_keys=True)) for state in starts])
    held = np.array([state in env.held_back for state in starts])
    places = np.empty(len(starts))  # in [0, 1], of each among its like
    for part in (held, ~held):
        places[part] = (ranks[part].argsort().argsort() + 0.5) / max(1, part.sum())
    order = np.argsort(places, kind="stable")
    chosen = order[:count] if sample == "reported" else order[-count:]
    return [starts[i] for i in sorted(chosen)]


def all_episodes(
    env: LanguageEnv, seed: int, num_per_start: int = 1, starts: Sequence[State] | None = None
) -> list[Episode]:
    """Episodes from every state in which one can begin, or `starts`, each with its own seed."""
    starts = env.start_states() if starts is None else [*starts]
    return [
        Episode(derive_seed(seed, "evaluation", i), state)
        for i, state in enumerate(starts * num_per_start)
    ]


@dataclass(frozen=True)
class RecordedText:
    """A text that recorded episodes answered, to ask it again, and where it was read.

    With a history, texts of the middle of an episode read otherwise than those that it begins with.
    And a text may hide a part of the state: in a maze of which one sees the walls around, it stands
    for several cells. What it hides is chance for who reads it, and so a completion to it is worth
    the mean over the states in which it was read.

    Attributes:
        text: what was asked.
        states: those that it stood for, as often as it did.
        remembered: the observations and completions that it consists of.
    """

    text: str
    states: tuple[State, ...]
    remembered: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text

    @cached_property
    def hides_the_state(self) -> bool:
        """Whether it stood for several states."""
        return any(state != self.states[0] for state in self.states)

    def drawn(self, seed: int) -> Episode:
        """An episode that goes on in one of the states, each as often as it was met."""
        state = self.states[seed % len(self.states)]
        return Episode(seed, state, remembered=self.remembered or (self.text,))


def hides(state: State | RecordedText) -> bool:
    """Whether it is a text that stood for several states."""
    return isinstance(state, RecordedText) and state.hides_the_state


def state_of(state: State | RecordedText) -> State:
    """The state, or the first one that a text stood for."""
    return state.states[0] if isinstance(state, RecordedText) else state


def recorded_texts(
    trajectories: Iterable[Trajectory], env: LanguageEnv, after_completion: bool = False
) -> list[RecordedText]:
    """The different texts that were answered in episodes, in the order in which they came.

    With `after_completion` but for what episodes begin with. `DataError` if the episodes do not
    tell the states, or not what was remembered.
    """
    wanted = ["state"] if env.history == 1 else ["state", "remembered"]
    states: dict[str, list[State]] = {}
    remembered: dict[str, tuple[str, ...]] = {}
    for number, trajectory in enumerate(trajectories):
        asked = slice(1 if after_completion else 0, -1)
        for text, info in zip(trajectory.observations[asked], trajectory.infos[asked], strict=True):
            if missing := [name for name in wanted if not info.get(name)]:
                raise DataError(
                    f"trajectories: episode {number}: expected infos with {missing[0]!r}, got"
                    f" {sorted(info)}; play the episodes with this version and this environment"
                )
            states.setdefault(text, []).append(info["state"])
            remembered.setdefault(text, tuple(info.get("remembered", ())))
    return [RecordedText(text, tuple(met), remembered[text]) for text, met in states.items()]
