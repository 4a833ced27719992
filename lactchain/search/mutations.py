"""Newcomers and mutants by their numbers: tunables that are drawn, or moved.

A mutation takes a parent, with its config and the state that it has learnt, and gives those of the
mutant, with a word on what changed; where a kind has nothing to change it gives None. Nothing is
changed in place: the parent lives on beside its children. What changes networks is an add-on.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lactchain.config.bounds import Tunable, tunable_values, tunables, with_tunables
from lactchain.errors import ConfigError
from lactchain.search.settings import MutationConfig, SpaceConfig

ATTEMPTS = 20
"""How often a draw is repeated that the config class refuses, such as a batch beyond a rollout."""
Change = Mapping[str, Any]
"""What changed: name → [before, after]."""


class Child(NamedTuple):
    """A new member before it has trained."""

    config: Any
    state: Any
    change: Change


def searched_tunables(config: Any, names: Sequence[str]) -> dict[str, Tunable]:
    """Tunables of these names (none: all), of parts that there are; `ConfigError` for unknown."""
    known, present = tunables(type(config)), tunable_values(config)
    for name in names:
        if name not in known:
            raise ConfigError(f"tunables: no tunable {name!r}; there are {', '.join(known)}")
    return {name: known[name] for name in names or known if name in present}


def draw_config(config: Any, space: SpaceConfig, rng: np.random.Generator) -> Any:
    """A config whose searched tunables, architecture and activation are drawn from their ranges.

    `ConfigError` where the config class refuses whatever is drawn.
    """
    if space.architectures:
        hidden = space.architectures[rng.integers(len(space.architectures))]
        config = replace(config, hidden=tuple(hidden))
    if space.activations:
        activation = space.activations[rng.integers(len(space.activations))]
        config = replace(config, activation=activation)
    ranges = searched_tunables(config, space.tunables)

    def draw() -> Any:
        drawn = {name: tunable.at(rng.random()) for name, tunable in ranges.items()}
        return with_tunables(config, drawn)

    return _first_accepted(draw)


def mutate_tunables(
    config: Any, space: SpaceConfig, settings: MutationConfig, rng: np.random.Generator
) -> tuple[Any, Change]:
    """The config with `settings.num_tunables` tunables moved by Gaussian steps on their scales."""
    ranges, before = searched_tunables(config, space.tunables), tunable_values(config)
    count = min(settings.num_tunables, len(ranges))

    def draw() -> tuple[Any, Change]:
        names = rng.choice(list(ranges), count, replace=False).tolist()
        steps = (settings.tunable_step * rng.standard_normal(count)).tolist()
        moves = zip(names, steps, strict=True)
        after = {name: ranges[name].step(before[name], step) for name, step in moves}
        return with_tunables(config, after), {name: [before[name], after[name]] for name in names}

    return _first_accepted(draw)


def _first_accepted(draw: Callable[[], Any]) -> Any:
    """What is drawn, again and again while the config class refuses it; at last its refusal."""
    for _ in range(ATTEMPTS - 1):
        with suppress(ConfigError):
            return draw()
    return draw()
