"""The storages that a captured graph uses, and tensors in them without a tensor being kept."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch

from gapless.emulation.memory.requests import supported
from gapless.torch_internals import (
    DisableTorchDispatch,
    DisableTorchFunction,
    conj_view,
    neg_view,
    storage_use_count,
)

Tensor = torch.Tensor
Storage: Any = torch.UntypedStorage


class Slot:
    """One storage. What was there before the capture is `held` while that lasts; from then on it ends when
    nobody uses it, as what the capture made does (`there` gives it as long as it lives).

    `saved` is what it held before the capture wrote into it, `known` whether Python had it when the capture
    ended: an output, if the capture made it. `pooled` says that a pool of graphs keeps its memory. `index`
    is its device, or a place of the host.
    """

    __slots__ = (
        "_weak",
        "address",
        "held",
        "index",
        "known",
        "made",
        "nbytes",
        "number",
        "pooled",
        "saved",
        "written",
    )

    def __init__(self, number: int, storage: Any, made: bool, index: int) -> None:
        self.number = number
        self.made = made
        self.index = index
        self.nbytes = storage.nbytes()
        self.address = storage.data_ptr()
        self.held: Any = None if made else storage
        self._weak = weakref.ref(storage)
        self.saved: Any = None
        self.written = False
        self.known = False
        self.pooled = False

    def there(self) -> Any:
        """The storage, or None where it has ended."""
        return self.held if self.held is not None else self._weak()

    def release(self) -> None:
        """The capture is over: a graph knows addresses, and keeps nothing alive that was there before."""
        if supported():
            self.held = None

    def forgotten(self) -> bool:
        """Whether nothing but the graph holds the storage any more."""
        if self.held is None:
            return self._weak() is None
        with DisableTorchFunction():
            return bool(storage_use_count(self.held._cdata) <= 1)

    def moved(self) -> bool:
        """Whether it was resized since it was first used. What the capture resizes itself has memory of the
        graph's pool while it is used, in every replay the same."""
        there = None if self.made else self.there()
        return there is not None and (there.data_ptr() != self.address or there.nbytes() != self.nbytes)

    def save(self) -> None:
        """Keep what the storage holds, once."""
        if self.saved is None and not self.made:
            with DisableTorchDispatch(), DisableTorchFunction():
                self.saved = bytes_of(self.held).clone()

    def restore(self) -> None:
        """Put back what was kept."""
        if self.saved is not None:
            if self.held is not None and self.held.nbytes() == self.saved.numel():
                with DisableTorchDispatch(), DisableTorchFunction():
                    bytes_of(self.held).copy_(self.saved)
            self.saved = None


class View(NamedTuple):
    """A tensor by where it lies: what a record keeps in the place of one."""

    slot: Slot
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conjugate: bool
    negative: bool

    @staticmethod
    def of(tensor: Tensor, slot: Slot) -> View:
        return View(
            slot, tensor.dtype, tuple(tensor.size()), tensor.stride(), int(tensor.storage_offset()),
            tensor.is_conj(), tensor.is_neg(),
        )  # fmt: skip

    def at(self, storage: Any) -> Tensor:
        """A tensor of this form in `storage`."""
        with DisableTorchDispatch(), DisableTorchFunction():
            made = torch.empty(0, dtype=self.dtype, device=_CPU)
            made.set_(storage, self.offset, self.size, self.stride)
            if self.conjugate:
                made = conj_view(made)
            return neg_view(made) if self.negative else made


_CPU = torch.device("cpu")


def bytes_of(storage: Any) -> Tensor:
    """All bytes of `storage`."""
    return torch.empty(0, dtype=torch.uint8, device=_CPU).set_(storage)


def storage_of(tensor: Tensor) -> Any:
    """The storage of a strided tensor; None of others."""
    try:
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
            return None
        return tensor.untyped_storage()
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        return None
