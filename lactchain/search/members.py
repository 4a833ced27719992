"""Members of populations, each on its own: taken out, joined again, and changed.

Members that agree in all that shapes a computation are trained as one batch, whoever their parents
are. In between each is a `Learnt`, which can be copied, written down and mutated by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from lactchain.baselines.member_envs import FinishedEpisode, MemberEnvs, Transition
from lactchain.baselines.networks import Parameters
from lactchain.baselines.population import Adam, Population
from lactchain.tunable import tunables

Arrays = list[np.ndarray]
"""Weight and bias of each layer in turn, of one member; convolutions come first."""
Shapes = dict[str, list[tuple[int, ...]]]


@dataclass(frozen=True)
class Learnt:
    """What one member has learnt and stored.

    Attributes:
        parts: part → entry → the member's own row (1, …) of an array, or a number that all share.
        shapes: part → network → shapes of its arrays; of parameters and of their optimisers.
        num_updates: optimiser steps made.
    """

    parts: dict[str, dict[str, Any]]
    shapes: dict[str, Shapes]
    num_updates: int


def take(population: Population, member: int) -> Learnt:
    """A copy of what one member has learnt."""
    state = population.state_dict()
    parts = {
        name: {key: _row(value, member) for key, value in part.items()}
        for name, part in state["parts"].items()
    }
    return Learnt(parts, _shapes(population), state["num_updates"])


def join(
    kind: type[Population],
    configs: Sequence[Any],
    learnt: Sequence[Learnt],
    observation_space: spaces.Space,
    action_space: spaces.Space,
    seed: int | Sequence[int],
) -> Population:
    """A population of members that were taken out of others; see `batches` for who fits whom."""
    population = kind(configs, observation_space, action_space, seed)
    population.num_updates = learnt[0].num_updates
    for name, part in population.parts.items():
        rows = {key: [one.parts[name][key] for one in learnt] for key in learnt[0].parts[name]}
        part.load_state_dict({key: _joined(values) for key, values in rows.items()})
    return population


def _shapes(population: Population) -> dict[str, Shapes]:
    """The shapes of what lies flat in a population's parts."""
    shapes = {}
    for name, part in population.parts.items():
        if isinstance(part, Adam):
            part = part.parameters
        if isinstance(part, Parameters):
            shapes[name] = part.shapes
    return shapes


def batches(configs: Sequence[Any], learnt: Sequence[Learnt]) -> list[list[int]]:
    """Places of members that can be trained in one batch at no loss.

    They agree in every field that is not tunable, in whole numbers (members with other sizes of
    batch or numbers of epochs would wait for each other), and in how much they have stored.
    """
    found: dict[tuple, list[int]] = {}
    for place, (config, one) in enumerate(zip(configs, learnt, strict=True)):
        declared = tunables(type(config))
        fields = tuple(
            (name, value)
            for name, value in vars(config).items()
            if name not in declared or declared[name].integer
        )
        found.setdefault((fields, _extent(one)), []).append(place)
    return list(found.values())


def _extent(learnt: Learnt) -> tuple:
    """Shapes of what a member holds, and the numbers that a batch must share."""
    return tuple(
        value.shape if isinstance(value, np.ndarray) else value
        for part in learnt.parts.values()
        for value in part.values()
    )


def change_networks(
    learnt: Learnt,
    parameters: Callable[[Arrays], Arrays],
    moments: Callable[[Arrays], Arrays],
) -> Learnt:
    """The member with other networks.

    Args:
        learnt: is left as it is.
        parameters: arrays of a network → its new arrays; targets are networks too.
        moments: the same for what an optimiser knows about these arrays.
    """
    parts, shapes = dict(learnt.parts), dict(learnt.shapes)
    for name, layout in learnt.shapes.items():
        entries = dict(parts[name])
        flat = "flat" in entries
        for key in ("flat",) if flat else ("mean", "square"):
            networks = _unflatten(entries[key][0], layout)
            change = parameters if flat else moments
            # A single array, such as a log-deviation, is no network.
            changed = {n: change(a) if len(a) > 1 else a for n, a in networks.items()}
            rows = [array.ravel() for arrays in changed.values() for array in arrays]
            entries[key] = np.concatenate(rows)[None]
            shapes[name] = {n: [a.shape for a in arrays] for n, arrays in changed.items()}
        parts[name] = entries
    return replace(learnt, parts=parts, shapes=shapes)


class JoinedEnvs:
    """What several members play, each its own copies, behind the interface of `MemberEnvs`."""

    def __init__(self, members: Sequence[MemberEnvs]) -> None:
        self.members = members
        self.shape = (len(members), members[0].shape[1])

    @property
    def observations(self) -> np.ndarray:
        """(P, N, …), where the next step begins."""
        return np.concatenate([member.observations for member in self.members])

    def step(self, actions: np.ndarray) -> Transition:
        """Plays one action (P, N, …) in every copy."""
        if len(self.members) == 1:
            return self.members[0].step(actions)
        steps = [
            member.step(actions[place : place + 1]) for place, member in enumerate(self.members)
        ]
        columns = {
            name: np.concatenate([getattr(step, name) for step in steps])
            for name in Transition.__dataclass_fields__
        }
        return Transition(**columns)

    def pop_episodes(self) -> list[FinishedEpisode]:
        """The episodes that ended since this was last called."""
        return [
            replace(episode, member=place)
            for place, member in enumerate(self.members)
            for episode in member.pop_episodes()
        ]


def _row(value: Any, member: int) -> Any:
    """A member's own copy (1, …) out of an array (P, …); a number is the same for all."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    return value[member : member + 1].copy() if isinstance(value, np.ndarray) else value


def _joined(values: Sequence[Any]) -> Any:
    return np.concatenate(values) if isinstance(values[0], np.ndarray) else values[0]


def _unflatten(flat: np.ndarray, layout: Shapes) -> dict[str, Arrays]:
    networks: dict[str, Arrays] = {}
    start = 0
    for name, shapes in layout.items():
        networks[name] = []
        for shape in shapes:
            stop = start + int(np.prod(shape))
            networks[name].append(flat[start:stop].reshape(shape))
            start = stop
    return networks
