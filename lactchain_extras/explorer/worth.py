"""What the completions of an episode are worth, by the values of states that a run has kept."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from lactchain.data.evaluations import CompletionValues, StateValues
from lactchain.data.preferences import chain_advantages
from lactchain.environments.views import State
from lactchain.types import Trajectory

Known = float | None


class Worth:
    """Values of states: by a critic, or by a value model; of neither, all is unknown.

    A critic tells what a completion was worth by what followed, a value model by the completion
    alone.
    """

    def __init__(
        self, critic: StateValues | None = None, told: CompletionValues | None = None
    ) -> None:
        self._critic, self._values, self._rows, self._places = critic, {}, {}, {}
        if told is not None:
            self._values = _by_state(told.states, told.values)
            self._rows = _by_state(told.states, told.advantages)
            self._places = {text.rstrip("\n"): n for n, text in enumerate(told.completions)}
        elif critic is not None:
            self._values = _by_state(critic.states, critic.critic)

    def of(self, trajectory: Trajectory) -> list[tuple[Known, Known]]:
        """Of each completion the value of the state before, and its advantage, as far as known."""
        if not self._values:
            return [(None, None)] * len(trajectory)
        keys = [key(info.get("state")) for info in trajectory.infos]
        worth = list(map(self._values.get, keys))
        found = self._promised(trajectory, keys) if self._rows else self._earned(trajectory, worth)
        return list(zip(worth[:-1], found, strict=True))

    def _promised(self, trajectory: Trajectory, keys: Sequence[str]) -> Iterator[Known]:
        """Advantages by the completions alone."""
        for action, state in zip(trajectory.actions, keys[:-1], strict=True):
            row, place = self._rows.get(state), self._places.get(action.text.rstrip("\n"))
            yield None if row is None or place is None else row[place]

    def _earned(self, trajectory: Trajectory, worth: Sequence[Known]) -> Iterator[Known]:
        """Advantages by the rewards and what followed."""
        gamma, per = self._critic.gamma, self._critic.discount_per
        rewards = trajectory.chain_rewards(gamma, per)
        after = [*worth[1:-1], 0.0 if trajectory.terminated else worth[-1]]
        for told in zip(rewards, trajectory.num_actions, worth[:-1], after, strict=True):
            is_known = None not in told
            yield float(chain_advantages(*told, False, gamma, per)) if is_known else None


def key(state: State | None) -> str:
    """What a state is known by: its JSON text, the fields in the order of the alphabet."""
    return json.dumps(state, sort_keys=True)


def _by_state(states: Sequence[State], entries: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(map(key, states), entries, strict=True))
