"""The storages that a captured graph uses, and descriptions of tensors in them that keep nothing alive."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch

from gapless.emulation.memory.requests import reports_storage_ends
from gapless.torch_internals import (
    DisableTorchDispatch,
    DisableTorchFunction,
    conj_view,
    neg_view,
    storage_use_count,
)

Tensor = torch.Tensor
Storage: Any = torch.UntypedStorage


class GraphSlot:
    """One storage used by a capture. `strong_ref` keeps a storage from before the capture alive while it
    lasts; afterwards, and for storages that the capture created (`is_new`), only a weak reference is held.

    `original_bytes` is the content before the capture wrote into it. `is_output` says that Python still held
    a new storage when the capture ended, `is_pooled` that a graph pool keeps its memory. `index` is its
    device, or a negative place of the host.
    """

    __slots__ = (
        "_weak",
        "address",
        "index",
        "is_new",
        "is_output",
        "is_pooled",
        "is_written",
        "nbytes",
        "number",
        "original_bytes",
        "strong_ref",
    )

    def __init__(self, number: int, storage: Any, is_new: bool, index: int) -> None:
        self.number = number
        self.is_new = is_new
        self.index = index
        self.nbytes = storage.nbytes()
        self.address = storage.data_ptr()
        self.strong_ref: Any = None if is_new else storage
        self._weak = weakref.ref(storage)
        self.original_bytes: Any = None
        self.is_written = False
        self.is_output = False
        self.is_pooled = False

    def storage(self) -> Any:
        """Return the storage, or None if it no longer exists."""
        return self.strong_ref if self.strong_ref is not None else self._weak()

    def release(self) -> None:
        """Drop the strong reference after the capture: a CUDA graph keeps no input alive."""
        if reports_storage_ends():
            self.strong_ref = None

    def is_unreferenced(self) -> bool:
        """Whether only the graph still refers to the storage."""
        if self.strong_ref is None:
            return self._weak() is None
        with DisableTorchFunction():
            return bool(storage_use_count(self.strong_ref._cdata) <= 1)

    def is_resized(self) -> bool:
        """Whether a storage from before the capture has moved or changed size since its first use. New ones
        do not count: they live in the graph's pool, the same in each replay."""
        storage = None if self.is_new else self.storage()
        return storage is not None and (storage.data_ptr() != self.address or storage.nbytes() != self.nbytes)

    def save(self) -> None:
        """Copy the content of the storage, once, for `restore`."""
        if self.original_bytes is None and not self.is_new:
            with DisableTorchDispatch(), DisableTorchFunction():
                self.original_bytes = bytes_of(self.strong_ref).clone()

    def restore(self) -> None:
        """Write back the content that `save` copied."""
        if self.original_bytes is not None:
            if self.strong_ref is not None and self.strong_ref.nbytes() == self.original_bytes.numel():
                with DisableTorchDispatch(), DisableTorchFunction():
                    bytes_of(self.strong_ref).copy_(self.original_bytes)
            self.original_bytes = None


class View(NamedTuple):
    """A tensor's place and form in a slot: recorded instead of the tensor."""

    slot: GraphSlot
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conjugate: bool
    negative: bool

    @staticmethod
    def of(tensor: Tensor, slot: GraphSlot) -> View:
        return View(
            slot, tensor.dtype, tuple(tensor.size()), tensor.stride(), int(tensor.storage_offset()),
            tensor.is_conj(), tensor.is_neg(),
        )  # fmt: skip

    def at(self, storage: Any) -> Tensor:
        """Return a tensor of this form over `storage`."""
        with DisableTorchDispatch(), DisableTorchFunction():
            tensor = torch.empty(0, dtype=self.dtype, device=_CPU)
            tensor.set_(storage, self.offset, self.size, self.stride)
            if self.conjugate:
                tensor = conj_view(tensor)
            return neg_view(tensor) if self.negative else tensor


_CPU = torch.device("cpu")


def bytes_of(storage: Any) -> Tensor:
    """Return a uint8 tensor over all bytes of `storage`."""
    return torch.empty(0, dtype=torch.uint8, device=_CPU).set_(storage)


def storage_of(tensor: Tensor) -> Any:
    """Return the storage of a strided tensor; None for other layouts."""
    try:
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
            return None
        return tensor.untyped_storage()
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        return None
