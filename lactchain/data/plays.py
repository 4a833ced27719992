"""What completions are worth on average, where the world throws dice, or a text hides the state.

One play would rank completions by luck. So each is played as often as its rank needs: by sequential
halving (Karnin, Koren, Somekh 2013, "Almost optimal exploration in multi-armed bandits"), for the
best and the worst of a state at once, since these two make the pair. All completions meet the same
dice (common random numbers): their first plays have one seed, their second ones another, and so on.
It draws the state as well, where a text stands for several: all completions are played in the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lactchain.data.episodes import RecordedText, hides
from lactchain.data.rollouts import Rollouts
from lactchain.environments.views import State
from lactchain.functional.random_streams import derive_seed
from lactchain.functional.ties import levelled
from lactchain.types import Action, Trajectory

PLAYS_PER_COMPLETION = 16
"""Plays for a state, over the number of chains among its completions, equal ones included."""

Key = tuple[str, str]
"""What completions are told apart by: the state, and the text."""

Worth = Callable[[Sequence[Trajectory]], np.ndarray]
"""Of B single decisions, what each earned and what it is ranked by (B, 2)."""


class Plays:
    """Completions to states, and what came out of them.

    Equal completions to equal states share their plays. What is no chain does nothing, and is
    played once.

    Args:
        states, actions: B states, and a completion to each.
        seed: of the first plays; those of the others follow from it.

    Attributes:
        first: what came out of the first play of each of the B.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        states: Sequence[State | RecordedText],
        actions: Sequence[Action],
        seed: int,
    ) -> None:
        self.rollouts, self.states, self.actions, self.seed = rollouts, states, actions, seed
        self.first = rollouts.outcomes(states, actions, seed)
        self._keys = [(str(s), action.text) for s, action in zip(states, actions, strict=True)]
        self._decisions = dict(zip(self._keys, zip(states, actions, strict=True), strict=True))
        self._counts = Counter(dict.fromkeys(self._keys, 1))
        self._latest = list(dict(zip(self._keys, self.first, strict=True)).items())
        self._chains = {
            key: None for key, one in self._latest if not one.infos[1]["invalid_action"]
        }

    def throw_dice(self) -> bool:
        """Whether chance has a part: by the exact model, or else by a second play of each.

        What a text hides is chance for who reads it.
        """
        if any(map(hides, self.states)):
            return True
        if self.rollouts.deterministic is not None:
            return not self.rollouts.deterministic
        first, second = dict(self._latest), self._play(dict.fromkeys(self._chains, 1))
        self._latest += second
        return any(_differ(first[key], outcome) for key, outcome in second)

    def means(self, num_candidates: int, worth: Worth) -> np.ndarray:
        """Mean earnings and scores (B, 2) over all plays of each completion.

        Args:
            num_candidates: K; so many completions in a row are to one state.
        """
        starts = range(0, len(self._keys), num_candidates)
        of_states = [self._keys[i : i + num_candidates] for i in starts]
        contests = [
            _Contest.of([key for key in keys if key in self._chains])
            for keys in of_states
            if not self._is_certain(keys[0])
        ]
        sums = dict.fromkeys(self._counts, np.zeros(2))
        self._add(sums, worth)
        while going := [contest for contest in contests if contest.open]:
            wanted: Counter[Key] = Counter()
            for contest in going:
                wanted |= contest.plays_wanted()  # the greater number of each
            self._latest = self._play(wanted)
            self._add(sums, worth)
            scores = {key: sums[key][1] / self._counts[key] for key in wanted}
            for contest in going:
                contest.halve(scores)
        return np.array([sums[key] / self._counts[key] for key in self._keys])

    def _is_certain(self, key: Key) -> bool:
        """Whether one play of a decision tells all."""
        state, _ = self._decisions[key]
        return bool(self.rollouts.deterministic) and not hides(state)

    def _add(self, sums: dict[Key, np.ndarray], worth: Worth) -> None:
        """Adds what the latest plays were worth."""
        values = worth([outcome for _, outcome in self._latest])
        for (key, _), value in zip(self._latest, values, strict=True):
            sums[key] = sums[key] + value

    def _play(self, wanted: Mapping[Key, int]) -> list[tuple[Key, Trajectory]]:
        """So many more plays of each."""
        rows = [(key, self._counts[key] + i) for key, count in wanted.items() for i in range(count)]
        seeds = [derive_seed(self.seed, "play", number) for _, number in rows]
        decisions = [self._decisions[key] for key, _ in rows]
        outcomes = self.rollouts.plays(
            (*decision, seed) for decision, seed in zip(decisions, seeds, strict=True)
        )
        played = [(key, outcome) for (key, _), outcome in zip(rows, outcomes, strict=True)]
        self._counts.update(wanted)
        self.rollouts.tally["num_replayed_actions"] += sum(
            len(outcome.infos[1]["executed"]) for _, outcome in played
        )
        return played


@dataclass
class _Contest:
    """The different completions to a state that may still be the best of them, or the worst."""

    best: list[Key]
    worst: list[Key]
    plays_per_round: int

    @classmethod
    def of(cls, completions: Sequence[Key]) -> _Contest:
        different = list(dict.fromkeys(completions))
        num_rounds = math.ceil(math.log2(max(2, len(different))))
        return cls(different, different, PLAYS_PER_COMPLETION * len(completions) // num_rounds)

    @property
    def open(self) -> bool:
        return len(self.best) > 1

    def plays_wanted(self) -> Counter[Key]:
        """How often each that is left is to be played in the next round: all equally often."""
        left = dict.fromkeys(self.best + self.worst)
        return Counter(dict.fromkeys(left, max(1, self.plays_per_round // len(left))))

    def halve(self, scores: Mapping[Key, float]) -> None:
        half = math.ceil(len(self.best) / 2)
        left = dict.fromkeys(self.best + self.worst)
        level = dict(zip(left, levelled(np.array([scores[key] for key in left])), strict=True))
        self.best = sorted(self.best, key=lambda key: (-level[key], len(key[1])))[:half]
        self.worst = sorted(self.worst, key=lambda key: (level[key], -len(key[1])))[:half]


def _differ(one: Trajectory, other: Trajectory) -> bool:
    return (one.observations, one.rewards, one.terminated) != (
        other.observations,
        other.rewards,
        other.terminated,
    )
