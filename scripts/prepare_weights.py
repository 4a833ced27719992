"""Builds the tiny models and downloads the large ones: every other script finds its weights here.

Writes FOLDER/tiny-actor, FOLDER/tiny-encoder and FOLDER/<organisation>/<name>. A folder with a
manifest.json is complete: the same command leaves it alone, and mends one that is damaged.

    python scripts/prepare_weights.py --config configs/prepare_weights/gridworld_tiny.yaml
    python scripts/prepare_weights.py --config configs/prepare_weights/gridworld_mistral7b.yaml
"""

from pathlib import Path

from lactchain.console import table
from lactchain.run import launch
from lactchain.settings import LoraSettings, PrepareWeightsConfig


def main(config: PrepareWeightsConfig) -> None:
    if config.dry_run:
        from lactchain.models.memory import SHAPES, memory_table

        table(f"Memory to train {' and '.join(SHAPES)}", memory_table(LoraSettings()))
        return
    from lactchain.data.base_models import (
        prepare_download,
        prepare_tiny_actor,
        prepare_tiny_encoder,
    )

    folder = Path(config.folder)
    if config.tiny is not None:
        actor = folder / "tiny-actor"
        prepare_tiny_actor(actor, config.tiny, config.environment, config.seed)
        prepare_tiny_encoder(folder / "tiny-encoder", actor)
    for model in config.download:
        prepare_download(folder / model, model)


if __name__ == "__main__":
    launch(main, PrepareWeightsConfig)
