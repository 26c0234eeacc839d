"""Which host tensors came in a batch of a DataLoader."""

from __future__ import annotations

import contextlib
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from gapless import trees

_MAX_STORAGES = 256
"""Storages of past batches that are remembered, beside all those of the last one: older batches are rarely
copied."""


class Batches:
    """The storages of the last batches. A weak reference to each keeps its address from being reused."""

    def __init__(self) -> None:
        self._storages: dict[int, StorageWeakRef] = {}
        self._opaque = False

    def add(self, batch: Any) -> None:
        """Remember the tensors of `batch`, which a DataLoader has returned."""
        tensors = list(trees.tensors(batch))
        for tensor in tensors:
            with contextlib.suppress(NotImplementedError, RuntimeError):  # no storage
                reference = StorageWeakRef(tensor.untyped_storage())
                self._storages[reference.cdata] = reference
        while len(self._storages) > max(_MAX_STORAGES, len(tensors)):
            del self._storages[next(iter(self._storages))]
        self._opaque |= not tensors

    def holds(self, tensor: Tensor) -> bool | None:
        """Whether `tensor` is a batch or part of one; None if a batch had no visible tensors."""
        try:
            address = tensor.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError):
            return None
        if address in self._storages:
            return True
        return None if self._opaque else False
