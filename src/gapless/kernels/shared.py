"""Shared memory as Gluon's kernels use it: rooms, of which each program has its own.

A room is a part of one storage for each program. Views of it (one of several buffers, a part, other axes) are
other places of the same storage, so that writes through one are read through the others. Copies that a GPU
makes in the background are made at once.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import torch

from gapless.kernels.machine import KernelMachine, operation
from gapless.kernels.memory import gather_elements, load_block, scatter_elements
from gapless.kernels.nodes import Op, ValueType, parse_type
from gapless.kernels.ramps import Ramp
from gapless.kernels.values import (
    Pointer,
    StorageView,
    Tensor,
    Unsupported,
    choose,
    dtype_of,
    spread_over_block,
)

Shape = tuple[int, ...]
_OFFSETS = re.compile(r"\[([-\d, ]*)\]")


@dataclass(frozen=True, slots=True)
class SharedRoom:
    """Part of shared memory: where it begins in each program, its sizes and strides in elements."""

    base: Pointer
    sizes: Shape
    strides: Shape

    def pointers(self) -> Pointer:
        """Return pointers to all elements of the room."""
        rank = len(self.sizes)
        steps = tuple(zip(self.strides, self.sizes, strict=True))
        return Pointer(
            self.base.element, self.base.memory, Ramp(spread_over_block(self.base.places, rank), steps)
        )

    def at_offset(self, by: Tensor | int, sizes: Shape, strides: Shape) -> SharedRoom:
        """Return the room that begins `by` elements further on."""
        return SharedRoom(replace(self.base, at=self.base.places + by), sizes, strides)

    def either(self, mask: Tensor, other: Any) -> SharedRoom:
        """Return this room where `mask` is true, else `other`; both must be of one allocation, as swapped
        buffers are."""
        if (self.base.memory, self.sizes, self.strides) != (other.base.memory, other.sizes, other.strides):
            raise Unsupported("a choice between two allocations of shared memory")
        return replace(self, base=choose(mask, self.base, other.base))


def room_type(kind: ValueType) -> ValueType:
    """Return sizes and elements of ``!ttg.memdesc<2x16xf32, #shared, #smem>``; other types unchanged."""
    if not kind.element.startswith("!ttg.memdesc<"):
        return kind
    return parse_type(f"tensor<{kind.element[kind.element.index('<') + 1 : -1]}>")


def _contiguous(sizes: Shape) -> Shape:
    return tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def _write_room(machine: KernelMachine, room: SharedRoom, value: Tensor) -> None:
    assert room.base.memory is not None
    where = machine.active_mask(None, len(room.sizes))
    scatter_elements(room.base.memory, room.pointers().places, value, where)


@operation("ttg.local_alloc")
def allocate(machine: KernelMachine, op: Op) -> SharedRoom:
    kind = room_type(op.result_types[0])
    count = math.prod(kind.shape)
    memory = StorageView(torch.zeros(machine.count * count, dtype=dtype_of(kind.element)).untyped_storage())
    room = SharedRoom(
        Pointer(kind.element, memory, torch.arange(machine.count) * count),
        kind.shape,
        _contiguous(kind.shape),
    )
    if op.operands:
        _write_room(machine, room, machine.get(op)[0])
    return room


def room_contents(machine: KernelMachine, room: SharedRoom) -> Tensor:
    """Read all elements of `room` in shared memory, for each program."""
    return gather_elements(machine, room.pointers(), None, dtype_of(room.base.element))


@operation("ttg.local_load")
def local_load(machine: KernelMachine, op: Op) -> Tensor:
    return room_contents(machine, machine.raw(op)[0])


@operation("ttg.local_store")
def local_store(machine: KernelMachine, op: Op) -> None:
    value, room = machine.get(op)
    _write_room(machine, room, value)


def _axis_pointers(machine: KernelMachine, op: Op) -> tuple[Pointer, Any]:
    """Return pointers to the elements at indices along an axis, and the operands after the indices."""
    room, index, *rest = machine.get(op)
    axis, rank = op.integer("axis"), len(room.sizes)
    shape = op.operand_types[1].shape if len(op.operand_types) > 1 else op.type.shape
    at = spread_over_block(room.base.places, rank) + index.long() * room.strides[axis]
    for other, (size, step) in enumerate(zip(shape, room.strides, strict=True)):
        if other != axis:
            view = [1] * (rank + 1)
            view[other + 1] = size
            at = at + (torch.arange(size) * step).view(view)
    return Pointer(room.base.element, room.base.memory, at), rest


@operation("ttg.local_gather")
def local_gather(machine: KernelMachine, op: Op) -> Tensor:
    pointer, _ = _axis_pointers(machine, op)
    return gather_elements(machine, pointer, None, dtype_of(pointer.element))


@operation("ttg.local_scatter")
def local_scatter(machine: KernelMachine, op: Op) -> None:
    pointer, (value, *_) = _axis_pointers(machine, op)
    assert pointer.memory is not None
    scatter_elements(pointer.memory, pointer.places, value, machine.active_mask(None, value.dim() - 1))


@operation("ttg.memdesc_index", "ttg.memdesc_subview")
def memdesc_index(machine: KernelMachine, op: Op) -> SharedRoom:
    """Return one of several buffers, or in older versions a part at a computed place."""
    room, *index = machine.get(op)
    sizes = room_type(op.result_types[0]).shape
    steps = zip(index, room.strides, strict=False)
    by = sum((at.long() * step for at, step in steps), start=torch.zeros(1, dtype=torch.int64))
    return room.at_offset(by, sizes, room.strides[len(room.sizes) - len(sizes) :])  # type: ignore[no-any-return]


@operation("ttg.memdesc_subslice")
def memdesc_subslice(machine: KernelMachine, op: Op) -> SharedRoom:
    room = machine.raw(op)[0]
    match = _OFFSETS.search(op.text)
    offsets = [int(offset) for offset in match[1].split(",")] if match else []
    by = sum(at * step for at, step in zip(offsets, room.strides, strict=True))
    return room.at_offset(by, room_type(op.result_types[0]).shape, room.strides)  # type: ignore[no-any-return]


@operation("ttg.memdesc_trans")
def memdesc_trans(machine: KernelMachine, op: Op) -> SharedRoom:
    room = machine.raw(op)[0]
    order = op.integers("order")
    return SharedRoom(
        room.base, tuple(room.sizes[axis] for axis in order), tuple(room.strides[axis] for axis in order)
    )


@operation("ttg.memdesc_reshape", "ttg.memdesc_reinterpret")
def memdesc_reshape(machine: KernelMachine, op: Op) -> SharedRoom:
    room = machine.raw(op)[0]
    kind = room_type(op.result_types[0])
    before, after = dtype_of(room.base.element).itemsize, dtype_of(kind.element).itemsize
    if room.strides != _contiguous(room.sizes) or before != after:
        raise Unsupported(f"{op.name} of elements that do not lie in a row")
    return SharedRoom(replace(room.base, element=kind.element), kind.shape, _contiguous(kind.shape))


@operation("ttg.async_copy_global_to_local")
def copy_to_shared(machine: KernelMachine, op: Op) -> None:
    pointer, room, *rest = machine.get(op)
    mask = rest.pop(0) if " mask " in op.text else None
    other = rest.pop(0) if " other " in op.text else None
    _write_room(machine, room, load_block(machine, pointer, mask, other, op.operand_types[0].shape))


@operation("ttg.local_dealloc", "ttg.async_commit_group", "ttg.async_wait")
def ignore_wait(machine: KernelMachine, op: Op) -> None:
    """Do nothing: copies are complete when the next operation starts."""
