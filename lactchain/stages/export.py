"""Exports an actor as one model: base and adapter merged in float32, rounded to --dtype.

Reads the actor's weights and its adapter; writes RUN/model/, which vLLM, SGLang, llama.cpp's
converter or transformers load by themselves: weights in the base's shards, tokenizer, chat
template, model card. Says what share of the update the type keeps: of short trainings much of it is
lost in bfloat16, and less in float16 where the weights are not too large for that. Nothing leaves
this machine unless --push_to_hub names a repository.
"""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lactchain import distributed
from lactchain.errors import ConfigError
from lactchain.files import disk_errors
from lactchain.process import is_dry_run
from lactchain.run import Run
from lactchain.settings import PlayerConfig, RunConfig, check
from lactchain.stages.running import run_stage

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExportConfig:
    """An actor as one model for other engines."""

    run: RunConfig = RunConfig(run_dir="runs/export")
    actor: PlayerConfig = PlayerConfig()
    """Whose weights and adapter are merged; how it answers does not matter here."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """The type to round to. Adapters of short trainings lose much in 16 bits; the share that is
    kept is printed."""
    push_to_hub: str | None = None
    """Name on the Hugging Face hub, such as user/model, of a repository that the folder is
    uploaded to once it is whole; a new one is made private. Null: nothing leaves this machine."""

    def __post_init__(self) -> None:
        name = self.push_to_hub
        fits = name is None or HUB_NAME.fullmatch(name) is not None
        check(fits, "push_to_hub", "a name such as user/model, or null", name)


def main(config: ExportConfig) -> dict[str, Any]:
    """Writes the model; returns what became of the update."""
    summary = run_stage(f"Exported to {config.run.run_dir}/model", config, export)
    if config.push_to_hub is not None and distributed.is_main() and not is_dry_run():
        push(Path(config.run.run_dir) / "model", config.push_to_hub)
    return summary


def export(config: ExportConfig, run: Run) -> dict[str, Any]:
    """The model of a configuration in RUN/model."""
    from lactchain.models.export import export_actor
    from lactchain.stages import cards

    folder = run.path("model")
    with disk_errors(folder):
        report = export_actor(config.actor, folder, config.dtype)
    summary = {"num_parameters": report.num_parameters, "dtype": config.dtype}
    if report.worst is not None:
        summary |= {
            "share_of_update_kept": report.share_kept,
            "least_share_kept": report.kept[report.worst],
            "least_kept_in": report.worst,
        }
    cards.write(cards.of_export, config, run, summary)
    return summary


def push(folder: Path, name: str) -> None:
    """Uploads a folder to the hub, into a repository that is made private where there is none.

    One that is there stays as public as it is; files of the same names are replaced, others stay.
    The hub's own client finds the token, in HF_TOKEN or where `hf auth login` has put it.

    Raises:
        ConfigError: there is no token that may write there, or the hub cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    api = HfApi()
    try:
        api.create_repo(name, private=True, exist_ok=True)
        address = api.upload_folder(repo_id=name, folder_path=folder)
    except (HTTPError, OSError) as error:  # of all kinds: no network, no token, no right
        reason, *_ = str(error).splitlines() or [type(error).__name__]
        raise ConfigError(
            f"push_to_hub: expected a hub that takes {name}, got: {reason}; log in with a token "
            "that may write (run: hf auth login), then give the same command again; the model is "
            "whole"
        ) from error
    log.info("%s: uploaded to %s", folder, address)
