"""An adapter multiplied into its base: one folder that every engine loads, without PEFT.

The sum is made in float32, a weight at a time, and rounded once to the type that is asked for. An
update is often smaller than the distance between two numbers of 16 bits: how much of it survives is
measured (`ExportReport`).
"""

import json
import math
import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from safetensors import safe_open
from torch import Tensor

from lactchain.config.settings import PlayerConfig
from lactchain.errors import DataError, NonFiniteError
from lactchain.models.actor import POLICY_FILE
from lactchain.models.adapters import ADAPTER_FILES, base_checksum, check_adapter
from lactchain.models.loading import load_tokenizer
from lactchain.models.weights import INDEX, check_weights, read_tensors, resolve_weights
from lactchain.storage.files import read_json
from lactchain.storage.manifests import write_manifest

BESIDE = ("tokenizer*", "*.jinja", "generation_config.json", "special_tokens_map.json", "LICENSE*")
"""What is copied as it is."""

PLAIN = ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out")
"""Settings of an adapter that are not set in what is merged here."""

TYPE_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
"""The names that safetensors has for the types of weights."""

ExportType = Literal["bfloat16", "float16", "float32"]


@dataclass
class ExportReport:
    """What became of the update.

    Attributes:
        num_parameters: weights that were written.
        kept: <rounded(W + Δ) − W, Δ> / <Δ, Δ> by weight matrix: 1 where nothing is lost.
        norms: <Δ, Δ> by weight matrix.
    """

    num_parameters: int = 0
    kept: dict[str, float] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)

    @property
    def share_kept(self) -> float:
        """The share of the whole update that the type keeps; NaN without an update."""
        total = sum(self.norms.values())
        kept = sum(share * self.norms[name] for name, share in self.kept.items())
        return kept / total if total else math.nan

    @property
    def worst(self) -> str | None:
        """The weight matrix that keeps least; None without an update."""
        return min(self.kept, key=self.kept.__getitem__, default=None)


def export_actor(config: PlayerConfig, folder: str | Path, dtype: ExportType) -> ExportReport:
    """Writes the actor of `config` as one model, with its tokenizer; the manifest last.

    Shards are those of the base, and one weight at a time is in memory.

    Raises:
        DataError: base or adapter are missing, damaged, do not belong together, or the adapter is
            not a plain LoRA of this base's weights.
        NonFiniteError: a weight is too large for the type.
    """
    base, folder = resolve_weights(config.model), Path(folder)
    if (base / "critic_config.json").is_file():
        raise DataError(f"{base}: expected a language model, got a critic; give its run's actor")
    load_tokenizer(base, padding_side="left", chat=True)
    updates = _Updates(base, config.adapter)
    report = ExportReport()
    folder.mkdir(parents=True, exist_ok=True)
    places: dict[str, str] = {}
    for file in check_weights(base):
        places |= _write_shard(file, folder / file.name, getattr(torch, dtype), updates, report)
    updates.require_all(report)
    _write_beside(base, folder, dtype, places, report)
    asked = Path(config.adapter or base) / POLICY_FILE
    if asked.is_file():
        shutil.copyfile(asked, folder / POLICY_FILE)
    facts = {"base_fingerprint": base_checksum(base), "adapter": config.adapter, "dtype": dtype}
    write_manifest(folder, facts)
    return report


class _Updates:
    """The products B A of an adapter, each made when it is asked for."""

    def __init__(self, base: Path, adapter: str | None) -> None:
        self.folder, self.weights, self.scale = adapter, {}, 0.0
        if adapter is None:
            return
        check_adapter(Path(adapter), base)
        settings = read_json(Path(adapter) / ADAPTER_FILES[0])
        stored = read_tensors(Path(adapter) / ADAPTER_FILES[1])
        if any(".experts." in name for name in stored):
            raise DataError(
                f"{adapter}: updates of experts cannot be merged; give engines the adapter beside "
                "its base, or train one whose lora.target_modules name the attention's layers alone"
            )
        unusual = [name for name in PLAIN if settings.get(name)]
        if unusual:
            raise DataError(f"{adapter}: expected a plain LoRA adapter, got one with {unusual[0]}")
        divisor = math.sqrt(settings["r"]) if settings.get("use_rslora") else settings["r"]
        self.scale = settings["lora_alpha"] / divisor
        self.weights = {name.removeprefix("base_model.model."): w for name, w in stored.items()}

    def of(self, name: str) -> Tensor | None:
        """The update of a weight of the base, in float32; None where there is none."""
        module = name.removesuffix(".weight")
        if f"{module}.lora_B.weight" not in self.weights:
            return None
        a, b = (self.weights[f"{module}.lora_{x}.weight"].float() for x in "AB")
        return self.scale * (b @ a)

    def require_all(self, report: ExportReport) -> None:
        """Raises `DataError` if the adapter changes what is no weight of the base."""
        named = {name.partition(".lora_")[0] for name in self.weights}
        left = sorted(named - {name.removesuffix(".weight") for name in report.kept})
        if left:
            raise DataError(
                f"{self.folder}: {len(left)} of its weights, such as {left[0]}, have no weight of "
                "the base beside them; this adapter cannot be merged"
            )


def _write_shard(
    source: Path, target: Path, dtype: torch.dtype, updates: _Updates, report: ExportReport
) -> dict[str, str]:
    """Merges one weight file; returns where each of its weights is."""
    with safe_open(source, framework="pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118

        def merged() -> Iterator[Tensor]:
            for name in shapes:
                yield _merged(name, file.get_tensor(name), dtype, updates.of(name), report)

        write_tensors(target, shapes, dtype, merged())
    return dict.fromkeys(shapes, target.name)


def _merged(
    name: str, weight: Tensor, dtype: torch.dtype, update: Tensor | None, report: ExportReport
) -> Tensor:
    """The weight with its update, rounded; notes how much of the update that keeps."""
    report.num_parameters += weight.numel()
    whole = weight if update is None else weight.float()
    rounded = (whole if update is None else whole + update).to(dtype)
    if not rounded.isfinite().all():
        raise NonFiniteError(f"{name}: too large for {dtype}, or not finite; export in bfloat16")
    if update is not None:
        norm = update.square().sum(dtype=torch.float64).item()
        taken = ((rounded.float() - whole) * update).sum(dtype=torch.float64).item()
        report.kept[name], report.norms[name] = taken / norm if norm else 1.0, norm
    return rounded


def _write_beside(
    base: Path, folder: Path, dtype: ExportType, places: dict[str, str], report: ExportReport
) -> None:
    """Configuration, index of the shards, tokenizer with its chat template."""
    config = read_json(base / "config.json")
    config.pop("torch_dtype", None)
    (folder / "config.json").write_text(json.dumps(config | {"dtype": dtype}, indent=2) + "\n")
    if (base / INDEX).is_file():
        size = report.num_parameters * getattr(torch, dtype).itemsize
        index = {"metadata": {"total_size": size}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    for pattern in BESIDE:
        for file in base.glob(pattern):
            shutil.copyfile(file, folder / file.name)


def write_tensors(
    file: str | Path,
    shapes: Mapping[str, Iterable[int]],
    dtype: torch.dtype,
    tensors: Iterable[Tensor],
) -> None:
    """Writes a safetensors file tensor by tensor, so that a shard is never in memory whole.

    Args:
        shapes: of all tensors by name, in the order in which `tensors` gives them.
        dtype: of the file; tensors of another type are cast.
    """
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    end, kind = 0, TYPE_NAMES[dtype]
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that what follows is aligned
    with Path(file).open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            stream.write(tensor.to(dtype).contiguous().view(torch.uint8).numpy().data)
