"""Where and how models run in this process: its device, and modes that are put back afterwards."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch
import transformers
from torch import nn

# Its lines go the way of all others, on which no text of a model's folder commands a terminal.
transformers.utils.logging.disable_default_handler()
transformers.utils.logging.enable_propagation()

TRUST = "LACTCHAIN_TRUST_REMOTE_CODE"
"""The environment variable that lets models run code of their own; no file can set it."""


def device() -> torch.device:
    """This process's accelerator, or the CPU where there is none or accelerate was told so."""
    wants_cpu = os.environ.get("ACCELERATE_USE_CPU", "false").lower() in ("1", "true", "yes")
    if wants_cpu or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def trusts_remote_code() -> bool:
    """Whether who started this process lets models run the code of their repositories."""
    return os.environ.get(TRUST, "0") == "1"


def free_memory() -> None:
    """Frees models that are not used any more, and what torch keeps of them on a GPU.

    A trainer and its callbacks know each other, so that its model waits for the garbage collector.
    """
    gc.collect()
    torch.cuda.empty_cache()


def available_memory() -> int:
    """Bytes that the device has to give, this process's share of a computer's."""
    free_memory()
    if device().type == "cuda":
        return torch.cuda.mem_get_info(device())[0]
    return psutil.virtual_memory().available // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


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
