"""Exports an actor, or a critic, as one model: base and adapter merged in float32.

Reads the actor's weights and its adapter; writes RUN/model/, which vLLM, SGLang, llama.cpp's
converter or transformers load by themselves: weights in the base's shards, tokenizer, chat
template, model card. They are rounded to --dtype, and it says what share of the update that keeps:
of short trainings much of it is lost in bfloat16, and less in float16 where the weights are not too
large for that. With --critic a trained critic becomes a reward model instead. Nothing leaves this
machine unless --push_to_hub names a repository.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from lactchain import plugins
from lactchain.config.settings import PlayerConfig, RunConfig, check
from lactchain.errors import ConfigError, LactChainError
from lactchain.runs import distributed
from lactchain.runs.process import is_dry_run
from lactchain.runs.run import Run
from lactchain.stages.running import stage
from lactchain.storage.files import disk_errors
from lactchain.storage.manifests import MANIFEST, read_manifest

if TYPE_CHECKING:
    from huggingface_hub import HfApi, ModelInfo

log = logging.getLogger("lactchain.export")  # it is shown where those of the core are


@dataclass(frozen=True)
class ExportConfig:
    """An actor, or a critic, as one model for other engines."""

    run: RunConfig = RunConfig(run_dir="runs/export")
    actor: PlayerConfig = PlayerConfig()
    """Whose weights and adapter are merged; how it answers does not matter here."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """The type to round to. Adapters of short trainings lose much in 16 bits; the share that is
    kept is printed."""
    push_to_hub: str | None = None
    """Name on the Hugging Face hub, such as user/model, of a repository that the folder is
    uploaded to once it is whole; a new one is made private. Null: nothing leaves this machine."""
    critic: str | None = None
    """Folder of a trained critic to export in the actor's place, always in float32; null: the
    actor."""
    critic_as: Literal["sequence_classifier", "token_classifier", "sentence_transformer"] = (
        "sequence_classifier"
    )
    """What reads that critic: a classifier of one label a text (TRL's reward models), or a token
    (verl's value models), or sentence-transformers, whose embedding is the value."""
    public: bool = False
    """Whether everybody may read that repository: a new one is then made public. False: one that is
    public already is refused."""

    def __post_init__(self) -> None:
        name = self.push_to_hub
        fits = name is None or _is_hub_name(name)
        check(fits, "push_to_hub", "a name such as user/model, or null", name)


def _is_hub_name(name: str) -> bool:
    """Whether the hub's client takes it: of a user, and by the hub's own rules."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return "/" in name


def main(config: ExportConfig) -> dict[str, Any]:
    """Writes the model; returns what became of the update."""
    with stage(f"Exported to {config.run.run_dir}/model", config) as begun:
        if begun.is_open:
            begun.finish(export(config, begun.run))
    if config.push_to_hub is not None and distributed.is_main() and not is_dry_run():
        push(Path(config.run.run_dir) / "model", config.push_to_hub, config.public)
    return begun.summary


def export(config: ExportConfig, run: Run) -> dict[str, Any]:
    """The model of a configuration in RUN/model."""
    from lactchain_extras.weights.critic_export import export_critic
    from lactchain_extras.weights.merging import export_actor

    folder = run.path("model")
    if config.critic is not None:
        with disk_errors(folder):
            return export_critic(config.critic, folder, config.critic_as)
    with disk_errors(folder):
        report = export_actor(config.actor, folder, config.dtype)
    summary = {"num_parameters": report.num_parameters, "dtype": config.dtype}
    if report.worst is not None:
        summary |= {
            "share_of_update_kept": report.share_kept,
            "least_share_kept": report.kept[report.worst],
            "least_kept_in": report.worst,
        }
    plugins.call("card", config, run, "model", summary)
    return summary


def push(folder: Path, name: str, public: bool = False) -> None:
    """Uploads a folder to the hub, into a repository that is made where there is none.

    Files of the same names are replaced. Those of an earlier upload that the folder no longer has
    are deleted, as that upload's manifest lists them; others stay. The hub's own client finds the
    token, in HF_TOKEN or where `hf auth login` has put it.

    Args:
        public: whether everybody may read it: a new repository is private otherwise, and one that
            is public already is refused.

    Raises:
        ConfigError: everybody can read the repository, there is no token that may write there, or
            the hub cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    api = HfApi()
    try:
        api.create_repo(name, private=not public, exist_ok=True)
        there = api.model_info(name)
        _check_readers(there, public)
        seen = "a private repository" if there.private else "which everybody can read"
        outdated = _outdated(api, there, folder)
        gone = f"; deleting there: {', '.join(outdated)}" if outdated else ""
        log.info("%s: uploading to %s, %s%s", folder, name, seen, gone)
        exactly = [escape(file) for file in outdated]
        address = api.upload_folder(repo_id=name, folder_path=folder, delete_patterns=exactly)
    except (HTTPError, OSError) as error:  # of all kinds: no network, no token, no right
        reason, *_ = str(error).splitlines() or [type(error).__name__]
        raise ConfigError(
            f"push_to_hub: expected a hub that takes {name}, got: {reason}; log in with a token "
            "that may write (run: hf auth login), then give the same command again; the model is "
            "whole"
        ) from error
    log.info("%s: uploaded to %s", folder, address)


def _check_readers(there: ModelInfo, public: bool) -> None:
    if not (there.private or public):
        raise ConfigError(
            f"push_to_hub: expected a private repository, got {there.id}, which everybody can "
            "read; publish there with --public true, or name another one; the model is whole"
        )


def _outdated(api: HfApi, there: ModelInfo, folder: Path) -> list[str]:
    """Files in the repository that its manifest lists, and that the folder does not have."""
    files = {file.rfilename for file in there.siblings or ()}
    if MANIFEST not in files:
        return []
    with TemporaryDirectory() as cache:
        manifest = Path(api.hf_hub_download(there.id, MANIFEST, cache_dir=cache))
        try:
            listed = read_manifest(manifest).get("files", {})
        except LactChainError:  # somebody else's, or a later version's: nothing here is known
            return []
    held = {file.relative_to(folder).as_posix() for file in folder.rglob("*")}
    return sorted(files & listed.keys() - held)
