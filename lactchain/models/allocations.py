"""Counts the bytes of the tensors that code makes, whether there is memory behind them or not.

Code that runs on tensors without numbers (`meta_models`) takes a second and no memory, whatever the
size of the model. So the memory of a training step is that of the layers, adapters and losses that
will run, and not of a formula about them.
"""

import weakref

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """Bytes of the tensors that are made while it is entered; those made before do not count.

    Attributes:
        live: bytes of the tensors that exist.
        peak: the greatest value of `live`.
        wide, wide_peak: the same, of tensors whose last dimension is `width`, such as logits.
    """

    def __init__(self, *before: Tensor, width: int = 0) -> None:
        """Counts nothing yet.

        Args:
            before: tensors that exist already, of which operations may return views.
            width: of the tensors to count apart.
        """
        super().__init__()
        self.live = self.peak = self.wide = self.wide_peak = 0
        self._width = width
        self._known: set[int] = {tensor.untyped_storage()._cdata for tensor in before}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._add(leaf)
        return result

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._known:
            return
        size = storage.nbytes()
        wide = size if tensor.shape[-1:] == (self._width,) else 0
        self._known.add(storage._cdata)
        weakref.finalize(storage, self._drop, storage._cdata, size, wide)
        self.live, self.wide = self.live + size, self.wide + wide
        self.peak, self.wide_peak = max(self.peak, self.live), max(self.wide_peak, self.wide)

    def _drop(self, key: int, size: int, wide: int) -> None:
        self._known.discard(key)
        self.live, self.wide = self.live - size, self.wide - wide
