"""What a configuration loads, as shapes: no weights are read, and none need be there yet.

A model that was not downloaded counts by its published shape (`SHAPES`), an adapter that was not
trained by the settings that it will be trained with.
"""

import os
from pathlib import Path

import psutil
import torch
from transformers import PretrainedConfig

from lactchain.errors import DataError
from lactchain.files import read_json
from lactchain.models.adapters import ADAPTER_FILES, Task, merges
from lactchain.models.critic import MEANING, EmbeddingCritic
from lactchain.models.headed import stored_bits
from lactchain.models.loading import SMALL_MODEL_BYTES, load_shape, resolve_dtype
from lactchain.models.memory import SHAPES
from lactchain.models.meta_models import Heads, ModelSpec
from lactchain.models.places import resolve_weights
from lactchain.models.runtime import device, free_memory
from lactchain.models.values import ValueModel
from lactchain.models.weight_files import check_weights
from lactchain.settings import CriticConfig, LoraSettings, ModelConfig, PlayerConfig


def is_large(model: str) -> bool:
    """Whether the weights in a model's folder take more than a gigabyte.

    Models that are not there are left to those who load them, who say how to get them.
    """
    try:
        files = check_weights(resolve_weights(model))
    except DataError:
        return False
    return sum(file.stat().st_size for file in files) > SMALL_MODEL_BYTES


def actor_spec(config: PlayerConfig, *, training: bool = False) -> ModelSpec:
    """The actor, with the adapter that it has, or that it gets in training."""
    own = getattr(config, "lora", None)  # of a config that learns
    lora = own if training else None
    if config.adapter is not None:
        lora = _adapter_settings(Path(config.adapter)) or own or LoraSettings()
    spec = _spec(config, config.model, "CAUSAL_LM", lora, all_trained=training and lora is None)
    merged = not training and merges(spec.dtype, spec.bits is not None)
    return spec if not merged else ModelSpec(spec.shape, dtype=spec.dtype)


def critic_spec(config: CriticConfig, *, training: bool = False) -> ModelSpec:
    """The critic, with the adapter that it has, or that it gets in training."""
    lora = config.lora if training else None
    if config.checkpoint is not None:
        lora = _adapter_settings(Path(config.checkpoint)) or config.lora
    all_trained = lora is None and (training or config.checkpoint is not None)
    return _spec(config, config.model, "SEQ_CLS", lora, all_trained=all_trained)


def saved_critic(folder: str, actor: PlayerConfig) -> CriticConfig:
    """How a trained critic is loaded; one that is yet to be trained counts by the actor's shape."""
    if not (Path(folder) / EmbeddingCritic.config_file).is_file():
        return CriticConfig(model=actor.model, lora=LoraSettings(), dtype=actor.dtype)
    stored = EmbeddingCritic.read_meaning(Path(folder))
    known = {name: stored[name] for name in ("model", *MEANING)}
    dtype = stored_bits(stored) or stored.get("dtype", "auto")
    return CriticConfig(**known, checkpoint=folder, dtype=dtype)


def saved_values(folder: str, actor: PlayerConfig) -> tuple[ModelSpec, Heads]:
    """The trunk of trained values and their heads; those that are not there count by the actor."""
    spec = actor_spec(actor, training=True)
    width = spec.shape.get_text_config().hidden_size
    if not (Path(folder) / ValueModel.config_file).is_file():
        return spec, Heads(2, 2 * width, target=True)
    _, _, meaning = ValueModel.read_meaning(Path(folder))
    return spec, Heads(meaning.num_q_heads, meaning.head_size, target=meaning.method == "ilql")


def autocast() -> bool:
    """Whether accelerate was told to compute in bfloat16."""
    return os.environ.get("ACCELERATE_MIXED_PRECISION", "no") == "bf16"


def available_memory() -> int:
    """Bytes that this process may still take on its device.

    Of a GPU, what is free; of a computer, what the system or this group of processes can give,
    shared out among the processes of this launch. What was used before is let go of first.
    """
    free_memory()
    if device().type == "cuda":
        return torch.cuda.mem_get_info(device())[0]
    free = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    limit = group / "memory.max"
    if limit.is_file() and (text := limit.read_text().strip()) != "max":
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        free = min(free, int(text) - used + int(stat["inactive_file"]))
    return free // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _spec(
    config: ModelConfig, model: str, task: Task, lora: LoraSettings | None, *, all_trained: bool
) -> ModelSpec:
    shape = shape_of(model)
    dtype = resolve_dtype(config, shape, all_trained=all_trained)
    as_stored = dtype == (shape.dtype or torch.bfloat16)
    mapped = device().type == "cpu" and config.bits is None and as_stored
    return ModelSpec(shape, task, dtype, config.bits, lora, mapped)


def shape_of(model: str) -> PretrainedConfig:
    """The config.json of a model, or its published shape where it is not downloaded.

    Raises:
        DataError: there is no such model, and its shape is unknown.
    """
    try:
        folder = resolve_weights(model)
    except DataError:
        if model not in SHAPES:
            raise
        return SHAPES[model]
    return load_shape(folder)


def _adapter_settings(folder: Path) -> LoraSettings | None:
    """The settings of an adapter in a folder; None where there is none."""
    file = folder / ADAPTER_FILES[0]
    if not file.is_file():
        return None
    stored = read_json(file)
    return LoraSettings(
        r=stored["r"], alpha=stored["lora_alpha"], target_modules=stored["target_modules"]
    )
