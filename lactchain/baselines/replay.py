"""Replay: a ring of transitions for each of P members.

Successors are stored beside their sources. Reading them from the next row instead would save
memory, and be wrong at the ring's seam, at every episode's end, and with several copies of an
environment, whose transitions lie interleaved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces


@dataclass(frozen=True)
class Minibatch:
    """Transitions (P, B, …) as arrays; `terminated` says that a successor is worth nothing."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    next_observations: np.ndarray


FIELDS = tuple(Minibatch.__dataclass_fields__)


class ReplayBuffer:
    """The newest `capacity` transitions of each member.

    The spaces are those of a single environment.

    Attributes:
        size: transitions that each member holds.
        position: where the next one goes.
        total: transitions that were ever added, per member.
    """

    def __init__(
        self,
        num_members: int,
        capacity: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
    ) -> None:
        self.num_members, self.capacity = num_members, capacity
        self.size = self.position = self.total = 0
        kinds = {
            "observations": (observation_space.shape, observation_space.dtype),
            "actions": (action_space.shape, action_space.dtype),
            "rewards": ((), np.float32),
            "terminated": ((), bool),
            "next_observations": (observation_space.shape, observation_space.dtype),
        }
        self._columns = {
            name: np.zeros((num_members, capacity, *shape), dtype)
            for name, (shape, dtype) in kinds.items()
        }

    def add(self, transitions: Minibatch) -> None:
        """Stores transitions (P, N, …), over the oldest ones when the ring is full.

        Of more than `capacity` at once the last ones are kept.
        """
        count = transitions.rewards.shape[1]
        kept = min(count, self.capacity)
        places = (self.position + np.arange(count - kept, count)) % self.capacity
        for name, column in self._columns.items():
            column[:, places] = getattr(transitions, name)[:, count - kept :]
        self.position = (self.position + count) % self.capacity
        self.size = min(self.size + count, self.capacity)
        self.total += count

    def sample(self, batch_size: int, rng: np.random.Generator) -> Minibatch:
        """Transitions drawn uniformly with replacement, `batch_size` of each member's own."""
        return self.rows(rng.integers(self.size, size=(self.num_members, batch_size)))

    def rows(self, places: np.ndarray) -> Minibatch:
        """The transitions at places (P, B), each member's in its own ring."""
        flat = (places + self.capacity * np.arange(self.num_members)[:, None]).ravel()
        taken = {}
        for name, column in self._columns.items():
            rows = column.reshape(-1, *column.shape[2:]).take(flat, axis=0)
            taken[name] = rows.reshape(*places.shape, *column.shape[2:])
        return Minibatch(**taken)

    def state_dict(self) -> dict[str, Any]:
        """The transitions that there are, and where the ring stands."""
        columns = {name: column[:, : self.size] for name, column in self._columns.items()}
        return {"position": self.position, "total": self.total, **columns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.position, self.total = state["position"], state["total"]
        self.size = state["rewards"].shape[1]
        for name, column in self._columns.items():
            column[:, : self.size] = state[name]
