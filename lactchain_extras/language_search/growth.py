"""Growing a Mistral (or any Llama-like model) without changing what it computes.

Source: Chen, Goodfellow & Shlens 2016 ("Net2Net"); Gong et al. 2019 (stacking). A layer adds to the
residual stream, so one whose two output projections are 0 adds nothing; a new unit of an MLP has no
effect while its outgoing weights are 0. Both learn from the first update on. A wider residual
stream would change every norm, so its width stays.
"""

import copy
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from lactchain.config.settings import ActorConfig
from lactchain.errors import ConfigError
from lactchain.models.loading import load_own_tokenizer
from lactchain.models.runtime import quiet
from lactchain.storage.files import disk_errors
from lactchain.storage.manifests import write_manifest

SILENT = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""What a layer writes into the residual stream."""


def add_layer(model: PreTrainedModel) -> PreTrainedModel:
    """The model with a copy of its last layer on top, which adds nothing yet.

    Raises:
        ConfigError: the model is not built like Llama.
    """
    _check_family(model)
    config = copy.deepcopy(model.config)
    last = config.num_hidden_layers - 1
    config.num_hidden_layers += 1
    weights = dict(model.state_dict())
    old, new = f"model.layers.{last}.", f"model.layers.{last + 1}."
    for name in [name for name in weights if name.startswith(old)]:
        part, copied = name.removeprefix(old), weights[name].clone()
        weights[new + part] = torch.zeros_like(copied) if part in SILENT else copied
    return _rebuilt(model, config, weights)


def add_mlp_units(model: PreTrainedModel, count: int, seed: int = 0) -> PreTrainedModel:
    """The model with `count` more units in every MLP; their output weights are 0.

    Raises:
        ConfigError: the model is not built like Llama.
    """
    _check_family(model)
    config = copy.deepcopy(model.config)
    config.intermediate_size += count
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, weight in model.state_dict().items():
        if name.endswith(("mlp.gate_proj.weight", "mlp.up_proj.weight")):
            rows = torch.randn(count, weight.shape[1], generator=generator)
            rows = rows * weight.float().square().mean().sqrt().cpu()
            weight = torch.cat([weight, rows.to(weight)])
        elif name.endswith("mlp.down_proj.weight"):
            weight = torch.cat([weight, weight.new_zeros(weight.shape[0], count)], dim=1)
        weights[name] = weight
    return _rebuilt(model, config, weights)


def disturb(model: PreTrainedModel, noise: float, seed: int = 0) -> PreTrainedModel:
    """The model with Gaussian noise on its weights, in units of each one's root mean square."""
    generator = torch.Generator().manual_seed(seed)
    noisy = {}
    for name, weight in model.state_dict().items():
        size = weight.float().square().mean().sqrt().cpu()
        drawn = torch.randn(weight.shape, generator=generator) * (noise * size)
        noisy[name] = weight + drawn.to(weight)
    return _rebuilt(model, model.config, noisy)


def write_model(model: PreTrainedModel, actor: ActorConfig, folder: str | Path) -> None:
    """Writes a model, with the tokenizer of the actor it came from, into a folder made anew.

    Raises:
        DiskError: the folder cannot be written.
    """
    tokenizer = load_own_tokenizer(actor)
    shutil.rmtree(folder, ignore_errors=True)
    with quiet(), disk_errors(folder):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    write_manifest(folder, {"parent": actor.model})


def _check_family(model: PreTrainedModel) -> None:
    names = {f"model.layers.0.{name}" for name in (*SILENT, "mlp.gate_proj.weight")}
    if not names <= model.state_dict().keys():
        kind = type(model).__name__
        raise ConfigError(f"architecture: expected a model built like Llama to grow, got {kind}")


def _rebuilt(
    model: PreTrainedModel, config: object, weights: dict[str, torch.Tensor]
) -> PreTrainedModel:
    """A model of another shape with given weights, of the same type and on the same device."""
    with torch.random.fork_rng(devices=[]):
        grown = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    grown.load_state_dict(weights)
    return grown.to(model.device).train(model.training)
