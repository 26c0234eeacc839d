"""Shared memory, as Gluon's kernels ask for it: rooms of which each program has its own.

A room is a stretch of one storage for each program. What is made of it (one of several buffers, a part, other
axes) is the same storage at other places, so that what is written through one is read through the others.
Copies that a GPU makes in the background are made at once.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import torch

from gapless.kernels.machine import Machine, operation
from gapless.kernels.memory import gathered, loaded, scattered
from gapless.kernels.nodes import Op, Type, type_of
from gapless.kernels.ramps import Ramp
from gapless.kernels.values import Memory, Pointer, Tensor, Unsupported, chosen, dtype_of, spread

Shape = tuple[int, ...]
_OFFSETS = re.compile(r"\[([-\d, ]*)\]")


@dataclass(frozen=True, slots=True)
class Room:
    """Part of shared memory: where it begins in each program, its sizes and strides in elements."""

    base: Pointer
    sizes: Shape
    strides: Shape

    def pointers(self) -> Pointer:
        """Pointers to all of its elements."""
        rank = len(self.sizes)
        steps = tuple(zip(self.strides, self.sizes, strict=True))
        return Pointer(self.base.element, self.base.memory, Ramp(spread(self.base.places, rank), steps))

    def moved(self, by: Tensor | int, sizes: Shape, strides: Shape) -> Room:
        """The part that begins `by` elements further on."""
        return Room(replace(self.base, at=self.base.places + by), sizes, strides)

    def either(self, mask: Tensor, other: Any) -> Room:
        """This where `mask` says so, else `other`: of one allocation, as buffers that change places are."""
        if (self.base.memory, self.sizes, self.strides) != (other.base.memory, other.sizes, other.strides):
            raise Unsupported("a choice between two allocations of shared memory")
        return replace(self, base=chosen(mask, self.base, other.base))


def room_type(kind: Type) -> Type:
    """Sizes and elements of ``!ttg.memdesc<2x16xf32, #shared, #smem>``; other types stay as they are."""
    if not kind.element.startswith("!ttg.memdesc<"):
        return kind
    return type_of(f"tensor<{kind.element[kind.element.index('<') + 1 : -1]}>")


def _contiguous(sizes: Shape) -> Shape:
    return tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def _put(machine: Machine, room: Room, value: Tensor) -> None:
    assert room.base.memory is not None
    where = machine.allowed(None, len(room.sizes))
    scattered(room.base.memory, room.pointers().places, value, where)


@operation("ttg.local_alloc")
def allocate(machine: Machine, op: Op) -> Room:
    kind = room_type(op.made[0])
    count = math.prod(kind.shape)
    memory = Memory(torch.zeros(machine.count * count, dtype=dtype_of(kind.element)).untyped_storage())
    room = Room(
        Pointer(kind.element, memory, torch.arange(machine.count) * count),
        kind.shape,
        _contiguous(kind.shape),
    )
    if op.operands:
        _put(machine, room, machine.get(op)[0])
    return room


def held(machine: Machine, room: Room) -> Tensor:
    """What is in a room."""
    return gathered(machine, room.pointers(), None, dtype_of(room.base.element))


@operation("ttg.local_load")
def local_load(machine: Machine, op: Op) -> Tensor:
    return held(machine, machine.raw(op)[0])


@operation("ttg.local_store")
def local_store(machine: Machine, op: Op) -> None:
    value, room = machine.get(op)
    _put(machine, room, value)


def _along(machine: Machine, op: Op) -> tuple[Pointer, Any]:
    """Pointers to the elements that a block of places along an axis picks, and what follows the places."""
    room, index, *rest = machine.get(op)
    axis, rank = op.integer("axis"), len(room.sizes)
    shape = op.given[1].shape if len(op.given) > 1 else op.type.shape
    at = spread(room.base.places, rank) + index.long() * room.strides[axis]
    for other, (size, step) in enumerate(zip(shape, room.strides, strict=True)):
        if other != axis:
            view = [1] * (rank + 1)
            view[other + 1] = size
            at = at + (torch.arange(size) * step).view(view)
    return Pointer(room.base.element, room.base.memory, at), rest


@operation("ttg.local_gather")
def local_gather(machine: Machine, op: Op) -> Tensor:
    pointer, _ = _along(machine, op)
    return gathered(machine, pointer, None, dtype_of(pointer.element))


@operation("ttg.local_scatter")
def local_scatter(machine: Machine, op: Op) -> None:
    pointer, (value, *_) = _along(machine, op)
    assert pointer.memory is not None
    scattered(pointer.memory, pointer.places, value, machine.allowed(None, value.dim() - 1))


@operation("ttg.memdesc_index", "ttg.memdesc_subview")
def memdesc_index(machine: Machine, op: Op) -> Room:
    """One of several buffers; as older versions print it, a part whose place is computed."""
    room, *index = machine.get(op)
    sizes = room_type(op.made[0]).shape
    steps = zip(index, room.strides, strict=False)
    by = sum((one.long() * step for one, step in steps), start=torch.zeros(1, dtype=torch.int64))
    return room.moved(by, sizes, room.strides[len(room.sizes) - len(sizes) :])  # type: ignore[no-any-return]


@operation("ttg.memdesc_subslice")
def memdesc_subslice(machine: Machine, op: Op) -> Room:
    room = machine.raw(op)[0]
    found = _OFFSETS.search(op.text)
    offsets = [int(one) for one in found[1].split(",")] if found else []
    by = sum(at * step for at, step in zip(offsets, room.strides, strict=True))
    return room.moved(by, room_type(op.made[0]).shape, room.strides)  # type: ignore[no-any-return]


@operation("ttg.memdesc_trans")
def memdesc_trans(machine: Machine, op: Op) -> Room:
    room = machine.raw(op)[0]
    order = op.integers("order")
    return Room(room.base, tuple(room.sizes[one] for one in order), tuple(room.strides[one] for one in order))


@operation("ttg.memdesc_reshape", "ttg.memdesc_reinterpret")
def memdesc_reshape(machine: Machine, op: Op) -> Room:
    room = machine.raw(op)[0]
    kind = room_type(op.made[0])
    before, after = dtype_of(room.base.element).itemsize, dtype_of(kind.element).itemsize
    if room.strides != _contiguous(room.sizes) or before != after:
        raise Unsupported(f"{op.name} of elements that do not lie in a row")
    return Room(replace(room.base, element=kind.element), kind.shape, _contiguous(kind.shape))


@operation("ttg.async_copy_global_to_local")
def copy_here(machine: Machine, op: Op) -> None:
    pointer, room, *rest = machine.get(op)
    mask = rest.pop(0) if " mask " in op.text else None
    other = rest.pop(0) if " other " in op.text else None
    _put(machine, room, loaded(machine, pointer, mask, other, op.given[0].shape))


@operation("ttg.local_dealloc", "ttg.async_commit_group", "ttg.async_wait")
def nothing(machine: Machine, op: Op) -> None:
    """Ends what has ended, or waits for copies that were made at once."""
