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
from lactchain.models.places import resolve_weights
from lactchain.runs.preflight import unread_models
from lactchain.runs.process import refuse_unless_inexact
from lactchain.storage.files import follow, take_sample
from lactchain.storage.manifests import CARD, MANIFEST

NAMED_BY = (
    "model", "adapter", "checkpoint", "critic", "values", "trajectories", "source", "pairs", "data",
)  # fmt: skip
"""Settings that name a file or folder which is read."""

Inputs = dict[str, dict[str, str]]
"""By setting: the checksum of each file."""


def inputs_of(config: Any) -> Inputs:
    """What the models and data are that a configuration names, as far as they are there."""
    unread = frozenset(unread_models(vars(config)))
    return {key: _checksums(path) for key, path in _places(config, "") if key not in unread}


def check_inputs(recorded: Mapping[str, Mapping[str, str]], found: Inputs, run: Path) -> None:
    """Compares the files of two `inputs_of`.

    Raises:
        DataError: one is not as it was, or was not there.
    """
    for key in recorded.keys() & found.keys():
        before, now = recorded[key], found[key]
        names = sorted(before.keys() | now.keys(), key=lambda name: (MANIFEST not in name, name))
        if name := next((n for n in names if before.get(n) != now.get(n)), None):
            refuse_unless_inexact(
                f"{run}: {name} of {key} is not as it was when this run began; put it back, "
                "remove it where it is new, or give another run.run_dir to begin anew"
            )


def _checksums(path: Path) -> dict[str, str]:
    """A checksum of each file; not of hidden ones and of a card, which nobody reads."""
    if path.is_file():
        return {path.name: _checksum(path)}
    names = [file.relative_to(path) for file in sorted(path.rglob("*")) if file.is_file()]
    return {
        name.as_posix(): _checksum(path / name)
        for name in names
        if name.name != CARD and not any(part.startswith(".") for part in name.parts)
    }


def _checksum(file: Path) -> str:
    digest = hashlib.sha256()
    take_sample(digest, file)
    return digest.hexdigest()


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
