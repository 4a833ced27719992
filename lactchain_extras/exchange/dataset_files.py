"""Episodes in data sets of Hugging Face: the columns are those of `lactchain.data.trajectories`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from lactchain.data.trajectories import COLUMNS, from_foreign
from lactchain.errors import DataError
from lactchain.types import Trajectory

if TYPE_CHECKING:
    from datasets import Dataset


def from_dataset(dataset: Dataset) -> list[Trajectory]:
    """Episodes of a `datasets.Dataset`; `DataError` names a missing column, or the bad row."""
    names, source = [c for c in COLUMNS if c in dataset.column_names], dataset.info.dataset_name
    table = dataset.select_columns(names).with_format("arrow")[:]
    return from_foreign(table, f"data set {source or ''}".strip())


def saved_dataset(folder: Path) -> Dataset:
    """What `Dataset.save_to_disk` wrote into a folder; `DataError` where it is damaged."""
    from datasets import load_from_disk

    try:
        return load_from_disk(str(folder))
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DataError(f"{folder}: damaged: {error}") from error
