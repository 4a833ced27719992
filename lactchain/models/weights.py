"""Where the weights of models are, whether they are whole, and how one comes by those that are not.

Nothing is downloaded but by `lactchain prepare_weights`, and every missing piece is an error that
names this command. Weights are read from safetensors only, never from pickles. Asking for a folder
costs no torch, nor the hub's client.
"""

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from lactchain.config.yaml_files import CONFIGS, load, shipped_settings
from lactchain.errors import DataError
from lactchain.storage.files import read_json
from lactchain.storage.manifests import verify_listed

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS_FOLDER = Path("weights")
"""Where `lactchain prepare_weights` puts models, seen from the working directory."""

INDEX = "model.safetensors.index.json"
"""Which file each weight is in, where there are several."""

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
ADAPTER_RECORD = "lactchain_adapter.json"
"""Beside an adapter's weights: which base model it belongs to."""
RECORDED = ("base", "base_fingerprint", "tokenizer_fingerprint", "sha256")
"""In that file: the folder of the model that an adapter was trained on, the checksums of that
model, and those of `ADAPTER_FILES`."""
SEEN_FROM_HERE = "base_seen_from_here"
"""In that file, too: where the base is, seen from there, if both are in one run."""

TINY = ("tiny-base", "tiny-encoder", "tiny-actor")


def resolve_weights(model: str | Path) -> Path:
    """The folder of a model: as given, under weights/, or in the Hugging Face cache."""
    for folder in (Path(model), WEIGHTS_FOLDER / model):
        if folder.exists():
            _check_kind(folder)
        if folder.is_dir():
            return folder
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(huggingface_hub.snapshot_download(str(model), local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise DataError(
            f"{model}: no such folder, nor a model in the Hugging Face cache; {mend(model)}"
        ) from error


def _check_kind(path: Path) -> None:
    """Raises `DataError` unless a path is a folder of plain files that may hold a whole model."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:  # whoever opens a pipe waits for ever
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise DataError(f"{file}: expected a plain file, got a pipe or device; remove it")
    if (path / "config.json").is_file():
        return
    if gguf := [file for file in files if file.suffix == ".gguf"]:
        raise DataError(
            f"{gguf[0]}: expected a folder of safetensors, got a GGUF file; convert it: lactchain "
            f"prepare_weights --gguf '[{gguf[0]}]', which makes {WEIGHTS_FOLDER / gguf[0].stem}"
        )
    if (path / "adapter_config.json").is_file():
        base = read_json(path / "adapter_config.json").get("base_model_name_or_path")
        raise DataError(
            f"{path}: expected a model, got an adapter; give its base as the model ({base}), and "
            "this folder as actor.adapter, or as critic.checkpoint where it is a critic"
        )


def mend(model: str | Path) -> str:
    """How a model is made or fetched anew, as far as its name tells."""
    path = Path(model)
    inside = path.relative_to(WEIGHTS_FOLDER) if path.is_relative_to(WEIGHTS_FOLDER) else path
    if path in _made_by_presets():
        return f"run: lactchain prepare_weights --config {_made_by_presets()[path]}"
    is_here = inside.parts[:1] == ("runs",) or inside.parent.is_dir()
    if len(inside.parts) == 2 and not path.is_absolute() and not is_here:  # a hub id
        return f"if the hub has it, run: {download_command(inside)}"
    return (
        "correct its name or copy it here whole; lactchain prepare_weights makes and fetches some"
    )


@cache
def _made_by_presets() -> dict[Path, str]:
    """The folders that shipped presets make, each with the name of its preset."""
    found: dict[Path, str] = {}
    for preset in shipped_settings("prepare_weights"):
        made = load(CONFIGS / "prepare_weights" / f"{preset}.yaml")
        names = [*made.get("packages", ()), *(TINY if "tiny" in made else ())]
        found = {Path(made["folder"]) / name: preset for name in names} | found
    return found


def download_command(hub_id: str | Path) -> str:
    """What fetches a model of the hub into weights/, or goes on with it."""
    return f"lactchain prepare_weights --download '[{hub_id}]'"


# --- what is in them ------------------------------------------------------------------------------


def read_model_json(file: Path) -> dict[str, Any]:
    """The object in a file of a model's folder; an error says how to come by the model."""
    return read_json(file, mend(file.parent))


def check_weights(path: Path) -> dict[str, Path]:
    """The file of each weight in a model's folder: whole, as its header says, or a `DataError`."""
    index = path / INDEX
    weight_map = read_model_json(index).get("weight_map") if index.is_file() else {}
    if not isinstance(weight_map, dict):
        raise DataError(f"{index}: damaged (it has no weight_map); {mend(path)}")
    names = sorted(set(weight_map.values()))
    found: dict[str, Path] = {}
    for file in [path / name for name in names] or [path / "model.safetensors"]:
        if file.parent != path or not file.is_file():
            raise DataError(f"{file}: expected a weight file here, found none; {mend(path)}")
        try:
            with safe_open(file, framework="pt") as stored:
                kinds = {name: stored.get_slice(name).get_dtype() for name in stored.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise DataError(f"{file}: damaged or not readable ({error}); {mend(path)}") from error
        # Quantised weights are whole numbers, and their configuration says how to read them.
        others = [n for n, kind in kinds.items() if "F" not in kind and n.endswith("weight")]
        if others and "quantization_config" not in read_model_json(path / "config.json"):
            problem = f"{others[0]}: expected floating point, got {kinds[others[0]]}"
            raise DataError(f"{file}: {problem}; {mend(path)}")
        found |= dict.fromkeys(kinds, file)
    return found


def read_tensors(file: Path, device: str = "cpu") -> dict[str, "Tensor"]:
    """The tensors of a safetensors file; raises `DataError` where it is missing or damaged."""
    from safetensors.torch import load_file

    try:
        return load_file(file, device=device)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{file}: missing or damaged ({error})") from error


def prompt_of(folder: Path) -> str | None:
    """The text around each text by a folder of sentence-transformers: its default, or a query's."""
    file = folder / "config_sentence_transformers.json"
    settings = read_model_json(file) if file.is_file() else {}
    prompts, name = settings.get("prompts") or {}, settings.get("default_prompt_name") or "query"
    if not isinstance(prompts, dict) or not all(isinstance(p, str) for p in prompts.values()):
        raise DataError(f"{file}: prompts: expected texts by name; {mend(folder)}")
    return f"{prompts[name]}{{text}}" if isinstance(name, str) and prompts.get(name) else None


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
        if not all(isinstance(text, str) for text in (*list(record.values())[:3], *hashes)):
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
