"""Builds the tiny models and downloads the large ones: every other script finds its weights here.

Writes FOLDER/tiny-base (untrained), FOLDER/tiny-encoder, FOLDER/tiny-actor (the base after a warm
start, whose run is FOLDER/tiny-warm-start), and FOLDER/<organisation>/<name>. A folder with a
manifest.json is complete: the same command leaves it alone, mends one that is damaged, and goes on
where it was killed.

    python scripts/prepare_weights.py --config configs/prepare_weights/gridworld_tiny.yaml
    python scripts/prepare_weights.py --config configs/prepare_weights/gridworld_mistral7b.yaml
"""

from pathlib import Path

import train_bc

from lactchain.console import table
from lactchain.jobs import PrepareWeightsConfig
from lactchain.process import launch
from lactchain.settings import LoraSettings


def main(config: PrepareWeightsConfig) -> None:
    if config.dry_run:
        from lactchain.models.memory import SHAPES, memory_table

        table(f"Memory to train {' and '.join(SHAPES)}", memory_table(LoraSettings()))
        return
    from lactchain.data.base_models import (
        prepare_download,
        prepare_tiny_actor,
        prepare_tiny_encoder,
        prepare_warm_actor,
    )

    folder = Path(config.folder)
    if config.tiny is not None:
        base = folder / "tiny-base"
        prepare_tiny_actor(base, config.tiny, config.environment, config.seed)
        prepare_tiny_encoder(folder / "tiny-encoder", base)
    if config.warm_start is not None:
        prepare_warm_actor(config, train_bc.main)
    for model in config.download:
        prepare_download(folder / model, model)


if __name__ == "__main__":
    launch(main, PrepareWeightsConfig)
