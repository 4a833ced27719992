"""States of agents, environments and searches as one file: arrays, tensors, and plain values."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lactchain.checkpoints import disk_errors
from lactchain.errors import DataError

ARRAY = "__array__"
"""Marks a numpy array, written as a tensor, so that it comes back as an array."""


def save_state(path: str | Path, state: Any) -> None:
    """Writes nested dicts and lists of arrays, tensors, numbers, text and None.

    Raises:
        DiskError: the disk is full or read-only.
    """
    with disk_errors(path):
        torch.save(_written(state), path)


def load_state(path: str | Path) -> Any:
    """Reads what `save_state` wrote; no code in the file is run.

    Raises:
        DataError: the file is missing or damaged.
    """
    try:
        return _read(torch.load(path, weights_only=True))
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise DataError(f"{path}: expected a state, {error}") from error


def _written(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _written(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_written(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return {ARRAY: torch.from_numpy(np.array(value))}  # a copy: views may be read-only
    if isinstance(value, np.generic):
        return value.item()
    return value


def _read(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {ARRAY}:
            return value[ARRAY].numpy()
        return {key: _read(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_read(entry) for entry in value]
    return value
