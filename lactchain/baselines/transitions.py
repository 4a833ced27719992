"""Recorded transitions for offline learning, as parquet in which damage is noticed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lactchain import plugins
from lactchain.baselines.replay import FIELDS, Minibatch
from lactchain.data.parquet import read_table, rows_of, write_table
from lactchain.errors import DataError

KIND, VERSION = "transitions", 1


@dataclass(frozen=True)
class TransitionData(Minibatch):
    """N transitions in the order in which they were recorded: columns (N, …), rewards float32.

    Raises:
        DataError: the columns differ in length, are empty, or not finite.
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


def write_transitions(path: str | Path, data: TransitionData) -> None:
    """Writes transitions as parquet in which damage is noticed.

    Raises:
        DiskError: the file cannot be written.
    """
    columns, shapes = {}, {}
    for name in FIELDS:
        column = getattr(data, name)
        shapes[name] = [str(column.dtype), list(column.shape[1:])]
        flat = pa.array(column.ravel())
        is_flat = column.ndim == 1
        columns[name] = flat if is_flat else pa.FixedSizeListArray.from_arrays(flat, column[0].size)
    columns["shapes"] = pa.array([json.dumps(shapes)] * len(data)).dictionary_encode()
    write_table(path, pa.table(columns), KIND, VERSION)


def read_transitions(path: str | Path) -> TransitionData:
    """Transitions from a parquet file, or from every parquet file of a folder.

    Raises:
        DataError: naming the file and what is wrong with it.
    """
    table = read_table(path, KIND, VERSION)
    with rows_of(path, KIND):
        (text,) = table["shapes"].unique().to_pylist() or [None]
        shapes = json.loads(text)
        return TransitionData(**{name: _numpy(table[name], *shapes[name]) for name in FIELDS})


def read_offline(path: str | Path) -> TransitionData:
    """Transitions from wherever: parquet of ours, or what the add-on `offline_data` reads."""
    path = Path(path)
    if (
        path.suffix.lower() in (".h5", ".hdf5", ".hdf")
        and not path.is_dir()
        or (path / "data").is_dir()
    ):
        return plugins.required("offline_data", "data")(path)
    return read_transitions(path)


def _numpy(column: pa.ChunkedArray, dtype: str, shape: Sequence[int]) -> np.ndarray:
    whole: Any = column.combine_chunks()
    values = whole.flatten() if shape else whole
    return values.to_numpy(zero_copy_only=False).astype(dtype).reshape(-1, *shape)
