"""Where and how models run: device, modes that are put back, weights spread by FSDP2.

What works on sharded weights also works on whole ones. What gathers or spreads is collective: every
process calls it, in the same order.
"""

import gc
import os
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

import torch
import transformers
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

# Its lines go the way of all others, on which no text of a model's folder commands a terminal.
transformers.utils.logging.disable_default_handler()
transformers.utils.logging.enable_propagation()


def device() -> torch.device:
    """This process's accelerator, or the CPU where there is none or accelerate was told so."""
    wants_cpu = os.environ.get("ACCELERATE_USE_CPU", "false").lower() in ("1", "true", "yes")
    if wants_cpu or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def computes_in_bfloat16() -> bool:
    """Whether the device multiplies in bfloat16; a CPU that cannot takes longer than in float32."""
    if device().type != "cpu":
        return True
    able = getattr(torch.cpu, "get_capabilities", dict)()  # newer than the oldest torch we take
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def free_memory() -> None:
    """Frees models that are not used any more, and what torch keeps of them on a GPU.

    A trainer knows itself as its callback, so that its model waits for the garbage collector.
    """
    gc.collect()
    torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device had no more memory; torch's class for it does not stand for a CPU's."""
    words = ("can't allocate memory", "not enough memory", "CUDA error: out of memory")
    return isinstance(error, torch.OutOfMemoryError) or any(w in str(error) for w in words)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Runs `model` in evaluation mode: no dropout, and no gradient checkpointing.

    In train mode with checkpointing on, a loop with cached keys is silently wrong.
    """
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def quiet(progress: bool = False) -> Iterator[None]:
    """Silences transformers' reports on loading and saving: what matters in them is checked."""
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not progress:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


# --- weights of a base, which frozen models have in memory once -----------------------------------

Parameters = WeakValueDictionary[tuple[type, str, torch.dtype], nn.Parameter]

_held: defaultdict[Hashable, Parameters] = defaultdict(WeakValueDictionary)
"""By files, type and device: an actor and a critic may be two adapters on the same weights."""


def held(files: Sequence[Path], dtype: torch.dtype) -> Parameters:
    """The matrices of frozen models of these files, for as long as some model has them."""
    stats = [file.stat() for file in files]
    bytes_of_files = tuple((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for s in stats)
    return _held[bytes_of_files, dtype, device()]


def share(model: PreTrainedModel, parameters: Parameters) -> PreTrainedModel:
    """The frozen model, on this process's device, with what is held already in place of its own.

    Vectors, such as the biases that some adapters train, stay its own.
    """
    trunk = model.base_model
    same = {
        id(weight): parameters.setdefault((type(trunk), name, weight.dtype), weight)
        for name, weight in trunk.named_parameters()
        if weight.dim() > 1
    }
    for module in model.modules():  # of all: an output layer may be tied to the embeddings
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, same.get(id(weight), weight))
    return model.to(device())


def own_parameters(model: nn.Module) -> None:
    """Copies what a model may share, a layer at a time, for one who writes into it."""
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(weight.clone(), weight.requires_grad))


# --- weights that FSDP2 spread over processes -----------------------------------------------------


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def put(target: Tensor, tensor: Tensor) -> None:
    """Copies a whole tensor into one that may be sharded."""
    tensor = tensor.to(target.dtype).to(target.device)
    if isinstance(target, DTensor):
        tensor = distribute_tensor(tensor, target.device_mesh, target.placements)
    target.copy_(tensor)


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 spread this model's weights."""
    return any(isinstance(module, FSDPModule) for module in model.modules())


def whole_state(model: nn.Module, only_trained: bool) -> dict[str, Tensor] | None:
    """The state of a sharded model on the CPU of the first process, empty elsewhere; else None.

    With `only_trained` frozen weights are left out, which are most of a model with an adapter.
    """
    if not is_sharded(model):
        return None
    options = StateDictOptions(
        full_state_dict=True, cpu_offload=True, ignore_frozen_params=only_trained
    )
    return get_model_state_dict(model, options=options)
