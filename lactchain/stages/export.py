"""Exports an actor as one model: base and adapter merged in float32, rounded to --dtype.

Reads the actor's weights and its adapter; writes RUN/model/, which vLLM, SGLang, llama.cpp's
converter or transformers load by themselves: weights in the base's shards, tokenizer, chat
template. Says what share of the update the type keeps: of short trainings much of it is lost in
bfloat16, and less in float16 where the weights are not too large for that.
"""

from dataclasses import dataclass
from typing import Any, Literal

from lactchain.files import disk_errors
from lactchain.run import Run
from lactchain.settings import PlayerConfig, RunConfig
from lactchain.stages.running import run_stage


@dataclass(frozen=True)
class ExportConfig:
    """An actor as one model for other engines."""

    run: RunConfig = RunConfig(run_dir="runs/export")
    actor: PlayerConfig = PlayerConfig()
    """Whose weights and adapter are merged; how it answers does not matter here."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """The type to round to. Adapters of short trainings lose much in 16 bits; the share that is
    kept is printed."""


def main(config: ExportConfig) -> dict[str, Any]:
    """Writes the model; returns what became of the update."""
    return run_stage(f"Exported to {config.run.run_dir}/model", config, export)


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
    return summary
