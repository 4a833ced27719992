"""What a policy was asked in recorded episodes, to ask it the same again.

With a history, texts of the middle of an episode read otherwise than those that it begins with. And
a text may hide a part of the state: in a maze of which one sees the walls around, it stands for
several cells. What it hides is chance for who reads it, and so a completion to it is worth the mean
over the states in which it was read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from lactchain.data.episodes import Episode
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State
from lactchain.errors import DataError
from lactchain.types import Trajectory


@dataclass(frozen=True)
class Question:
    """A text, and where it was read.

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
        return Episode(seed, state, remembered=self.remembered)


def hides(state: State | Question) -> bool:
    """Whether it is a text that stood for several states."""
    return isinstance(state, Question) and state.hides_the_state


def state_of(state: State | Question) -> State:
    """The state, or the first one that a question's text stood for."""
    return state.states[0] if isinstance(state, Question) else state


def questions_asked(
    trajectories: Iterable[Trajectory], env: LanguageEnv, after_completion: bool = False
) -> list[Question]:
    """The different texts that were answered in episodes, in the order in which they came.

    Args:
        after_completion: leave out what episodes begin with.

    Raises:
        DataError: the episodes do not tell the states, or not what was remembered.
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
    return [Question(text, tuple(met), remembered[text]) for text, met in states.items()]
