"""Where in the folder of a run its results are: actor, critic, values, trajectories, pairs."""

import os
from pathlib import Path
from typing import Any

from lactchain.errors import DataError
from lactchain.storage.files import read_json
from lactchain.storage.manifests import is_run, verify_listed

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
ADAPTER_RECORD = "lactchain_adapter.json"
"""Beside an adapter's weights: which base model it belongs to."""
RECORDED = ("base", "base_fingerprint", "tokenizer_fingerprint", "sha256")
"""In that file: the folder of the model that an adapter was trained on, the checksums of that
model, and those of `ADAPTER_FILES`."""
SEEN_FROM_HERE = "base_seen_from_here"
"""In that file, too: where the base is, seen from there, if both are in one run."""


def result_of(path: str | Path, name: str) -> Path:
    """The folder of a result: as given, or the one of that name in a run.

    A pipeline's episodes and pairs are those that its critic and its actor have learnt from.

    Raises:
        DataError: there is no such folder, or the run has none of that name.
    """
    path = Path(path)
    is_there = Path.exists if name in ("pairs", "trajectories") else Path.is_dir
    if not is_there(path):
        raise DataError(f"{path}: no such folder; expected a run, or what it saved")
    if not is_run(path):
        return path
    of_stages = [(path / part).resolve().parent / name for part in ("critic", "actor")]
    found = next((p for p in (path / name, *of_stages) if p.is_dir()), None)
    if found is None:
        raise DataError(f"{path}: this run has saved no {name}; name one that has, or the folder")
    return found


def read_adapter_record(adapter: Path) -> dict[str, Any]:
    """What the adapter in a folder belongs to, by `RECORDED`; `DataError` if that is not said.

    The base of one in a run lies in that run, wherever the run was moved to.
    """
    file = adapter / ADAPTER_RECORD
    verify_listed(file)
    stored = read_json(file, "expected a LoRA adapter that was saved here")
    try:
        record = {name: stored[name] for name in RECORDED}
        hashes = [record["sha256"][name] for name in ADAPTER_FILES]
        if not all(isinstance(told, str) for told in (*list(record.values())[:3], *hashes)):
            raise TypeError("a checksum is a text")
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{file}: damaged ({error!r}); train the adapter anew, or copy it whole"
        ) from error
    seen = stored.get(SEEN_FROM_HERE)
    here = os.path.normpath(adapter.resolve() / seen) if isinstance(seen, str) else ""
    return record | ({"base": here} if os.path.isdir(here) else {})


def weights_in(folder: Path) -> dict[str, str | None]:
    """The settings `model` and `adapter` of an actor whose weights, or whose adapter, are there."""
    if not (folder / ADAPTER_RECORD).is_file():
        return {"model": str(folder), "adapter": None}
    return {"model": read_adapter_record(folder)["base"], "adapter": str(folder)}


def seen_from(folder: str | Path, place: str | Path) -> str | None:
    """A place as seen from a folder, such as ../base/actor; None unless one run holds both.

    The outermost run counts: the stages of a pipeline stay together.
    """
    folder, place = Path(os.path.abspath(folder)), os.path.abspath(place)
    runs = [parent for parent in (folder, *folder.parents) if is_run(parent)]
    if not runs or not Path(place).is_relative_to(runs[-1]):
        return None
    return os.path.relpath(place, folder)


def is_same_place(old: object, old_folder: str, new: object, new_folder: str | Path) -> bool:
    """Whether two settings name one place inside a run whose folder was the old one."""
    if not isinstance(old, str) or not isinstance(new, str):
        return False
    return os.path.relpath(old or ".", old_folder) == seen_from(new_folder, new)
