"""Weights that FSDP2 spread over processes, read and written as if they were in one place.

All of it also works on tensors that are whole. What gathers or spreads is collective: every process
calls it, in the same order.
"""

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, example: Tensor) -> Tensor:
    """A tensor as `example` is kept: on its device, and sharded where that is."""
    tensor = tensor.to(example.device)
    if isinstance(tensor, DTensor) or not isinstance(example, DTensor):
        return tensor
    return distribute_tensor(tensor, example.device_mesh, example.placements)


@torch.no_grad()
def put(target: Tensor, tensor: Tensor) -> None:
    """Copies a whole tensor into one that may be sharded."""
    target.copy_(shard_like(tensor.to(target.dtype), target))


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 spread this model's weights."""
    return any(isinstance(module, FSDPModule) for module in model.modules())


def reshard(model: nn.Module) -> None:
    """Frees weights that FSDP2 gathered for a forward pass and still holds."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole_state(model: nn.Module, only_trained: bool) -> dict[str, Tensor] | None:
    """The state of a sharded model on the CPU of the first process, empty elsewhere; else None.

    Args:
        only_trained: leave frozen weights out, which are most of a model with an adapter.
    """
    if not is_sharded(model):
        return None
    options = StateDictOptions(
        full_state_dict=True, cpu_offload=True, ignore_frozen_params=only_trained
    )
    return get_model_state_dict(model, options=options)
