"""Exports an actor, or a critic, as one model: base and adapter merged in float32.

Reads the actor's weights and its adapter; writes RUN/model/, which vLLM, SGLang, llama.cpp's
converter or transformers load by themselves. Weights are rounded to --dtype, and it says what share
of the update that keeps: of short trainings much of it is lost in bfloat16, and less in float16
where the weights are not too large for that. With --critic a trained critic becomes a reward model.
"""

from dataclasses import dataclass
from typing import Any, Literal

from lactchain import plugins
from lactchain.config.settings import PlayerConfig, RunConfig
from lactchain.errors import DataError
from lactchain.runs.run import Run
from lactchain.stages.stage_run import stage
from lactchain.storage.files import disk_errors


@dataclass(frozen=True)
class ExportConfig:
    """An actor, or a critic, as one model for other engines."""

    run: RunConfig = RunConfig(run_dir="runs/export")
    actor: PlayerConfig = PlayerConfig()
    """Whose weights and adapter are merged; how it answers does not matter here."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """The type to round to. Adapters of short trainings lose much in 16 bits; the share that is
    kept is printed."""
    critic: str | None = None
    """Folder of a trained critic to export in the actor's place, always in float32; null: the
    actor."""
    critic_as: Literal["sequence_classifier", "token_classifier", "sentence_transformer"] = (
        "sequence_classifier"
    )
    """What reads that critic: a classifier of one label a text (TRL's reward models), or a token
    (verl's value models), or sentence-transformers, whose embedding is the value."""


def main(config: ExportConfig) -> dict[str, Any]:
    """Writes the model; returns what became of the update."""
    with stage(f"Exported to {config.run.run_dir}/model", config) as run:
        if run.outcome is None:
            run.finish(export(config, run))
        elif run.outcome and not any((run.directory / "model").rglob("*.safetensors")):
            raise DataError(
                f"{run.directory}/model: the export that was there is gone; remove {run.directory}"
                " and give the same command"
            )
    return run.outcome


def export(config: ExportConfig, run: Run) -> dict[str, Any]:
    """The model of a configuration in RUN/model."""
    from lactchain_extras.weights.critic_export import export_critic
    from lactchain_extras.weights.merging import export_actor

    folder = run.path("model")
    with disk_errors(folder):
        if config.critic is not None:
            summary = export_critic(config.critic, folder, config.critic_as)
        else:
            summary = export_actor(config.actor, folder, config.dtype)
    plugins.call("card", config, run, "model", summary)
    return summary
