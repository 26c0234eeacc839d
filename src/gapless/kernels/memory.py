"""Masked gathers and scatters over flat storages, and how many bytes they move.

Places outside of a tensor's storage read as arbitrary values and are not written: on a GPU they would be
undefined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from gapless.kernels.machine import KernelMachine
from gapless.kernels.ramps import Ramp, expand_ramp, read_windows
from gapless.kernels.values import SAME_SIZE_INTEGERS, Pointer, StorageView, Tensor, choose, dtype_of

Shape = tuple[int, ...]


def load_block(
    machine: KernelMachine, pointer: Pointer, mask: Tensor | None, other: Any, shape: Shape
) -> Any:
    """Return the block of that shape at `pointer` where `mask` is true; `other` (or 0) elsewhere."""
    count_bytes(machine, machine.cost.read, pointer, mask, shape)
    inner = pointer.element
    points = inner.startswith("!tt.ptr<")
    dtype = torch.int64 if points else dtype_of(inner)
    out = gather_elements(machine, pointer, machine.active_mask(mask, len(shape)), dtype)
    if mask is not None:
        fill = torch.zeros((), dtype=dtype) if other is None else other
        out = choose(mask, out, fill.addresses if isinstance(fill, Pointer) else fill)
    return Pointer(inner[len("!tt.ptr<") : -1].split(",")[0], None, out) if points else out


def store_block(
    machine: KernelMachine, pointer: Pointer, value: Any, mask: Tensor | None, shape: Shape
) -> None:
    """Write a block of that shape where `mask` is true and the program is active."""
    count_bytes(machine, machine.cost.written, pointer, mask, shape)
    if isinstance(value, Pointer):
        value = value.addresses
    where = machine.active_mask(mask, len(shape))
    if pointer.memory is not None:
        scatter_elements(pointer.memory, pointer.places, value, where)
        return
    at = pointer.places if where is None else torch.where(where, pointer.places, 0)
    for memory, mask_there, inside in split_by_storage(machine, at):
        scatter_elements(memory, inside // value.dtype.itemsize, value, mask_there)


def gather_elements(
    machine: KernelMachine, pointer: Pointer, mask: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Return the elements at `pointer`; arbitrary ones where `mask` is false."""
    if pointer.memory is not None:
        return _take_elements(pointer.memory, pointer.at, mask, dtype)
    at = pointer.places if mask is None else torch.where(mask, pointer.places, 0)
    out = torch.zeros(at.shape, dtype=dtype)
    for memory, here, inside in split_by_storage(machine, at):
        out = choose(here, _take_elements(memory, inside // dtype.itemsize, here, dtype), out)
    return out


def split_by_storage(
    machine: KernelMachine, addresses: Tensor
) -> Iterator[tuple[StorageView, Tensor, Tensor]]:
    """Yield each storage that `addresses` lie in, the mask of those addresses, and their byte offsets.

    Raises:
        Unsupported: an address other than 0 lies in no known storage.
    """
    left = addresses != 0
    while bool(left.any()):
        memory = machine.heap.at(int(addresses[left][0]))
        inside = addresses - memory.address
        here = left & (inside >= 0) & (inside < memory.size)
        yield memory, here, inside
        left = left & ~here


def _take_elements(memory: StorageView, at: Tensor | Ramp, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    moved = SAME_SIZE_INTEGERS[dtype.itemsize] if dtype is not torch.float32 else dtype
    flat = memory.flat(moved)
    size = flat.numel()
    if size == 0:
        shape = at.shape if mask is None else torch.broadcast_shapes(at.shape, mask.shape)
        return torch.zeros(shape, dtype=moved).view(dtype)
    if isinstance(at, Ramp):
        window = read_windows(flat, at)
        if window is not None:
            return window.view(dtype)
    places: Tensor = expand_ramp(at)
    if mask is not None and _is_broadcastable(mask, places):
        places = places.masked_fill(~mask, 0)
    try:
        return flat.take(places).view(dtype)
    except (IndexError, RuntimeError):
        return flat.take(places.clamp(0, size - 1)).view(dtype)


def _is_broadcastable(mask: Tensor, places: Tensor) -> bool:
    """Whether a mask is no larger than the places it applies to."""
    return mask.dim() <= places.dim() and all(
        mask_size in (1, size) for mask_size, size in zip(mask.shape[::-1], places.shape[::-1], strict=False)
    )


def scatter_elements(memory: StorageView, at: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """Write to a storage; places outside of it are dropped."""
    bits = SAME_SIZE_INTEGERS[value.dtype.itemsize]
    flat, value = memory.flat(bits), value.view(bits)
    if flat.numel() == 0:
        return
    if mask is None:
        at, value = torch.broadcast_tensors(at, value)
    else:
        at, value, mask = torch.broadcast_tensors(at, value, mask)
        if not bool(mask.all()):
            at, value = at[mask], value[mask]
    at, value = at.reshape(-1), value.reshape(-1)
    try:
        flat.put_(at, value)
    except (IndexError, RuntimeError):
        inside = (at >= 0) & (at < flat.numel())
        flat.put_(at[inside], value[inside])


def count_bytes(
    machine: KernelMachine, book: dict[int, int], pointer: Pointer, mask: Tensor | None, shape: Shape
) -> None:
    """Add the bytes that a block of that shape moves in all programs to `book`."""
    size = 8 if pointer.element.startswith("!") else dtype_of(pointer.element).itemsize
    count = math.prod(shape) * machine.count
    where = machine.active_mask(mask, len(shape))
    if where is not None and where.numel():
        count = int(where.sum()) * count // where.numel()
    key = 0 if pointer.memory is None else pointer.memory.address
    book[key] = book.get(key, 0) + count * size
