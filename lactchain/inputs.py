"""What a run reads from elsewhere, models and data: as it was when the run began.

A checkpoint, or the shards that are there, would be gone on from with another base model, and
nobody would see it: many models have no manifest.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from lactchain.errors import DataError
from lactchain.files import follow
from lactchain.manifests import CARD
from lactchain.models.places import resolve_weights
from lactchain.process import refuse_unless_inexact

NAMED_BY = (
    "model", "adapter", "checkpoint", "critic", "values", "trajectories", "source", "pairs", "data",
)  # fmt: skip
"""Settings that name a file or folder which is read."""

SAMPLE_BYTES = 1 << 20
"""Of a file this much is hashed at each of 17 places; up to 17 MB that is all of it."""

Inputs = dict[str, dict[str, str]]
"""By setting: the checksum of each file."""


def inputs_of(config: Any) -> Inputs:
    """What the models and data are that a configuration names, as far as they are there."""
    return {key: checksums(path) for key, path in _places(config, "")}


def check_inputs(recorded: Mapping[str, Mapping[str, str]], found: Inputs, run: Path) -> None:
    """Compares the files of two `inputs_of`; those that were added count for nothing.

    Raises:
        DataError: one is not as it was.
    """
    for key in recorded.keys() & found.keys():
        for name, digest in recorded[key].items():
            if found[key].get(name) != digest:
                refuse_unless_inexact(
                    f"{run}: {name} of {key} is not as it was when this run began; put it back, "
                    "or give another run.run_dir to begin anew"
                )


def checksums(path: Path) -> dict[str, str]:
    """A checksum of each file of a folder, or of one file; not of hidden ones and of a card."""
    if path.is_file():
        return {path.name: _checksum(path)}
    files = {file.relative_to(path): file for file in sorted(path.rglob("*")) if file.is_file()}
    return {
        name.as_posix(): _checksum(file)
        for name, file in files.items()
        if name.name != CARD and not any(part.startswith(".") for part in name.parts)
    }


def _checksum(file: Path) -> str:
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as stream:
        for place in range(17):
            stream.seek(max(place * SAMPLE_BYTES, place * (size - SAMPLE_BYTES) // 16))
            digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def _places(config: Any, prefix: str) -> Iterator[tuple[str, Path]]:
    """The files and folders that a config names, by the dotted key of the setting."""
    for name, value in vars(config).items():
        if is_dataclass(value):
            yield from _places(value, f"{prefix}{name}.")
        elif name in NAMED_BY and isinstance(value, str):
            place = follow(Path(value))
            if name == "model":
                with suppress(DataError):  # one that is not there is for whoever reads it to tell
                    yield f"{prefix}{name}", resolve_weights(value)
            elif place.exists():
                yield f"{prefix}{name}", place
