"""Values of a kernel: blocks with the programs in front, pointers into storages, descriptors.

A block of shape ``(M, N)`` is a tensor of shape ``(p, m, n)``: `p` is the number of programs or 1 (the same
for all of them), and each of the others is its full size or 1 (the same along it). What is equal everywhere
is so computed once, and most of what makes up an address is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from gapless.kernels.ramps import Ramp, full

Tensor = torch.Tensor

DTYPES: dict[str, torch.dtype] = {
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "index": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "tf32": torch.float32,
    "f64": torch.float64,
    "f8E5M2": torch.float8_e5m2,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2FNUZ": torch.float8_e5m2fnuz,
    "f8E4M3FNUZ": torch.float8_e4m3fnuz,
}
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of as many bytes, for values that are only moved."""


class Unsupported(Exception):
    """The kernel does something that is not evaluated; the text says what."""


def dtype_of(element: str) -> torch.dtype:
    """The torch dtype of an element type.

    Raises:
        Unsupported: there is none.
    """
    dtype = DTYPES.get(element)
    if dtype is None:
        raise Unsupported(f"elements of type {element}")
    return dtype


class Memory:
    """A storage, seen as one row of elements of any type."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.address: int = storage.data_ptr()
        self.size: int = storage.nbytes()
        self._flat: dict[torch.dtype, Tensor] = {}

    def flat(self, dtype: torch.dtype) -> Tensor:
        """All of it as a row of `dtype`, sharing memory."""
        found = self._flat.get(dtype)
        if found is None:
            count = self.size // dtype.itemsize
            found = torch.empty(0, dtype=dtype).set_(self.storage, 0, (count,), (1,))
            self._flat[dtype] = found
        return found


class Heap:
    """All memory that a kernel can reach through addresses that are numbers."""

    def __init__(self, find: Callable[[], Iterable[Any]] | None = None) -> None:
        self._find = find
        self._memories: list[Memory] = []
        self._starts: list[int] = []

    def add(self, memories: Iterable[Memory]) -> None:
        """Make more memory reachable."""
        known = {one.address for one in self._memories}
        for one in memories:
            if one.size and one.address not in known:
                known.add(one.address)
                self._memories.append(one)
        self._memories.sort(key=lambda one: one.address)
        self._starts = [one.address for one in self._memories]

    def at(self, address: int) -> Memory:
        """The memory that holds `address`.

        Raises:
            Unsupported: none that is known does.
        """
        for _ in range(2):
            position = bisect_right(self._starts, address) - 1
            if position >= 0:
                found = self._memories[position]
                if address < found.address + found.size:
                    return found
            if self._find is None:
                break
            self.add(map(Memory, self._find()))
            self._find = None
        raise Unsupported("an address that belongs to no tensor on the device")


@dataclass(frozen=True, slots=True)
class Pointer:
    """Addresses of `element` values.

    `at` counts elements from the beginning of `memory`; without a memory they are addresses in bytes.
    """

    element: str
    memory: Memory | None
    at: Tensor | Ramp

    def map(self, change: Callable[[Tensor], Tensor]) -> Pointer:
        """The same memory at changed places."""
        return Pointer(self.element, self.memory, change(self.places))

    @property
    def places(self) -> Tensor:
        """`at`, written out."""
        out: Tensor = full(self.at)
        return out

    @property
    def addresses(self) -> Tensor:
        """Addresses in bytes."""
        if self.memory is None:
            return self.places
        return self.places * dtype_of(self.element).itemsize + self.memory.address

    @property
    def absolute(self) -> Pointer:
        """The same by addresses in bytes."""
        return Pointer(self.element, None, self.addresses)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A tensor in memory of which blocks are read and written: sizes and strides as `int64` values.

    `padding` fills what is read outside of it.
    """

    base: Pointer
    sizes: tuple[Tensor, ...]
    strides: tuple[Tensor, ...]
    padding: float = 0.0


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`change` done to a block, or to the places of a block of pointers."""
    return value.map(change) if isinstance(value, Pointer) else change(value)


def spread(mask: Tensor, rank: int) -> Tensor:
    """A value per program beside blocks of that rank."""
    return mask.view(-1, *(1,) * rank)


def expanded(block: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A block with all its elements; the programs stay as they are."""
    return block if block.shape[1:] == shape else block.expand(-1, *shape)


def chosen(mask: Tensor, yes: Any, no: Any) -> Any:
    """`yes` where `mask` (a block, or one for each program) says so, else `no`."""
    if yes is no:
        return yes
    if hasattr(yes, "either"):  # part of shared memory
        return yes.either(mask, no)
    if isinstance(yes, Pointer) and isinstance(no, Pointer):
        if yes.memory is not no.memory:
            yes, no = yes.absolute, no.absolute
        return Pointer(yes.element, yes.memory, chosen(mask, yes.at, no.at))
    if isinstance(yes, Ramp) or isinstance(no, Ramp):
        if mask.dim() == 1 and isinstance(yes, Ramp) and isinstance(no, Ramp) and yes.steps == no.steps:
            return Ramp(chosen(mask, yes.base, no.base), yes.steps)
        yes, no = full(yes), full(no)
    if isinstance(yes, Descriptor) and isinstance(no, Descriptor):
        return Descriptor(
            chosen(mask, yes.base, no.base),
            tuple(chosen(mask, a, b) for a, b in zip(yes.sizes, no.sizes, strict=True)),
            tuple(chosen(mask, a, b) for a, b in zip(yes.strides, no.strides, strict=True)),
            yes.padding,
        )
    if mask.dim() < yes.dim():
        mask = spread(mask, yes.dim() - 1)
    if yes.dtype.is_floating_point and yes.dtype.itemsize == 1:  # no kernel for float8
        return torch.where(mask, yes.view(torch.int8), no.view(torch.int8)).view(yes.dtype)
    return torch.where(mask, yes, no)
