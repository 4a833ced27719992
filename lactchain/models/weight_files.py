"""safetensors files that are written tensor by tensor: a shard is never in memory whole."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

TYPE_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
"""The format's names of the types that weights have."""


def write_tensors(
    file: str | Path,
    shapes: Mapping[str, Iterable[int]],
    dtype: torch.dtype,
    tensors: Iterable[Tensor],
) -> None:
    """Writes tensors, which come in the order of their shapes; each is let go of when written."""
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {
            "dtype": TYPE_NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that what follows is aligned
    with Path(file).open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            stream.write(tensor.to(dtype).contiguous().view(torch.uint8).numpy().data)
