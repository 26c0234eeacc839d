"""Values of a kernel: blocks with the programs as first axis, pointers into storages, descriptors.

A block of shape ``(M, N)`` is a tensor of shape ``(p, m, n)``: `p` is the number of programs, or 1 if all
have the same; each other size is the full one, or 1 if the block is constant along it. Equal elements are
thus computed once, as most parts of an address are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from gapless.kernels.ramps import Ramp, expand_ramp

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
SAME_SIZE_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer type of each size in bytes, for values that are only moved."""


class Unsupported(Exception):
    """The kernel does something that cannot be evaluated; the text says what."""


def dtype_of(element: str) -> torch.dtype:
    """Return the torch dtype of an element type.

    Raises:
        Unsupported: there is none.
    """
    dtype = DTYPES.get(element)
    if dtype is None:
        raise Unsupported(f"elements of type {element}")
    return dtype


class StorageView:
    """A storage as one row of elements of any type."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.address: int = storage.data_ptr()
        self.size: int = storage.nbytes()
        self._flat: dict[torch.dtype, Tensor] = {}

    def flat(self, dtype: torch.dtype) -> Tensor:
        """Return the whole storage as a row of `dtype`, sharing memory."""
        row = self._flat.get(dtype)
        if row is None:
            count = self.size // dtype.itemsize
            row = torch.empty(0, dtype=dtype).set_(self.storage, 0, (count,), (1,))
            self._flat[dtype] = row
        return row


class Heap:
    """All memory that a kernel can reach through addresses as numbers."""

    def __init__(self, find: Callable[[], Iterable[Any]] | None = None) -> None:
        self._find = find
        self._memories: list[StorageView] = []
        self._starts: list[int] = []

    def add(self, memories: Iterable[StorageView]) -> None:
        """Make more storages reachable."""
        addresses = {memory.address for memory in self._memories}
        for memory in memories:
            if memory.size and memory.address not in addresses:
                addresses.add(memory.address)
                self._memories.append(memory)
        self._memories.sort(key=lambda memory: memory.address)
        self._starts = [memory.address for memory in self._memories]

    def at(self, address: int) -> StorageView:
        """Return the storage that contains `address`.

        Raises:
            Unsupported: no known storage contains it.
        """
        for _ in range(2):
            position = bisect_right(self._starts, address) - 1
            if position >= 0:
                memory = self._memories[position]
                if address < memory.address + memory.size:
                    return memory
            if self._find is None:
                break
            self.add(map(StorageView, self._find()))
            self._find = None
        raise Unsupported("an address that belongs to no tensor on the device")


@dataclass(frozen=True, slots=True)
class Pointer:
    """Pointers to `element` values.

    `at` counts elements from the beginning of `memory`; without a memory they are addresses in bytes.
    """

    element: str
    memory: StorageView | None
    at: Tensor | Ramp

    def map(self, change: Callable[[Tensor], Tensor]) -> Pointer:
        """Return pointers to changed places of the same memory."""
        return Pointer(self.element, self.memory, change(self.places))

    @property
    def places(self) -> Tensor:
        """`at` as a tensor."""
        out: Tensor = expand_ramp(self.at)
        return out

    @property
    def addresses(self) -> Tensor:
        """Addresses in bytes."""
        if self.memory is None:
            return self.places
        return self.places * dtype_of(self.element).itemsize + self.memory.address

    @property
    def by_address(self) -> Pointer:
        """The same pointers as addresses in bytes."""
        return Pointer(self.element, None, self.addresses)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A tensor in memory whose blocks are read and written: sizes and strides as `int64` values.

    `padding` is the value of elements outside of it.
    """

    base: Pointer
    sizes: tuple[Tensor, ...]
    strides: tuple[Tensor, ...]
    padding: float = 0.0


def map_places(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply `change` to a block, or to the places of a block of pointers."""
    return value.map(change) if isinstance(value, Pointer) else change(value)


def spread_over_block(mask: Tensor, rank: int) -> Tensor:
    """Reshape a value per program so that it broadcasts over blocks of that rank."""
    return mask.view(-1, *(1,) * rank)


def expand_block(block: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a block with all its elements; the axis of programs is unchanged."""
    return block if block.shape[1:] == shape else block.expand(-1, *shape)


def choose(mask: Tensor, yes: Any, no: Any) -> Any:
    """Return `yes` where `mask` (a block, or a value per program) is true, else `no`."""
    if yes is no:
        return yes
    if hasattr(yes, "either"):  # part of shared memory
        return yes.either(mask, no)
    if isinstance(yes, Pointer) and isinstance(no, Pointer):
        if yes.memory is not no.memory:
            yes, no = yes.by_address, no.by_address
        return Pointer(yes.element, yes.memory, choose(mask, yes.at, no.at))
    if isinstance(yes, Ramp) or isinstance(no, Ramp):
        if mask.dim() == 1 and isinstance(yes, Ramp) and isinstance(no, Ramp) and yes.steps == no.steps:
            return Ramp(choose(mask, yes.base, no.base), yes.steps)
        yes, no = expand_ramp(yes), expand_ramp(no)
    if isinstance(yes, Descriptor) and isinstance(no, Descriptor):
        return Descriptor(
            choose(mask, yes.base, no.base),
            tuple(choose(mask, a, b) for a, b in zip(yes.sizes, no.sizes, strict=True)),
            tuple(choose(mask, a, b) for a, b in zip(yes.strides, no.strides, strict=True)),
            yes.padding,
        )
    if mask.dim() < yes.dim():
        mask = spread_over_block(mask, yes.dim() - 1)
    if yes.dtype.is_floating_point and yes.dtype.itemsize == 1:  # no kernel for float8
        return torch.where(mask, yes.view(torch.int8), no.view(torch.int8)).view(yes.dtype)
    return torch.where(mask, yes, no)
