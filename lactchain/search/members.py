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

from lactchain.baselines.member_envs import MemberEnvs, Transition
from lactchain.baselines.networks import Shapes, unflatten
from lactchain.baselines.population import Population
from lactchain.baselines.settings import own_settings

Arrays = list[np.ndarray]
"""Weight and bias of each layer in turn, of one member; convolutions come first."""


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
    shapes = {n: part.shapes for n, part in population.parts.items() if hasattr(part, "shapes")}
    return Learnt(parts, shapes, state["num_updates"])


def join(
    kind: type[Population],
    members: Sequence[Any],
    observation_space: spaces.Space,
    action_space: spaces.Space,
    seed: int | Sequence[int],
) -> Population:
    """A population of members, each with a `config` and a `state`, that `batches` finds to fit."""
    configs, states = zip(*((member.config, member.state) for member in members), strict=True)
    population = kind(configs, observation_space, action_space, seed)
    population.num_updates = states[0].num_updates
    for name, part in population.parts.items():
        rows = {key: [state.parts[name][key] for state in states] for key in states[0].parts[name]}
        part.load_state_dict({key: _joined(values) for key, values in rows.items()})
    return population


def batches(members: Sequence[Any]) -> list[list[int]]:
    """Places of members, each with a `config` and a `state`, that train in one batch at no loss.

    They agree in every field that is not their own, and in how much they have stored.
    """
    found: dict[tuple, list[int]] = {}
    for place, member in enumerate(members):
        own = own_settings(type(member.config))
        fields = tuple((k, value) for k, value in vars(member.config).items() if k not in own)
        stored = tuple(
            value.shape if isinstance(value, np.ndarray) else value
            for part in member.state.parts.values()
            for value in part.values()
        )
        found.setdefault((fields, stored), []).append(place)
    return list(found.values())


NetworkChange = Callable[[Arrays, bool], Arrays]
"""Arrays of a network, or what an optimiser knows about them (the second says so) → new ones."""


def change_networks(learnt: Learnt, change: NetworkChange) -> Learnt:
    """The member with other networks, targets too; `learnt` is left as it is."""
    parts, shapes = dict(learnt.parts), dict(learnt.shapes)
    for name, layout in learnt.shapes.items():
        entries = dict(parts[name])
        moments = "flat" not in entries
        for key in ("mean", "square") if moments else ("flat",):
            networks = {
                network: [array[0] for array in arrays]
                for network, arrays in unflatten(entries[key], layout).items()
            }
            # A single array, such as a log-deviation, is no network.
            changed = {n: change(a, moments) if len(a) > 1 else a for n, a in networks.items()}
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
        steps = [m.step(row[None]) for m, row in zip(self.members, actions, strict=True)]
        columns = {
            name: np.concatenate([getattr(step, name) for step in steps])
            for name in Transition.__dataclass_fields__
        }
        return Transition(**columns)


def _row(value: Any, member: int) -> Any:
    """A member's own copy (1, …) out of an array (P, …); a number is the same for all."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    return value[member : member + 1].copy() if isinstance(value, np.ndarray) else value


def _joined(values: Sequence[Any]) -> Any:
    return np.concatenate(values) if isinstance(values[0], np.ndarray) else values[0]
