"""The weight files of models: where they are, whether they are whole, and what is in them.

Nothing is downloaded but by `lactchain prepare_weights`, and every missing piece is an error that
names this command. Weights are read from safetensors only, never from pickles.
"""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from lactchain.errors import DataError
from lactchain.models.places import mend
from lactchain.storage.files import read_json
from lactchain.storage.manifests import MANIFEST, run_around, verify_listed, verify_manifest

INDEX = "model.safetensors.index.json"
"""Which file each weight is in, where there are several."""


def read_model_json(file: Path) -> dict[str, Any]:
    """The object in a file of a model's folder; an error says how to come by the model."""
    return read_json(file, mend(file.parent))


def check_weights(path: Path) -> list[Path]:
    """The weight files of a model's folder; each is there, and as long as its header says.

    Raises:
        DataError: naming the file that is missing or damaged.
    """
    index = path / INDEX
    weight_map = read_model_json(index).get("weight_map") if index.is_file() else {}
    if not isinstance(weight_map, dict):
        raise DataError(f"{index}: damaged (it has no weight_map); {mend(path)}")
    names = sorted(set(weight_map.values()))
    files = [path / name for name in names] or [path / "model.safetensors"]
    for file in files:
        if file.parent != path or not file.is_file():
            raise DataError(f"{file}: expected a weight file here, found none; {mend(path)}")
        try:
            with safe_open(file, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise DataError(f"{file}: damaged or not readable ({error}); {mend(path)}") from error
    return files


def verify_manifest_if_any(path: Path) -> None:
    """Raises `DataError` if a folder is not as its manifest says; most models have none."""
    if (path / MANIFEST).is_file() or run_around(path):
        verify_manifest(path)


def verify_file_if_listed(file: Path) -> None:
    """Raises `DataError` if the manifest beside a file lists it otherwise than it is."""
    if (file.parent / MANIFEST).is_file():
        verify_listed(file)


def read_tensors(file: Path, device: str = "cpu") -> dict[str, Tensor]:
    """The tensors of a safetensors file; raises `DataError` where it is missing or damaged."""
    try:
        return load_file(file, device=device)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{file}: missing or damaged ({error})") from error


def stored_names(path: Path) -> dict[str, Path]:
    """The weights in a model's folder by name, with the file that each is in."""
    found = {}
    for file in check_weights(path):
        with safe_open(file, framework="pt") as weights:
            found |= dict.fromkeys(weights.keys(), file)
    return found


def stored_weight(path: Path, name: str) -> Tensor:
    """One weight of a model's folder, in the type that it is stored in.

    Raises:
        DataError: there is none of this name.
    """
    file = stored_names(path).get(name)
    if file is None:
        raise DataError(f"{path}: expected {name}, found none; {mend(path)}")
    with safe_open(file, framework="pt") as weights:
        return weights.get_tensor(name)
