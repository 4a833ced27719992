"""Episodes as a Hugging Face data set: parquet files, and a card that describes them.

The columns are those of `lactchain.data.trajectories`; `infos` is JSON text. The files that are
written are trajectory files as well, with their manifests; what `datasets` gives back has none.

    FOLDER/README.md                       the card
    FOLDER/data/train-00000-of-00001.parquet
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lactchain.data.trajectories import COLUMNS, VERSION, from_foreign, write_trajectories
from lactchain.errors import DataError
from lactchain.storage.files import atomic_write
from lactchain.types import Trajectory

if TYPE_CHECKING:
    from datasets import Dataset

CARD = Path(__file__).with_name("dataset_card.md")


def from_dataset(dataset: Dataset) -> list[Trajectory]:
    """Episodes of a `datasets.Dataset`; `DataError` names a missing column, or the bad row."""
    names, source = [c for c in COLUMNS if c in dataset.column_names], dataset.info.dataset_name
    table = dataset.select_columns(names).with_format("arrow")[:]
    return from_foreign(table, f"data set {source or ''}".strip())


def read_dataset(folder: Path) -> list[Trajectory]:
    """Episodes that `Dataset.save_to_disk` wrote into a folder."""
    return from_dataset(saved_dataset(folder))


def saved_dataset(folder: Path) -> Dataset:
    """What `Dataset.save_to_disk` wrote into a folder; `DataError` where it is damaged."""
    from datasets import load_from_disk

    try:
        return load_from_disk(str(folder))
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DataError(f"{folder}: damaged: {error}") from error


def write_dataset(
    folder: str | Path, trajectories: Sequence[Trajectory], *, title: str, description: str = ""
) -> Path:
    """Writes a folder that `datasets.load_dataset` reads and `hf upload` publishes; returns it.

    Args:
        title: the name, such as `user/maze-data`.
        description: what the card says about how the data came to be.

    Raises:
        DataError: there are no episodes to describe.
    """
    from huggingface_hub import DatasetCard, DatasetCardData

    folder = Path(folder)
    if not trajectories:
        raise DataError(f"{folder}: expected episodes to write, got none")
    metadata = DatasetCardData(
        pretty_name=title,
        language="en",
        task_categories=["reinforcement-learning"],
        tags=["lactchain", "offline-rl", "gymnasium"],
        configs=[{"config_name": "default", "data_files": "data/*.parquet"}],
    )
    card = DatasetCard.from_template(
        metadata,
        template_str=CARD.read_text(encoding="utf-8"),
        title=title,
        description=description,
        version=VERSION,
        num_episodes=len(trajectories),
        num_decisions=sum(map(len, trajectories)),
        env_ids=_listed({t.env_id for t in trajectories}),
        policies=_listed({t.policy for t in trajectories}),
        episode_return=np.mean([t.episode_return for t in trajectories]),
        terminated=np.mean([t.terminated for t in trajectories]),
        length=np.mean([len(t) for t in trajectories]),
    )
    write_trajectories(folder / "data" / "train-00000-of-00001.parquet", trajectories)
    atomic_write(folder / "README.md", str(card))
    return folder


def _listed(names: set[str]) -> str:
    """Names in a cell of a markdown table."""
    return ", ".join(f"`{name}`".replace("|", "\\|") for name in sorted(names))
