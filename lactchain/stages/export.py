"""Exports an actor as one model: base and adapter merged in float32, rounded to --dtype.

Reads the actor's weights and its adapter; writes RUN/model/, which vLLM, SGLang, llama.cpp's
converter or transformers load by themselves: weights in the base's shards, tokenizer, chat
template, model card. Says what share of the update the type keeps: of short trainings much of it is
lost in bfloat16, and less in float16 where the weights are not too large for that. Nothing leaves
this machine unless --push_to_hub names a repository.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lactchain import plugins
from lactchain.config.settings import PlayerConfig, RunConfig, check
from lactchain.runs import distributed
from lactchain.runs.process import is_dry_run
from lactchain.runs.run import Run
from lactchain.stages.running import stage
from lactchain.storage.files import disk_errors


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
        folder = Path(config.run.run_dir) / "model"
        plugins.required("push", "push_to_hub")(folder, config.push_to_hub, config.public)
    return begun.summary


def export(config: ExportConfig, run: Run) -> dict[str, Any]:
    """The model of a configuration in RUN/model."""
    from lactchain.models.export import export_actor

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
    plugins.call("card", config, run, "model", summary)
    return summary
