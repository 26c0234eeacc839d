"""What DataLoaders have handed out: whether a tensor on the host came with a batch."""

from __future__ import annotations

import contextlib
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from gapless import trees

_KEPT = 256


class Batches:
    """The storages of the last batches. A weak reference to each keeps its address from being used again."""

    def __init__(self) -> None:
        self._storages: dict[int, StorageWeakRef] = {}
        self._opaque = False

    def came(self, batch: Any) -> None:
        """A DataLoader has handed out `batch`."""
        tensors = list(trees.tensors(batch))
        for one in tensors:
            with contextlib.suppress(NotImplementedError, RuntimeError):  # it has no storage
                reference = StorageWeakRef(one.untyped_storage())
                self._storages[reference.cdata] = reference
        while len(self._storages) > max(_KEPT, len(tensors)):
            del self._storages[next(iter(self._storages))]
        self._opaque |= not tensors

    def holds(self, tensor: Tensor) -> bool | None:
        """Whether `tensor` is of a batch, or a part of one; None where a batch hides what is in it."""
        try:
            address = tensor.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError):
            return None
        if address in self._storages:
            return True
        return None if self._opaque else False
