"""Episodes as a Hugging Face data set, out and in: parquet files, and a card that describes them.

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
import pyarrow.parquet as pq

from lactchain.data import parquet
from lactchain.data.trajectories import (
    COLUMNS,
    VERSION,
    from_table,
    read_trajectories,
    to_table,
    write_trajectories,
)
from lactchain.errors import DataError
from lactchain.files import atomic_write
from lactchain.types import Trajectory

if TYPE_CHECKING:
    from datasets import Dataset

PARQUET = "data/train-00000-of-00001.parquet"

_CARD = """
# {title}

{num_episodes} episodes, {num_decisions} decisions, in LactChain's schema of trajectories,
version {version}.

{description}

| environments | behaviour policies | mean return | terminated | decisions per episode |
|---|---|---|---|---|
| {env_ids} | {policies} | {episode_return:.3f} | {terminated:.1%} | {length:.1f} |

One row is one episode of T decisions:

| column | |
|---|---|
| `env_id`, `seed`, `policy` | where it was played, the seed of its `reset`, and by whom |
| `terminated`, `truncated` | whether the last state is terminal, or the episode was cut there |
| `observations` | T + 1 texts: what each decision was asked with, and the last observation |
| `actions`, `stop_reasons` | T answers, verbatim, and whether they ended ("stop") or were cut |
| `token_ids`, `logprobs` | what was sampled, for answers of language models; else empty |
| `rewards` | T numbers, undiscounted |
| `infos` | T + 1 JSON objects: what the environment said beside |

```python
from datasets import load_dataset
from lactchain.data.dataset_files import from_dataset

trajectories = from_dataset(load_dataset("{title}", split="train"))
```
"""


def to_dataset(trajectories: Sequence[Trajectory]) -> Dataset:
    """Episodes as a `datasets.Dataset` in memory, to filter, to mix or to push to the hub."""
    from datasets import Dataset

    return Dataset(to_table(trajectories))


def from_dataset(dataset: Dataset) -> list[Trajectory]:
    """Episodes of a `datasets.Dataset` with the columns of the schema.

    Raises:
        DataError: naming the column that is missing, or the row that is no episode.
    """
    names = [name for name in COLUMNS if name in dataset.column_names]
    table = dataset.select_columns(names).with_format("arrow")[:]
    return from_table(table, f"data set {dataset.info.dataset_name or ''}".strip())


def write_dataset(
    folder: str | Path, trajectories: Sequence[Trajectory], *, title: str, description: str = ""
) -> Path:
    """Writes a folder that `datasets.load_dataset` reads and `hf upload` publishes; returns it.

    Args:
        title: the name, such as `user/maze-data`.
        description: what the card says about how the data came to be.

    Raises:
        DataError: there are no episodes to describe.
        DiskError: a file cannot be written.
    """
    if not trajectories:
        raise DataError(f"{folder}: expected episodes to write, got none")
    write_trajectories(Path(folder) / PARQUET, trajectories)
    atomic_write(Path(folder) / "README.md", dataset_card(trajectories, title, description))
    return Path(folder)


def read_dataset(folder: str | Path) -> list[Trajectory]:
    """Episodes of a folder: of parquet files, or one that `Dataset.save_to_disk` wrote.

    Files that LactChain wrote are held against their manifests.

    Raises:
        DataError: there are none, they are damaged, or of another schema.
    """
    from datasets import load_from_disk

    folder = Path(folder)
    if (folder / "state.json").is_file():
        try:
            return from_dataset(load_from_disk(str(folder)))
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise DataError(f"{folder}: damaged: {error}") from error
    files = sorted(folder.rglob("*.parquet"))
    if not files:
        raise DataError(f"{folder}: expected parquet files, or a saved data set, found none")
    return [episode for file in files for episode in _read_file(file)]


def dataset_card(trajectories: Sequence[Trajectory], title: str, description: str = "") -> str:
    """The card of a data set: its metadata for the hub, and what people want to know."""
    from huggingface_hub import DatasetCardData

    metadata = DatasetCardData(
        pretty_name=title,
        language="en",
        task_categories=["reinforcement-learning"],
        tags=["lactchain", "offline-rl", "gymnasium"],
        configs=[{"config_name": "default", "data_files": "data/*.parquet"}],
    )
    text = _CARD.format(
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
    return f"---\n{metadata.to_yaml()}\n---\n{text}"


def _read_file(file: Path) -> list[Trajectory]:
    if parquet.has_manifest(file):
        return read_trajectories(file)
    try:
        table = pq.ParquetFile(file).read()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: damaged: {error}") from error
    return from_table(table, file)


def _listed(names: set[str]) -> str:
    """Names in a cell of a markdown table."""
    return ", ".join(f"`{name}`".replace("|", "\\|") for name in sorted(names))
