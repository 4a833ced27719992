"""An adapter multiplied into its base: one folder that every engine loads, without PEFT.

PEFT does so in float32, and the sum is rounded once to the type that is asked for. An update is
often smaller than the distance between two numbers of 16 bits: how much of it survives is measured.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftModel
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel

from lactchain.config.settings import PlayerConfig
from lactchain.errors import DataError, NonFiniteError
from lactchain.models.actor import POLICY_FILE
from lactchain.models.adapters import base_checksum, merged
from lactchain.models.loading import load_actor
from lactchain.models.runtime import own_parameters, quiet
from lactchain.models.weights import check_weights, resolve_weights
from lactchain.storage.manifests import write_manifest

BESIDE = ("tokenizer*", "*.jinja", "generation_config.json", "special_tokens_map.json", "LICENSE*")
"""What is copied as it is."""

TOLERANCE = 1e-3
"""By how much a log-probability may be another once an adapter is multiplied in."""

ExportType = Literal["bfloat16", "float16", "float32"]


def export_actor(config: PlayerConfig, folder: str | Path, dtype: ExportType) -> dict[str, Any]:
    """Writes the actor of `config` as one model, with its tokenizer; the manifest last.

    All of its weights are in memory in float32.

    Returns:
        `num_parameters` and `dtype`; with an adapter also `share_of_update_kept`, which is
        <rounded(W + Δ) - W, Δ> / <Δ, Δ>, and the least one of any weight, with its name.

    Raises:
        DataError: base or adapter are missing, damaged, do not belong together, or cannot be one.
        NonFiniteError: a weight is too large for the type.
    """
    base, folder = resolve_weights(config.model), Path(folder)
    adapted, _ = load_actor(replace(config, dtype="float32"))
    before = _logprobs(adapted)
    model = merged(adapted)
    same = not isinstance(model, PeftModel) and (_logprobs(model) - before).abs().max() <= TOLERANCE
    if not same:
        what = f"an adapter that can be multiplied into {base}"
        got = "got one whose answers would be others; give engines the adapter beside its base"
        raise DataError(f"{config.adapter or base}: expected {what}, {got}")
    facts = {"num_parameters": sum(weight.numel() for weight in model.parameters())}
    facts |= {"dtype": dtype} | _kept(model, base, getattr(torch, dtype))
    own_parameters(model)  # or whoever shares them has them rounded, too
    model.tie_weights()
    with quiet():
        model.to(getattr(torch, dtype)).save_pretrained(folder)
    for pattern in BESIDE:
        for file in base.glob(pattern):
            shutil.copyfile(file, folder / file.name)
    asked = Path(config.adapter or base) / POLICY_FILE
    if asked.is_file():
        shutil.copyfile(asked, folder / POLICY_FILE)
    made_from = {"base_fingerprint": base_checksum(base), "adapter": config.adapter}
    write_manifest(folder, made_from | {"dtype": dtype})
    return facts


@torch.inference_mode()
def _logprobs(model: PreTrainedModel | PeftModel) -> Tensor:
    """Of what may follow a few tokens."""
    ids = torch.arange(min(32, model.config.get_text_config().vocab_size), device=model.device)
    return model(input_ids=ids[None]).logits.log_softmax(-1)


def _kept(model: PreTrainedModel, base: Path, dtype: torch.dtype) -> dict[str, Any]:
    """How much of the update of its base a model keeps in a type; nothing without an update."""
    stored, kept, norms = check_weights(base), {}, {}
    for name, weight in model.state_dict().items():
        whole = weight.cpu()
        rounded = whole.to(dtype)
        if not rounded.isfinite().all():
            problem = f"too large for {dtype}, or not finite; export in bfloat16"
            raise NonFiniteError(f"{name}: {problem}")
        if name not in stored:  # experts, which are stored one by one
            continue
        with safe_open(stored[name], framework="pt") as file:
            before = file.get_tensor(name).float()
        update = whole - before
        if update.any():
            norms[name] = update.square().sum(dtype=torch.float64).item()
            taken = ((rounded.float() - before) * update).sum(dtype=torch.float64).item()
            kept[name] = taken / norms[name]
    if not kept:
        return {}
    worst = min(kept, key=kept.__getitem__)
    taken = sum(share * norms[name] for name, share in kept.items())
    return {
        "share_of_update_kept": taken / sum(norms.values()),
        "least_share_kept": kept[worst],
        "least_kept_in": worst,
    }
