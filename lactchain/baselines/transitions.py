"""Transitions: in a ring for each of P members, or recorded in files in which damage is noticed.

Successors are stored beside their sources. Reading them from the next row instead would save
memory, and be wrong at the ring's seam, at every episode's end, and with several copies of an
environment, whose transitions lie interleaved.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from lactchain import plugins
from lactchain.baselines.state_files import VALUES, Stored, load_state, save_state
from lactchain.errors import DataError
from lactchain.storage.manifests import MANIFEST, verify_manifest

KIND = "transitions"


@dataclass(frozen=True)
class Minibatch:
    """Transitions (P, B, …) as arrays; `terminated` says that a successor is worth nothing."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    next_observations: np.ndarray


FIELDS = tuple(Minibatch.__dataclass_fields__)


class ReplayBuffer(Stored):
    """The newest `capacity` transitions of each member, of the `total` that were ever added.

    The spaces are those of a single environment.
    """

    def __init__(
        self,
        num_members: int,
        capacity: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
    ) -> None:
        self.num_members, self.capacity = num_members, capacity
        self.total = 0
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

    @property
    def size(self) -> int:
        """Transitions that each member holds."""
        return min(self.total, self.capacity)

    def add(self, transitions: Minibatch) -> None:
        """Stores transitions (P, N, …), over the oldest ones when the ring is full.

        Of more than `capacity` at once the last ones are kept.
        """
        count = transitions.rewards.shape[1]
        kept = min(count, self.capacity)
        places = (self.total + np.arange(count - kept, count)) % self.capacity
        for name, column in self._columns.items():
            column[:, places] = getattr(transitions, name)[:, count - kept :]
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
        return {"position": self.total % self.capacity, "total": self.total, **columns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.total = state["total"]
        for name, column in self._columns.items():
            column[:, : self.size] = state[name]


@dataclass(frozen=True)
class TransitionData(Minibatch, Stored):
    """N transitions in the order in which they were recorded: columns (N, …), rewards float32.

    A run reads them again when it goes on, and stores none. `DataError` where the columns differ in
    length, are empty, or not finite.
    """

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in FIELDS}
        if len(set(lengths.values())) > 1 or not lengths["rewards"]:
            raise DataError(f"transitions: expected columns of one length above 0, got {lengths}")
        for name in ("observations", "rewards", "next_observations"):
            column = getattr(self, name)
            if column.dtype.kind == "f" and not np.isfinite(column).all():
                row = int(np.argwhere(~np.isfinite(column))[0][0])
                raise DataError(f"transitions: {name} of row {row} is not finite")

    def __len__(self) -> int:
        return len(self.rewards)

    def sample(self, num_members: int, batch_size: int, rng: np.random.Generator) -> Minibatch:
        """Transitions (P, B, …) drawn uniformly with replacement."""
        places = rng.integers(len(self), size=(num_members, batch_size))
        return Minibatch(**{name: getattr(self, name)[places] for name in FIELDS})


def write_transitions(folder: str | Path, data: TransitionData) -> None:
    """Writes transitions into a folder in which damage is noticed; `DiskError` where that fails."""
    save_state(Path(folder), {name: getattr(data, name) for name in FIELDS}, {"kind": KIND})


def read_transitions(path: str | Path) -> TransitionData:
    """Transitions from a folder that `write_transitions` filled.

    HDF5 files, and folders of Minari data sets, are what the add-on `offline_data` reads. A
    `DataError` names the folder or file, and what is wrong with it.
    """
    path = Path(path)
    if not (path / MANIFEST).is_file():
        if (path / KIND).is_dir() or (path / VALUES).is_file():
            mend = f"RUN/{KIND} of a finished run, or a folder that is written anew"
            raise DataError(f"{path}: no folder of {KIND} that was completed; give {mend}")
        return plugins.required("offline_data", "data")(path)
    kind = verify_manifest(path).get("kind")
    columns = load_state(path) if kind == KIND else {}
    if not isinstance(columns, dict) or columns.keys() != set(FIELDS):
        raise DataError(f"{path}: expected a folder of {KIND}, got another; write it anew")
    return TransitionData(**columns)
