"""The base models that every other stage starts from, and the tiny ones that a run builds itself.

A model's folder is complete when its `manifest.json` is there; the manifest also says which
settings it was made from. A complete folder is left alone, a damaged one is made again; one that
was made from other settings is refused with a `ConfigError`.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lactchain.config.parsing import differences
from lactchain.config.settings import EnvironmentConfig
from lactchain.config.strategies import STRATEGIES, resolve_strategy
from lactchain.config.weights import TinyModelConfig
from lactchain.environments.language import make_language_env
from lactchain.environments.scripted import random_play_texts
from lactchain.errors import ConfigError, DataError
from lactchain.models.adapters import base_checksum
from lactchain.models.tiny import build_tiny_actor, build_tiny_encoder
from lactchain.storage.files import disk_errors
from lactchain.storage.manifests import MANIFEST, read_manifest, verify_manifest, write_manifest

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

    Of models that nobody has built, packaged, converted or downloaded here: their name alone.
    """
    file = Path(model) / MANIFEST
    recorded = read_manifest(file) if file.is_file() else {}
    if "made_from" not in recorded:
        return {"name": model}
    files = recorded["files"].items()
    sums = {name: facts["sha256"] for name, facts in files if name.endswith(".safetensors")}
    kept = {name: recorded[name] for name in ("made_from", "quantisation") if name in recorded}
    return kept | {"sha256": sums}


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
