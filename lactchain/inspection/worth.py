"""What the completions of an episode are worth, by the values of states that a run has kept."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from lactchain.data.evaluations import CompletionValues, StateValues
from lactchain.data.preferences import chain_advantages
from lactchain.environments.views import State
from lactchain.types import Trajectory


@dataclass(frozen=True)
class ChainRecord:
    """One chain of an episode as people look at it.

    Attributes:
        text: the completion.
        reward: undiscounted reward of the chain.
        value: the critic's value of the state before; None where it is unknown.
        advantage: reward and what followed, or what the completion promised, less that value; None
            where it is unknown.
        note: what went wrong (bumps, why the completion was rejected), or empty.
    """

    text: str
    reward: float
    value: float | None
    advantage: float | None
    note: str

    @property
    def q(self) -> float | None:
        """What the completion is worth in the state before; None where it is unknown."""
        return None if self.advantage is None else self.value + self.advantage


class Worth:
    """Values of states: by a critic, or by a value model; of neither, all is unknown.

    A critic tells what a completion was worth by what followed, a value model by the completion
    alone.
    """

    def __init__(
        self, values: StateValues | None = None, told: CompletionValues | None = None
    ) -> None:
        self._critic, self._values, self._rows = values, {}, {}
        self._key = Keys()
        self._places: dict[str, int] = {}
        if told is not None:
            self._values = _by_state(told.states, told.values)
            self._rows = _by_state(told.states, told.advantages)
            self._places = {text.rstrip("\n"): n for n, text in enumerate(told.completions)}
        elif values is not None:
            self._values = _by_state(values.states, values.critic)

    def records(self, trajectory: Trajectory) -> list[ChainRecord]:
        """The chains of an episode, and what each is worth where the state is known."""
        known = self._values and trajectory.infos
        keys = [self._key(info.get("state")) for info in known or ()]
        worth = list(map(self._values.get, keys)) or [None] * (len(trajectory) + 1)
        if self._rows:
            advantages = self._promised(trajectory, keys)
        else:
            advantages = self._earned(trajectory, worth)
        notes = map(_note, trajectory.infos[1:])
        said = [action.text for action in trajectory.actions]
        columns = zip(said, trajectory.rewards, worth[:-1], advantages, notes, strict=True)
        return list(starmap(ChainRecord, columns))

    def _promised(self, trajectory: Trajectory, keys: Sequence[str]) -> list[float | None]:
        """The advantage of each completion of an episode, by the completion alone."""
        said = (self._places.get(action.text.rstrip("\n")) for action in trajectory.actions)
        rows = map(self._rows.get, keys)
        return [
            None if row is None or place is None else row[place]
            for row, place in zip(rows, said, strict=False)
        ]

    def _earned(self, trajectory: Trajectory, worth: Sequence[float | None]) -> list[float | None]:
        """The advantage of each completion of an episode, by what followed."""
        if self._critic is None:
            return [None] * len(trajectory)
        gamma, discount_per = self._critic.gamma, self._critic.discount_per
        rewards = trajectory.chain_rewards(gamma, discount_per)
        after = [*worth[1:-1], 0.0 if trajectory.terminated else worth[-1]]
        return [
            None
            if None in (value, next_value)
            else float(chain_advantages(r, k, value, next_value, False, gamma, discount_per))
            for r, k, value, next_value in zip(
                rewards, trajectory.num_actions, worth[:-1], after, strict=True
            )
        ]


class Keys:
    """What states are known by: JSON, made once of each, since episodes come by them often."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __call__(self, state: State | None) -> str:
        """The JSON text of a state, its fields in the order of the alphabet."""
        told = repr(state)
        if told not in self._known:
            self._known[told] = key(state)
        return self._known[told]


def key(state: State | None) -> str:
    """What a state is known by."""
    return json.dumps(state, sort_keys=True)


def _by_state(states: Sequence[State], entries: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(map(key, states), entries, strict=True))


def _note(info: Mapping[str, Any]) -> str:
    bumps = sum(info.get("bumped", ()))
    rejected = f"not a chain: {info.get('invalid_reason')}" if info.get("invalid_action") else ""
    return rejected or (f"{bumps} bump{'s' if bumps > 1 else ''}" if bumps else "")
