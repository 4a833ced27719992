r"""Exports an actor as one model: base and adapter merged in float32, rounded to --dtype.

Reads the actor's weights and its adapter; writes RUN/model/, which vLLM, SGLang, llama.cpp's
converter or transformers load by themselves: weights in the base's shards, tokenizer, chat
template. Says what share of the update the type keeps: of short trainings much of it is lost in
bfloat16, and less in float16 where the weights are not too large for that.

    python scripts/export.py --config configs/export/gridworld_tiny.yaml
    python scripts/export.py --config configs/export/gridworld_mistral7b.yaml --dtype float32
"""

from lactchain.console import figures
from lactchain.jobs import ExportConfig
from lactchain.process import launch
from lactchain.run import Run


def main(config: ExportConfig) -> dict:
    from lactchain.files import disk_errors
    from lactchain.models.export import export_actor

    with Run.open(config.run.run_dir, config, resume=config.run.resume) as run:
        if run.finished:
            return run.summary
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
        run.finish(summary)
    figures(f"Exported to {folder}", summary)
    return summary


if __name__ == "__main__":
    launch(main, ExportConfig)
