"""The weight files of models: where they are, whether they are whole, fetched, and written.

Nothing is downloaded but by `lactchain prepare_weights`, and every missing piece is an error that
names this command. Weights are read from safetensors only, never from pickles.
"""

import json
import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from lactchain.errors import DataError
from lactchain.models.places import download_command, mend
from lactchain.storage.files import read_json
from lactchain.storage.manifests import MANIFEST, run_around, verify_listed, verify_manifest

INDEX = "model.safetensors.index.json"
"""Which file each weight is in, where there are several."""

TYPE_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
"""The names that safetensors has for the types of weights."""

WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "LICENSE*", "README.md"]

# Mistral publishes its weights twice, the second time in its own format.
DUPLICATES = ["consolidated*", "original/*", "onnx/*"]


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
        except SafetensorError as error:
            raise DataError(f"{file}: damaged ({error}); {mend(path)}") from error
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


def write_tensors(
    file: str | Path,
    shapes: Mapping[str, Iterable[int]],
    dtype: torch.dtype,
    tensors: Iterable[Tensor],
) -> None:
    """Writes a safetensors file tensor by tensor, so that a shard is never in memory whole.

    Args:
        shapes: of all tensors by name, in the order in which `tensors` gives them.
        dtype: of the file; tensors of another type are cast.
    """
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    end, kind = 0, TYPE_NAMES[dtype]
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that what follows is aligned
    with Path(file).open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            stream.write(tensor.to(dtype).contiguous().view(torch.uint8).numpy().data)


def download(model: str, folder: str | Path) -> None:
    """Downloads a model with its tokenizer into `folder`; what is there already stays.

    Shows progress; a download that was cut continues. Pickled weights are left where they are.

    Raises:
        DataError: no network, no such model, no access to it, or it came incomplete; the message
            names the command, and the page where a licence is accepted.
    """
    page, own = f"https://huggingface.co/{model}", Path(folder).parts[-2:] == Path(model).parts
    again = f"run: {download_command(model)}" if own else "give the same command"
    try:
        huggingface_hub.snapshot_download(
            model, local_dir=folder, allow_patterns=WANTED, ignore_patterns=DUPLICATES
        )
    except GatedRepoError as error:
        raise DataError(
            f"{model}: no access; accept its licence at {page}, log in (run: hf auth login), "
            f"then {again}"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise DataError(
            f"{model}: no such model at {page}, or a private one; log in (run: hf auth login) or "
            "correct the name"
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HTTPError) as error:
        raise DataError(
            f"{model}: the hub cannot be reached ({type(error).__name__}); once online, accept the "
            f"licence at {page} if it has one, then {again}"
        ) from error
    # Without a network the hub's client hands back a folder that holds anything at all.
    check_weights(Path(folder))
