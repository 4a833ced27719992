"""Which episodes to play: their seeds, where they start, in which part of the world they stay."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np

from lactchain.data.shards import derive_seed
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State
from lactchain.errors import ConfigError

Thing = TypeVar("Thing")

Region = Mapping[str, Sequence[int]]
"""A part of the world: least and greatest value of some fields of its states, both included."""


@dataclass(frozen=True)
class Episode:
    """An episode to play.

    Attributes:
        seed: of the environment, and of the policy's draws.
        state: where it starts; None: where the environment starts it.
        region: where it takes place: it is cut when it leaves. None: everywhere.
    """

    seed: int
    state: State | None = None
    region: Region | None = None


def inside(state: State, region: Region) -> bool:
    """Whether a state lies in a region."""
    return all(low <= state[name] <= high for name, (low, high) in region.items())


def sampled_episodes(env: LanguageEnv, num_episodes: int, seed: int) -> list[Episode]:
    """Episodes whose starts go round all states in which one can begin, in an order by the seed.

    An environment whose view does not list its states starts episodes itself.
    """
    seeds = (derive_seed(seed, "episode", i) for i in range(num_episodes))
    if env.view.states is None:
        return [Episode(s) for s in seeds]
    return [
        Episode(s, state)
        for s, state in zip(seeds, go_round(env.start_states(), num_episodes, seed), strict=True)
    ]


def region_episodes(
    env: LanguageEnv, regions: Sequence[Region], count: int, seed: int
) -> list[Episode]:
    """Episodes whose starts go round the states of all regions; `ConfigError` if one has none."""
    places, states = [], env.view_states()
    known = {name for name, value in states[0].items() if isinstance(value, int)}
    for number, region in enumerate(regions):
        if unknown := set(region) - known:
            raise ConfigError(
                f"behavior.regions: number {number}: expected fields of {sorted(known)}, got "
                f"{sorted(unknown)}"
            )
        found = [(state, region) for state in states if inside(state, region)]
        if not found:
            raise ConfigError(f"behavior.regions: number {number}: no state lies in {region}")
        places += found
    return [
        Episode(derive_seed(seed, "episode", i), state, region)
        for i, (state, region) in enumerate(go_round(places, count, seed))
    ]


def sampled_states(env: LanguageEnv, count: int, seed: int) -> list[State]:
    """Start states, uniform over the state space: each as often as any other, to within one."""
    return go_round(env.view_states(), count, seed)


def go_round(things: Sequence[Thing], count: int, seed: int) -> list[Thing]:
    """Draws that take each thing as often as any other, to within one, in ever new orders."""
    generator = np.random.default_rng([seed])

    def rounds() -> Iterator[Thing]:
        while True:
            yield from (things[i] for i in generator.permutation(len(things)))

    return list(islice(rounds(), count))


def all_episodes(env: LanguageEnv, seed: int, num_per_start: int = 1) -> list[Episode]:
    """Episodes from every state in which one can begin, each with a seed of its own."""
    return [
        Episode(derive_seed(seed, "evaluation", i), state)
        for i, state in enumerate(env.start_states() * num_per_start)
    ]
