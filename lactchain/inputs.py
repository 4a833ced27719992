"""What a run reads from elsewhere, models and data: as it was when the run began.

A checkpoint, or the shards that are there, would be gone on from with another base model, and
nobody would see it: many models have no manifest.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path, PurePath
from typing import Any

from lactchain.errors import DataError
from lactchain.files import follow
from lactchain.manifests import CARD, MANIFEST, manifest_beside, read_manifest
from lactchain.models.places import resolve_weights
from lactchain.preflight import unread_models
from lactchain.process import refuse_unless_inexact

NAMED_BY = (
    "model", "adapter", "checkpoint", "critic", "values", "trajectories", "source", "pairs", "data",
)  # fmt: skip
"""Settings that name a file or folder which is read."""

DATA = ("trajectories", "source", "pairs", "data")
"""Those that are data, of which all is read; the others are models."""

LOADED = (
    "*.json", "*.jinja", "*.py", "tokenizer*", "*.model", "*.tiktoken", "vocab*", "merges.txt",
)  # fmt: skip
"""What is loaded of a model's folder besides its weights."""

SAMPLE_BYTES = 1 << 20
"""Of a file this much is hashed at each of 17 places: above 17 MB it is sampled."""

Inputs = dict[str, dict[str, str]]
"""By setting: the checksum of each file."""


def inputs_of(config: Any) -> Inputs:
    """What the models and data are that a configuration names, as far as they are there."""
    unread = frozenset(unread_models(vars(config)))
    return {k: _checksums(k, path) for k, path in _places(config, "") if k not in unread}


def check_inputs(recorded: Mapping[str, Mapping[str, str]], found: Inputs, run: Path) -> None:
    """Compares the files of two `inputs_of`.

    Raises:
        DataError: one is not as it was, or would be read as well.
    """
    for key in recorded.keys() & found.keys():
        before = {name: recorded[key][name] for name in _read_of(key, recorded[key])}
        names = sorted(before, key=lambda name: (PurePath(name).name != MANIFEST, name))
        if name := next((n for n in names if before[n] != found[key].get(n)), None):
            refuse_unless_inexact(
                f"{run}: {name} of {key} is not as it was when this run began; put it back, "
                "or give another run.run_dir to begin anew"
            )
        added = _counted(key, found[key].keys() - before.keys())
        if name := min(added, default=""):
            refuse_unless_inexact(
                f"{run}: {name} of {key} was not there when this run began; remove it, "
                "or give another run.run_dir to begin anew"
            )


def _counted(key: str, added: Iterable[str]) -> list[str]:
    """Those of the files that were added which change what is read."""
    return [n for n in added if not _is_data(key) or n.endswith((".parquet", ".manifest"))]


def _is_data(key: str) -> bool:
    return key.rpartition(".")[2] in DATA


def _read_of(key: str, names: Iterable[str]) -> list[str]:
    """Which files of a folder are read: all of data, of a model what it is loaded from."""
    names = list(names)
    if _is_data(key):
        return names
    weights = "*.safetensors" if any(n.endswith(".safetensors") for n in names) else "*.bin"
    return [
        name
        for name in names
        if PurePath(name).parts[0] != "original"  # of Llama's authors: another format
        and any(PurePath(name).match(pattern) for pattern in (*LOADED, weights))
    ]


def _checksums(key: str, path: Path) -> dict[str, str]:
    """A checksum of each file that is read; not of hidden ones and of a card."""
    if path.is_file():
        return {path.name: _listed(path, path.parent) or _checksum(path)}
    files = [file.relative_to(path) for file in sorted(path.rglob("*")) if file.is_file()]
    names = [
        name.as_posix()
        for name in files
        if name.name != CARD and not any(part.startswith(".") for part in name.parts)
    ]
    return {n: _listed(path / n, path) or _checksum(path / n) for n in _read_of(key, names)}


def _listed(file: Path, folder: Path) -> str | None:
    """The SHA-256 in a manifest of the file or its folder, which whoever reads it verifies."""
    name, size = file.relative_to(folder).as_posix(), file.stat().st_size
    own, shared = manifest_beside(file), folder / MANIFEST
    if own != file and own.is_file():
        told = read_manifest(own)
    elif shared.is_file() and file != shared:
        told = read_manifest(shared).get("files", {}).get(name, {})
    else:
        return None
    return told.get("sha256") if told.get("size") == size else None


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
