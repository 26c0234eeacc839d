"""Masked gathers and scatters over flat storages, and how many bytes they move.

What lies outside of a tensor's storage reads as something and is not written: on a GPU it would be undefined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from gapless.kernels.machine import Machine
from gapless.kernels.ramps import Ramp, full, windows
from gapless.kernels.values import BITS, Memory, Pointer, Tensor, chosen, dtype_of

Shape = tuple[int, ...]


def loaded(machine: Machine, pointer: Pointer, mask: Tensor | None, other: Any, shape: Shape) -> Any:
    """The block of that shape at `pointer` where `mask` says so; `other` (or 0) elsewhere."""
    count_bytes(machine, machine.cost.read, pointer, mask, shape)
    inner = pointer.element
    points = inner.startswith("!tt.ptr<")
    dtype = torch.int64 if points else dtype_of(inner)
    out = gathered(machine, pointer, machine.allowed(mask, len(shape)), dtype)
    if mask is not None:
        fill = torch.zeros((), dtype=dtype) if other is None else other
        out = chosen(mask, out, fill.addresses if isinstance(fill, Pointer) else fill)
    return Pointer(inner[len("!tt.ptr<") : -1].split(",")[0], None, out) if points else out


def stored(machine: Machine, pointer: Pointer, value: Any, mask: Tensor | None, shape: Shape) -> None:
    """Write a block of that shape where `mask` and the programs that are here allow it."""
    count_bytes(machine, machine.cost.written, pointer, mask, shape)
    if isinstance(value, Pointer):
        value = value.addresses
    where = machine.allowed(mask, len(shape))
    if pointer.memory is not None:
        scattered(pointer.memory, pointer.places, value, where)
        return
    at = pointer.places if where is None else torch.where(where, pointer.places, 0)
    for memory, here, inside in parts(machine, at):
        scattered(memory, inside // value.dtype.itemsize, value, here)


def gathered(machine: Machine, pointer: Pointer, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What is at `pointer`; anything where `mask` is false."""
    if pointer.memory is not None:
        return _from(pointer.memory, pointer.at, mask, dtype)
    at = pointer.places if mask is None else torch.where(mask, pointer.places, 0)
    out = torch.zeros(at.shape, dtype=dtype)
    for memory, here, inside in parts(machine, at):
        out = chosen(here, _from(memory, inside // dtype.itemsize, here, dtype), out)
    return out


def parts(machine: Machine, addresses: Tensor) -> Iterator[tuple[Memory, Tensor, Tensor]]:
    """The storages that `addresses` lie in, for each which of them do, and at which byte of it.

    Raises:
        Unsupported: an address other than 0 lies in none that is known.
    """
    left = addresses != 0
    while bool(left.any()):
        memory = machine.heap.at(int(addresses[left][0]))
        inside = addresses - memory.address
        here = left & (inside >= 0) & (inside < memory.size)
        yield memory, here, inside
        left = left & ~here


def _from(memory: Memory, at: Tensor | Ramp, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    moved = BITS[dtype.itemsize] if dtype is not torch.float32 else dtype
    flat = memory.flat(moved)
    size = flat.numel()
    if size == 0:
        shape = at.shape if mask is None else torch.broadcast_shapes(at.shape, mask.shape)
        return torch.zeros(shape, dtype=moved).view(dtype)
    if isinstance(at, Ramp):
        found = windows(flat, at)
        if found is not None:
            return found.view(dtype)
    places: Tensor = full(at)
    if mask is not None and _fits(mask, places):
        places = places.masked_fill(~mask, 0)
    try:
        return flat.take(places).view(dtype)
    except (IndexError, RuntimeError):
        return flat.take(places.clamp(0, size - 1)).view(dtype)


def _fits(mask: Tensor, places: Tensor) -> bool:
    """Whether a mask says no more than there are places."""
    return mask.dim() <= places.dim() and all(
        one in (1, size) for one, size in zip(mask.shape[::-1], places.shape[::-1], strict=False)
    )


def scattered(memory: Memory, at: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """Write to a storage; what lies outside of it is dropped."""
    bits = BITS[value.dtype.itemsize]
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
    machine: Machine, book: dict[int, int], pointer: Pointer, mask: Tensor | None, shape: Shape
) -> None:
    """Note how many bytes a block of that shape moves, in all programs together."""
    size = 8 if pointer.element.startswith("!") else dtype_of(pointer.element).itemsize
    count = math.prod(shape) * machine.count
    where = machine.allowed(mask, len(shape))
    if where is not None and where.numel():
        count = int(where.sum()) * count // where.numel()
    key = 0 if pointer.memory is None else pointer.memory.address
    book[key] = book.get(key, 0) + count * size
