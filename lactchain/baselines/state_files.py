"""State, on disk too: nested mappings of arrays and plain values, as safetensors and JSON."""

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from gymnasium.vector import VectorEnv

from lactchain.errors import DataError
from lactchain.runs.run import Run
from lactchain.storage.checkpoints import clear_place, latest_checkpoint, prune_checkpoints
from lactchain.storage.files import atomic_write, make_folder, read_json
from lactchain.storage.manifests import MANIFEST, read_manifest, write_manifest

ARRAYS, VALUES = "state.safetensors", "state.json"
_ARRAY = "array:"


class Stored:
    """What goes on from those of its attributes that `stored` names.

    They are tensors and arrays, generators, what JSON can hold, and objects of this kind, by
    themselves or in a list or a mapping; and copies of a world, which are put back.
    """

    stored: tuple[str, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        """Copies of them, tensors as arrays."""
        return {name: over_leaves(_state_of, getattr(self, name)) for name in self.stored}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was called."""
        for name in self.stored:
            setattr(self, name, _taken_over(getattr(self, name), state[name]))


def over_leaves(call: Callable[[Any], Any], tree: Any) -> Any:
    """Nested mappings and lists with what a call makes of the value at each place."""
    if isinstance(tree, Mapping):
        return {key: over_leaves(call, value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [over_leaves(call, value) for value in tree]
    return call(tree)


def _state_of(value: Any) -> Any:
    import torch  # here, so that copies of a world cost no torch

    if isinstance(value, Stored):
        return value.state_dict()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, VectorEnv):
        return copy.deepcopy(value.unwrapped.get_state())
    if isinstance(value, torch.Tensor):
        return value.numpy().copy()
    return copy.deepcopy(value)


def _taken_over(held: Any, state: Any) -> Any:
    """What an attribute becomes by a state: what it is now, where there is an object to change."""
    import torch

    if isinstance(held, Stored):
        held.load_state_dict(state)
    elif isinstance(held, np.random.Generator):
        held.bit_generator.state = state
    elif isinstance(held, VectorEnv):
        held.unwrapped.set_state(copy.deepcopy(state))
    elif isinstance(held, torch.Tensor):
        held.copy_(torch.as_tensor(state))  # the views on it stay
    elif isinstance(held, dict):
        return {name: _taken_over(part, state[name]) for name, part in held.items()}
    elif isinstance(held, list) and held and isinstance(held[0], Stored):
        return [_taken_over(part, given) for part, given in zip(held, state, strict=True)]
    else:
        return np.array(state) if isinstance(held, np.ndarray) else state
    return held


def save_state(directory: Path, state: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Writes a state into a folder, and its manifest last, which records the `facts` besides.

    The folder is made where it is not there. A state is nested mappings and lists of arrays, and
    what JSON can hold. `DiskError` where the folder cannot be written.
    """
    make_folder(directory)
    arrays: dict[str, np.ndarray] = {}
    values = _take_arrays(state, "", arrays)
    atomic_write(directory / ARRAYS, safetensors.numpy.save(arrays))
    atomic_write(directory / VALUES, json.dumps(values))
    write_manifest(directory, facts)


def load_state(directory: Path) -> dict[str, Any]:
    """A state that `save_state` wrote; `DataError` where it is none."""
    try:
        arrays = safetensors.numpy.load((directory / ARRAYS).read_bytes())
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"{directory / ARRAYS}: missing or damaged ({error})") from error

    def with_array(value: Any) -> Any:
        is_name = isinstance(value, str) and value.startswith(_ARRAY)
        return arrays[value.removeprefix(_ARRAY)] if is_name else value

    return over_leaves(with_array, read_json(directory / VALUES))


def save_checkpoint(run: Run, step: int, state: Mapping[str, Any]) -> None:
    """Writes a state into RUN/checkpoints/checkpoint-STEP; all but the two newest of the run go.

    `DiskError` where the folder cannot be written.
    """
    checkpoint = run.path("checkpoints") / f"checkpoint-{step}"
    facts = {"step": step, "metrics": run.mark_metrics()}
    clear_place(checkpoint)
    save_state(checkpoint, state, facts)
    prune_checkpoints(checkpoint.parent)


def resume(run: Run, held: Any) -> bool:
    """Lets something `Stored`, of so many `steps`, go on from the run's newest whole checkpoint.

    Later records of metrics go. Returns whether there is a checkpoint.
    """
    checkpoint = latest_checkpoint(run.path("checkpoints"))
    if checkpoint is None:
        run.truncate_metrics(-1)
        return False
    held.load_state_dict(load_state(checkpoint))
    run.truncate_metrics(held.steps, read_manifest(checkpoint / MANIFEST)["metrics"])
    return True


def _take_arrays(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """The value with each array replaced by its name, under which it goes into `arrays`."""
    if isinstance(value, np.ndarray):
        arrays[name] = np.ascontiguousarray(value)
        return f"{_ARRAY}{name}"
    if isinstance(value, Mapping):
        return {key: _take_arrays(entry, f"{name}/{key}", arrays) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_take_arrays(entry, f"{name}/{n}", arrays) for n, entry in enumerate(value)]
    return value.item() if isinstance(value, np.generic) else value
